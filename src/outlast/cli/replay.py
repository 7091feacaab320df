"""`outlast replay`: replays runs in flight, and journals from files, against code that is about to be deployed.

Exit status: 0 when every one replays, 1 when one would stop or fail or stands elsewhere than a golden journal says, 2 when the command was typed wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from outlast.cli.output import complain, note, plain, print_json, say
from outlast.cli.run import Json
from outlast.cli.session import Session, stored
from outlast.cli.text import counted
from outlast.cli.worker import load_all
from outlast.client import Client, Status
from outlast.errors import DecodeError, StoreError
from outlast.replay.delivery import in_callback
from outlast.store.change import CLOSED
from outlast.testing.golden import Golden, export, exported
from outlast.testing.rehearsal import ELSEWHERE, FAILED, Rehearsal, rehearse
from outlast.workflows.registry import Registry

_PAGE = 200
_OPEN = frozenset(Status) - CLOSED
_NAMED = 20
"""How many runs a line about a patch names."""


@stored
def replay(  # noqa: PLR0913 - what can be replayed, and how it is told
    session: Session,
    modules: Annotated[
        list[str],
        typer.Argument(metavar="MODULE...", help="The code: modules to import, or files."),
    ],
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            "-f",
            help="Replay this exported journal; of a golden one compare also where the code stands. May be repeated.",
        ),
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="Replay this run; may be repeated.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Replay all open runs; the default without --file and --run."),
    ] = False,
    workflow: Annotated[str, typer.Option(help="With --all: only runs of this workflow.")] = "",
    as_json: Json = False,
) -> None:
    """Replay runs in flight against the code of MODULE..., and name those that would stop or fail, where, and why."""
    load_all(modules)
    registry = Registry.of_everything()
    found = [_from_file(one, registry) for one in file or ()]
    if every or run or not file:

        async def work(client: Client) -> list[Rehearsal]:
            chosen = _chosen(client, run or [], workflow, every=every or not run)
            return [
                await in_callback(lambda one=one: rehearse(one, registry)) async for one in chosen
            ]

        found += session.call(work)
    if as_json:
        print_json(_document(found))
    else:
        _print(found)
    if any(one.stops for one in found):
        raise typer.Exit(1)


async def _chosen(
    client: Client, runs: Iterable[str], workflow: str, *, every: bool
) -> AsyncIterator[Golden]:
    """Yield the journals of the runs that are named, then those of all open ones."""
    store, tenant = client.store, client.tenant
    for one in runs:
        yield await export(store, one, tenant=tenant)
    before = None
    while every:
        heads = await store.heads(
            tenant, statuses=_OPEN, workflow=workflow, limit=_PAGE, before=before
        )
        for head in heads:
            yield await export(store, head.run.run_id, tenant=tenant)
        if len(heads) < _PAGE:
            return
        before = (heads[-1].created_at, heads[-1].run.run_id)


def _from_file(file: Path, registry: Registry) -> Rehearsal:
    try:
        return rehearse(exported(file.read_bytes()), registry)
    except OSError as error:
        complain(StoreError(f"{file} cannot be read: {error.strerror}", hint="check the path"))
    except DecodeError as error:
        complain(
            DecodeError(
                f"{file}: {error.message}", hint="export it anew with `outlast runs export RUN`"
            )
        )
    raise typer.Exit(1)


def _print(found: list[Rehearsal]) -> None:
    stopped = [one for one in found if one.stops]
    for one in stopped:
        _print_stop(one)
        say("")
    for name, answers in _patches(found).items():
        former = answers["former"]
        said = f"{counted(answers['changed'], 'run')} as changed, {len(former)} the former way"
        more = f" and {len(former) - _NAMED} more" if len(former) > _NAMED else ""
        say(f"patch {name}: {said}{': ' if former else ''}{', '.join(former[:_NAMED])}{more}")
    failed = sum(one.stops == FAILED for one in stopped)
    elsewhere = sum(one.stops == ELSEWHERE for one in stopped)
    stop = len(stopped) - failed - elsewhere
    also = f", {failed} would fail" if failed else ""
    also += (
        f", {elsewhere} {'stands' if elsewhere == 1 else 'stand'} elsewhere" if elsewhere else ""
    )
    say(f"{counted(len(found), 'journal')} replayed, {stop} would stop{also}")
    if stop:
        note("a run that stops is blocked until fitting code is deployed; nothing of it is lost")
    if failed:
        note("a run that fails has ended; `outlast runs retry` does it again from there")


def _print_stop(one: Rehearsal) -> None:
    run = f"run {one.run_id} (workflow {one.workflow}, generation {one.generation})"
    where = f"entry {one.position} of {one.entries}"
    if one.stops == FAILED:
        say(f"{run} would fail after {where}")
    elif one.stops == ELSEWHERE:
        say(f"{run} replays, and does not stand where its golden journal says")
    else:
        say(f"{run} would stop{'' if one.position is None else f' at {where}'}: {one.stops}")
    if one.recorded or one.asked:
        say(f"  journal  {one.recorded}")
        say(f"  code     {one.asked}")
    else:
        say(f"  {one.why}")
    for line in one.sides:
        say(line)
    if one.waits:
        say(f"  where    {' > '.join(one.waits)}")
    for number, line in enumerate(one.remedy):
        say(f"  {'→' if number == 0 else ' '} {line}")


def _patches(found: list[Rehearsal]) -> dict[str, dict[str, Any]]:
    """Return for each patch how many runs go on as changed, and which go the former way."""
    told: dict[str, dict[str, Any]] = {}
    for one in found:
        for name, answer in one.patches.items():
            answers = told.setdefault(name, {"changed": 0, "former": []})
            if answer:
                answers["changed"] += 1
            else:
                answers["former"].append(one.run_id)
    return told


def _document(found: list[Rehearsal]) -> dict[str, Any]:
    return {
        "replayed": len(found),
        "stops": [plain(one) for one in found if one.stops],
        "patches": _patches(found),
    }
