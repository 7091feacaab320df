"""`outlast stop`: the kill switch."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.output import print_json, print_table, say
from outlast.cli.session import Session, stored, usage_error
from outlast.cli.text import at
from outlast.client import StopView


@stored
def stop(  # noqa: PLR0913 - each parameter is an option of the command
    session: Session,
    tool: Annotated[
        str, typer.Option(metavar="GLOB", help="Only effects and tools of this name, as pay_*.")
    ] = "*",
    agent: Annotated[str, typer.Option(metavar="GLOB", help="Only what this agent does.")] = "*",
    everybody: Annotated[bool, typer.Option("--everybody", help="In all tenants.")] = False,
    reason: Annotated[str, typer.Option(help="Why; kept, and shown to whom it stops.")] = "",
    lift: Annotated[
        str, typer.Option(metavar="ID", help="Let go on what an order stops; --list shows its id.")
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the orders that hold.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --list: one JSON document.")
    ] = False,
) -> None:
    """Stop every effect that has not begun, or those of one tool or agent, at once, until that is lifted."""
    if listed:
        _list(session, as_json=as_json)
        return
    if not reason.strip():
        raise usage_error("say why with --reason; it is kept")
    if lift:
        session.call(lambda client: client.stops.lift(lift, reason, everybody=everybody))
        say(f"lifted: {lift}")
        return
    id = session.call(
        lambda client: client.stops.stop(reason, tool=tool, agent=agent, everybody=everybody)
    )
    say(f"stopped: {id}")


def _list(session: Session, *, as_json: bool) -> None:
    found = session.call(lambda client: client.stops.list())
    if as_json:
        print_json(found)
    elif not found:
        say("nothing is stopped")
    else:
        print_table(("ID", "FOR", "REASON", "BY", "SINCE"), map(_row, found))


def _row(one: StopView) -> tuple[str, ...]:
    return one.id, "everybody" if one.everybody else "tenant", one.reason, one.by, at(one.at)
