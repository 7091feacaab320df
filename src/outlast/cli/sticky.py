"""`outlast approvals sticky` and `revoke`: the decisions that stick, listed and taken back."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.approval import Json
from outlast.cli.output import print_json, print_table, say
from outlast.cli.session import Session, stored
from outlast.cli.text import at, json_text, safe
from outlast.client import Client, StickyView

_PAGE = 1000
_ID = 12
"""Characters of an id that is long enough to be told from others in a list."""


@stored
def list_sticky(
    session: Session,
    run: Annotated[str, typer.Option(help="Only those that reach this run.")] = "",
    effect: Annotated[str, typer.Option(help="Only those about this effect.")] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Those too that are used up, over, or taken back.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the decisions that stick, oldest first."""

    async def work(client: Client) -> list[StickyView]:
        found: list[StickyView] = []
        while True:
            after = found[-1] if found else None
            page = await client.approvals.sticky(
                run_id=run, effect=effect, over=every, limit=_PAGE, after=after
            )
            found += page
            if len(page) < _PAGE:
                return found

    found = session.call(work)
    if as_json:
        print_json(found)
    elif not found:
        say("no decision sticks" if not every else "no decisions")
    else:
        print_table(
            ("ID", "SAYS", "EFFECT", "CALLS", "REACH", "LEFT", "UNTIL", "BY", "ROLE", "STATE"),
            [
                (
                    one.sticky_id,
                    "yes" if one.approved else "no",
                    safe(one.effect),
                    _calls(one),
                    f"{one.reach} {safe(one.workflow if one.reach == 'workflow' else one.run_id)}",
                    "any" if one.uses is None else str(one.uses),
                    at(one.expires_at) if one.expires_at else "",
                    safe(one.by) + (f" for {safe(one.behalf)}" if one.behalf else ""),
                    safe(one.role) or "anybody",
                    _state(one),
                )
                for one in found
            ],
        )


def _calls(one: StickyView) -> str:
    if one.action_sha256:
        return f"this one ({one.action_sha256[:_ID]}…)"
    same = [f"{name}={json_text(value, indent=None)}" for name, value in one.same.items()]
    return ", ".join((*same, *map(safe, one.when))) or "any"


def _state(one: StickyView) -> str:
    if one.revoked_at is not None:
        return f"taken back by {safe(one.revoked_by)}: {safe(one.revoked_why)}"
    return "sticks" if one.sticks else "over"


@stored
def revoke(
    session: Session,
    sticky_id: Annotated[
        str, typer.Argument(metavar="ID", help="As `outlast approvals sticky` shows it.")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept.")],
) -> None:
    """Take back a decision that sticks."""
    session.call(lambda client: client.approvals.revoke(sticky_id, reason))
    say(f"taken back: {sticky_id}")
