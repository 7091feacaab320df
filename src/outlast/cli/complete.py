"""`outlast runs complete` and `outlast runs heartbeat`: say what came of a step that was handed out, or that it is worked on."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.output import say
from outlast.cli.session import Session, json_of, stored, usage_error
from outlast.client import Client


@stored
def complete(
    session: Session,
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="What the step has handed out, one line.")
    ],
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="It has returned this.")
    ] = None,
    failed: Annotated[
        str, typer.Option("--failed", metavar="TEXT", help="It has failed for good.")
    ] = "",
    answer_id: Annotated[
        str, typer.Option("--id", help="The same id again is the same answer.")
    ] = "",
) -> None:
    """Say what came of a step that was handed out, by its token. The first answer counts."""
    if (value is not None) + bool(failed) != 1:
        raise usage_error("say one of --value JSON and --failed TEXT")
    result = None if value is None else json_of(value)

    async def work(client: Client) -> None:
        if value is None:
            await client.fail(token, failed, id=answer_id)
        else:
            await client.complete(token, result, id=answer_id)

    session.call(work)
    say("accepted: the outcome is recorded when a worker takes it in")


@stored
def heartbeat(
    session: Session,
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="What the step has handed out, one line.")
    ],
    details: Annotated[
        str | None,
        typer.Option("--details", metavar="JSON", help="What the next attempt may go on from."),
    ] = None,
) -> None:
    """Say that somebody works on a step that was handed out, by its token. Fails when nobody waits for it any more."""
    said = None if details is None else json_of(details)

    async def work(client: Client) -> None:
        await client.heartbeat(token, said)

    session.call(work)
    say("heard")
