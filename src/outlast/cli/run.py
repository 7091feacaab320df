"""`outlast runs`: look at runs, send to them, and end them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

import typer

from outlast.cli import show
from outlast.cli.output import note, print_json, say
from outlast.cli.session import LAST_NUMBER, Session, json_of, stored, time_length
from outlast.cli.worker import author_errors, load
from outlast.client import Client, RunDetail, RunHandle, RunStatus, Status
from outlast.client.explain import explain as explain_run
from outlast.errors import OutlastError

runs = typer.Typer(no_args_is_help=True, help="Look at runs, and act on them.")

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the run.")]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        "-m",
        metavar="MODULE",
        help="Holds the run's code: a module, or a file (agent.py); may be repeated.",
    ),
]


@runs.command("list")
@stored
def list_runs(
    session: Session,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only these; may be repeated.")
    ] = None,
    workflow: Annotated[str, typer.Option(help="Only runs of this workflow.")] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most so many, the newest first.")
    ] = 50,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    statuses = frozenset(status or ())
    found = session.call(
        lambda client: client.runs.list(statuses=statuses, workflow=workflow, limit=limit)
    )
    if as_json:
        print_json(found)
    else:
        show.runs(found)


@runs.command("show")
@stored
def show_run(session: Session, run: Run, as_json: Json = False) -> None:
    """Show a run: where it stands, what it waits for, its last entries, how it ended."""
    detail = session.call(_detail(run))
    if as_json:
        print_json(show.run_document(detail))
    else:
        show.run(detail, session.command)


@runs.command("explain")
@stored
def explain(session: Session, run: Run, as_json: Json = False) -> None:
    """Explain in plain words what a run waits for, what happens next, and who can act how."""
    explanation = explain_run(session.call(_detail(run)), session.command)
    if as_json:
        print_json(explanation)
    else:
        show.explanation(explanation)


@runs.command("journal")
@stored
def journal(
    session: Session,
    run: Run,
    generation: Annotated[
        int | None,
        typer.Option(
            min=1, max=LAST_NUMBER, help="Of this generation; the present one by default."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a run's journal: everything that was decided, in order."""
    entries = session.call(lambda client: client.handle(run).journal(generation=generation))
    if as_json:
        print_json([show.entry_document(one) for one in entries])
    else:
        show.journal(entries)


@runs.command("send")
@stored
def send(
    session: Session,
    run: Run,
    signal: Annotated[str, typer.Argument(metavar="SIGNAL", help="The message's name.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its value.")] = "null",
    message_id: Annotated[
        str, typer.Option("--id", help="The same id again is the same message.")
    ] = "",
) -> None:
    """Send a run a message; it is delivered once."""
    body = json_of(value)

    async def work(client: Client) -> RunStatus:
        handle: RunHandle[Any] = client.handle(run)
        status = await handle.status()
        await handle.send(signal, body, id=message_id)
        return status

    status = session.call(work)
    say(f"accepted: {signal} for run {run}")
    # What was noted when the run last left memory says nothing about a run that is in memory now.
    awaited: list[str] = [] if status.worker else status.waits.get("signals", [])
    if awaited and signal not in awaited:
        note(
            f"note: when it was parked the run did not wait for {signal!r} but for "
            f"{', '.join(map(repr, awaited))}; the message is kept until it asks for it"
        )


@runs.command("query")
@stored
def query(
    session: Session,
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The query's name.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its value.")] = "null",
    modules: Modules = None,
    timeout: Annotated[
        timedelta,
        typer.Option(parser=time_length, metavar="TIME", help="For reading, replay and handler."),
    ] = "1s",  # pyright: ignore[reportArgumentType] - parsed like what is typed
) -> None:
    """Ask a run a question; its code is replayed here, no worker is needed, and nothing is written. Prints the answer as JSON."""
    body = json_of(value)
    with author_errors():
        for module in modules or ():
            load(module)
    print_json(session.call(lambda client: client.handle(run).query(name, body, timeout=timeout)))


@runs.command("published")
@stored
def published(
    session: Session,
    run: Run,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Under which it is published.")],
) -> None:
    """Print the last value that a run has published under a key, as JSON; `null` when there is none."""
    print_json(session.call(lambda client: client.handle(run).published(key)))


@runs.command("update")
@stored
def update(
    session: Session,
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The update's name.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its value.")] = "null",
    update_id: Annotated[
        str, typer.Option("--id", help="The same id again waits for the same answer.")
    ] = "",
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            parser=time_length, metavar="TIME", help="Wait no longer; for ever by default."
        ),
    ] = None,
) -> None:
    """Send a run an update, wait for its answer, and print the result as JSON."""
    body = json_of(value)

    async def work(client: Client) -> Any:
        handle: RunHandle[Any] = client.handle(run)
        sent_id = update_id or client.new_id()
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                return await handle.update(name, body, id=sent_id)
        except TimeoutError:
            again = session.command("runs", "update", run, name, value, "--id", sent_id)
            raise OutlastError(
                f"the run has not answered the update {name!r} in time; it is still to come",
                run=run,
                hint=f"see `{session.command('runs', 'explain', run)}`; `{again}` waits for the same answer",
            ) from None

    print_json(session.call(work))


@runs.command("cancel")
@stored
def cancel(session: Session, run: Run, reason: Reason = "") -> None:
    """Ask a run to stop and clean up; intended effects are settled first."""
    session.call(lambda client: client.handle(run).cancel(reason))
    say(f"accepted: run {run} is asked to stop; see {session.command('runs', 'explain', run)}")


@runs.command("pause")
@stored
def pause(session: Session, run: Run, reason: Reason = "") -> None:
    """Ask a run to begin nothing until it is resumed; what is being attempted ends first."""
    session.call(lambda client: client.handle(run).pause(reason))
    say(
        f"accepted: run {run} is asked to pause; it goes on with {session.command('runs', 'resume', run)}"
    )


@runs.command("resume")
@stored
def resume(session: Session, run: Run, reason: Reason = "") -> None:
    """Let a paused run go on."""

    async def work(client: Client) -> RunDetail:
        handle: RunHandle[Any] = client.handle(run)
        await handle.resume(reason)
        return await handle.detail()

    detail = session.call(work)
    say(f"accepted: run {run} goes on when a worker takes it up")
    if detail.status.status is not Status.PAUSED and not detail.paused_by:
        note(f"note: run {run} was not paused when it was looked at last")


@runs.command("terminate")
@stored
def terminate(
    session: Session,
    run: Run,
    reason: Reason = "",
    abandon_compensation: Annotated[
        bool,
        typer.Option(
            "--abandon-compensation", help="Leave as it is what its sagas have not undone."
        ),
    ] = False,
) -> None:
    """End a run at once, without its clean-up. Works on any run, however large or broken."""
    session.call(
        lambda client: client.handle(run).terminate(
            reason, abandon_compensation=abandon_compensation
        )
    )
    say(f"run {run} is terminated")


def _detail(run: str) -> Any:
    async def work(client: Client) -> RunDetail:
        return await client.handle(run).detail()

    return work
