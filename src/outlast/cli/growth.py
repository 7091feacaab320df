"""`outlast runs accept` and `outlast runs export`: let something pass that stops a run, and take a journal elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlast.cli.output import say
from outlast.cli.run import Reason, Run
from outlast.cli.session import LAST_NUMBER, Session, stored, usage_error
from outlast.cli.worker import load_all
from outlast.client import Client
from outlast.errors import OutlastError
from outlast.testing.golden import export, record


@stored
def accept(
    session: Session,
    run: Run,
    entry: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LAST_NUMBER,
            metavar="N",
            help="The recorded arguments of the effect intended in entry N stand, although the code asks with others.",
        ),
    ] = None,
    history: Annotated[
        int | None,
        typer.Option(min=1, max=LAST_NUMBER, metavar="N", help="The journal may have N entries."),
    ] = None,
    any_build: Annotated[
        bool,
        typer.Option(
            "--any-build", help="Workers of any build may go on with it, although it is pinned."
        ),
    ] = False,
    reason: Reason = "",
) -> None:
    """Let something pass that stops a run; it goes on when a worker takes it up."""
    if entry is None and history is None and not any_build:
        raise usage_error("say one of --entry N, --history N and --any-build")
    if not reason:
        raise usage_error("say why: --reason TEXT")
    session.call(
        lambda client: client.handle(run).accept(
            entry=entry, history=history, any_build=any_build, reason=reason
        )
    )
    say(f"accepted: see {session.command('runs', 'explain', run)}")


@stored
def export_run(
    session: Session,
    run: Run,
    generation: Annotated[
        int | None,
        typer.Option(
            min=1, max=LAST_NUMBER, help="Of this generation; the present one by default."
        ),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="With where this code stands after each turn, as a golden journal for tests; may be repeated.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file.")
    ] = None,
) -> None:
    """Print a run's journal as a file that `outlast replay MODULE --file FILE` replays elsewhere."""
    if module:
        load_all(module)

    async def work(client: Client) -> str:
        make = record if module else export
        golden = await make(client.store, run, tenant=client.tenant, generation=generation)
        return golden.to_json()

    text = session.call(work)
    if output is None:
        typer.echo(text, nl=False)
    else:
        _write(output, text)
        say(f"written to {output}")


def _write(place: Path, text: str) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutlastError(
            f"{place} cannot be written: {error.strerror or error}",
            hint="name a file in a folder that is there: --output FILE",
        ) from None
