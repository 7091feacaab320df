"""`outlast runs doubts` and `outlast runs resolve`: effects of which somebody must say whether they happened."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outlast.cli import show
from outlast.cli.output import note, print_json, say
from outlast.cli.run import Json, Reason
from outlast.cli.session import Session, at_terminal, json_of, stored, usage_error
from outlast.client import Client, Doubt, Resolved, RunDetail, RunHandle, Standing
from outlast.effects.standing import OUTCOMES
from outlast.errors import DefinitionError

_PAGE = 100
_SHOWN = 20
"""So many doubts are named before somebody says that all are meant."""

Effect = Annotated[str, typer.Option("--effect", metavar="NAME", help="Only calls of this effect.")]
Workflow = Annotated[
    str, typer.Option("--workflow", metavar="NAME", help="Only in runs of this workflow.")
]


@stored
def doubts(
    session: Session, effect: Effect = "", workflow: Workflow = "", as_json: Json = False
) -> None:
    """List the effects in doubt of all runs: what they were called with, and what is known of their attempts."""
    found = session.call(lambda client: _all(client, effect, workflow))
    if as_json:
        print_json(found)
    else:
        show.doubts(found, session.command)


@stored
def resolve(  # noqa: PLR0913 - what an operator can say
    session: Session,
    run: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of runs; or --all.")
    ] = None,
    operation: Annotated[
        str, typer.Option(help="As r:3; may be left out when one effect of a run is in doubt.")
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Of all runs whose call of --effect is in doubt.")
    ] = False,
    effect: Effect = "",
    workflow: Workflow = "",
    applied: Annotated[
        str | None, typer.Option(metavar="JSON", help="It happened, with this result.")
    ] = None,
    not_applied: Annotated[
        bool, typer.Option("--not-applied", help="It did not happen; attempt it again.")
    ] = False,
    failed: Annotated[
        str, typer.Option(metavar="TEXT", help="It did not happen and never will.")
    ] = "",
    compensate: Annotated[
        bool,
        typer.Option(
            "--compensate", help="Have it undone, whether it happened or not, as it declares."
        ),
    ] = False,
    result: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="With --compensate: what it returned, where undoing takes that."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --all: do not ask.")] = False,
    reason: Reason = "",
) -> None:
    """Say what became of effects in doubt, of a compensation that gave up, or of a step that cannot succeed."""
    said = _said(applied, failed, result, not_applied=not_applied, compensate=compensate)
    said["reason"] = reason
    named = run or []
    if bool(named) == every:
        raise usage_error("name runs, or say --all with --effect NAME")
    if every and (operation or not effect):
        raise usage_error("--all is said of one effect: --effect NAME, without --operation")
    if (every or len(named) > 1) and not reason.strip():
        raise usage_error("--reason TEXT is needed for many runs: it is kept with each")
    if every:
        _resolve_all(session, effect, workflow, said, yes=yes)
    elif len(named) > 1 or effect or workflow:
        meant = session.call(lambda client: _of_runs(client, named, operation, effect, workflow))
        _resolve_many(session, meant, said)
    else:
        _resolve_one(session, named[0], operation, said)
    if applied is not None or result is not None:
        where = session.command("runs", "explain", named[0] if named else "RUN")
        note(
            "if the value does not fit the effect's result type, nothing is recorded and an alarm will show in "
            f"`{where}`"
        )


def _said(
    applied: str | None, failed: str, result: str | None, *, not_applied: bool, compensate: bool
) -> dict[str, Any]:
    """Return the one outcome that is said, as `RunHandle.resolve` takes it."""
    if (applied is not None) + not_applied + bool(failed) + compensate != 1:
        raise usage_error(
            "say one of --applied JSON, --not-applied, --failed TEXT and --compensate"
        )
    if result is not None and not compensate:
        raise usage_error("--result JSON belongs to --compensate")
    said: dict[str, Any] = {"not_applied": not_applied, "failed": failed}
    if applied is not None:
        said["applied"] = json_of(applied)
    if compensate:
        said["compensate"] = True
    if result is not None:
        said["result"] = json_of(result)
    return said


def _resolve_one(session: Session, run: str, operation: str, said: dict[str, Any]) -> None:
    async def work(client: Client) -> Standing | None:
        handle: RunHandle[Any] = client.handle(run)
        detail = await handle.detail()
        chosen = _open_operation(
            detail, operation, may_be_unseen="applied" in said or bool(said["failed"])
        )
        meant, doubt = (chosen.operation, chosen.doubt) if chosen else (operation, None)
        if doubt is not None and not said["reason"].strip():
            raise usage_error(
                f"--reason TEXT is needed of {meant}, which is in doubt: it is kept in the journal"
            )
        generation = detail.status.generation
        await handle.resolve(meant, **said, generation=generation, doubt=doubt)
        return chosen

    chosen = session.call(work)
    explain = session.command("runs", "explain", run)
    say(
        f"accepted: the outcome of {chosen.operation if chosen else operation} in run {run} is recorded when a worker takes it in; "
        f"see {explain}"
    )
    if chosen is None:
        note(
            "a first attempt leaves no trace, so nobody can see from here that a step is open there; if none is, an alarm will show in "
            f"`{explain}`"
        )


def _resolve_all(
    session: Session, effect: str, workflow: str, said: dict[str, Any], *, yes: bool
) -> None:
    meant = session.call(lambda client: _all(client, effect, workflow))
    if not meant:
        say(f"no call of effect {effect} is in doubt")
        return
    if not yes:
        if not at_terminal():
            raise usage_error("say --yes: nobody can be asked here")
        show.doubts(meant[:_SHOWN], session.command, with_commands=False)
        if len(meant) > _SHOWN:
            say(f"… and {len(meant) - _SHOWN} more: `{session.command('runs', 'doubts')}`")
        runs_meant = len({one.run_id for one in meant})
        what = _words(said)
        typer.confirm(f"{len(meant)} in {runs_meant} runs: {what}?", abort=True)
    _resolve_many(session, meant, said)


def _resolve_many(session: Session, meant: list[Doubt], said: dict[str, Any]) -> None:
    told = session.call(lambda client: _say(client, meant, said))
    accepted = sum(one.accepted for one in told)
    say(f"accepted: {accepted} of {len(told)}; each is recorded when a worker takes it in")
    refused = [one for one in told if not one.accepted]
    for one in refused:
        say(f"not accepted: {one.doubt.operation} in run {one.doubt.run_id}: {one.why}")
    if refused:
        raise typer.Exit(1)


async def _say(client: Client, meant: list[Doubt], said: dict[str, Any]) -> list[Resolved]:
    return list(await client.runs.resolve(meant, **said))


async def _all(client: Client, effect: str, workflow: str) -> list[Doubt]:
    """Return all doubts, read page by page."""
    found: list[Doubt] = []
    while True:
        after = found[-1] if found else None
        page = await client.runs.doubts(effect=effect, workflow=workflow, limit=_PAGE, after=after)
        if not page:
            return found
        found += page


async def _of_runs(
    client: Client, named: list[str], operation: str, effect: str, workflow: str
) -> list[Doubt]:
    """Return the doubt that is meant in each of these runs; nothing is said of any when one of them has none, or several."""
    meant: list[Doubt] = []
    for run in dict.fromkeys(named):
        found = await client.runs.doubts(run_id=run, effect=effect, workflow=workflow)
        fitting = [one for one in found if operation in {"", one.operation}]
        if len(fitting) != 1:
            listed = ", ".join(one.operation for one in fitting)
            raise DefinitionError(
                f"{len(fitting)} effects are in doubt: {listed}"
                if fitting
                else "no effect of this run that is meant is in doubt",
                run=run,
                hint="nothing was said of any run; name one operation with --operation, or leave this run out",
            )
        meant += fitting
    return meant


def _words(said: dict[str, Any]) -> str:
    if said["not_applied"]:
        return "they did not happen, and are attempted again"
    if said["failed"]:
        return "they failed for good"
    if "compensate" in said:
        return "each is undone, whether it happened or not"
    return "they happened, each with this result"


def _open_operation(detail: RunDetail, operation: str, *, may_be_unseen: bool) -> Standing | None:
    """Return the operation that is meant: the one named, if its outcome can be said; else the only one in doubt.

    Args:
        may_be_unseen: Return None for one that has left no trace, where a worker may be at its first attempt.
    """
    run = detail.status.run_id
    doubtful = {one.operation: one for one in detail.operations if one.state == "in doubt"}
    if not operation and len(doubtful) == 1:
        return next(iter(doubtful.values()))
    if not operation:
        raise DefinitionError(
            f"{len(doubtful)} effects are in doubt: {', '.join(doubtful)}"
            if doubtful
            else "no effect of this run is in doubt",
            run=run,
            hint="name one with --operation" if doubtful else f"see `outlast runs explain {run}`",
        )
    tasks = [one.operation for one in detail.tasks]
    found = [one for one in detail.operations if one.operation == operation]
    if operation in doubtful or any(one.kind == "step" for one in found):
        return found[0]
    if operation in tasks:
        name = next(one.name for one in detail.tasks if one.operation == operation)
        return Standing(operation, "step", name, "attempted")
    if may_be_unseen and not found and detail.attended and not _is_settled(detail, operation):
        return None
    raise DefinitionError(
        f"{operation} is no effect in doubt, and no step that failed and is tried again",
        run=run,
        hint=f"in doubt: {', '.join(doubtful) or 'none'}; see `outlast runs explain {run}`",
    )


def _is_settled(detail: RunDetail, operation: str) -> bool:
    """Whether the journal has an outcome of the operation."""
    return any(
        isinstance(one.entry, OUTCOMES) and one.entry.operation == operation
        for one in detail.entries
    )
