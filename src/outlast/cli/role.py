"""`outlast roles`: who holds which role, and since when roles count at all."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from outlast.cli.output import note, print_json, print_table, say
from outlast.cli.session import Session, stored, time_length
from outlast.cli.text import at
from outlast.client import Client
from outlast.policy.binding import RoleBinding

roles = typer.Typer(no_args_is_help=True, help="See who may decide what, and change it.")

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Who: a principal's name.")]
Role = Annotated[
    str,
    typer.Argument(metavar="ROLE", help="As requests name it; or outlast:VERB, as outlast:start."),
]
Resource = Annotated[
    str, typer.Option("--resource", metavar="GLOB", help="Only for workflows of these names.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the change.")]
Everybody = Annotated[
    bool,
    typer.Option("--everybody", help="What counts for all tenants, as the kill switch of all."),
]


@roles.command("list")
@stored
def list_roles(
    session: Session,
    everybody: Everybody = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List who holds which role."""

    async def work(client: Client) -> tuple[list[RoleBinding], str | None]:
        return await client.roles.list(everybody=everybody), client.roles.local_user

    found, local = session.call(work)
    if as_json:
        print_json(found)
    elif not found:
        say(f"no roles are set: {local}, who opened the store first, holds all of them")
    else:
        print_table(
            ("SUBJECT", "ROLE", "RESOURCE", "UNTIL", "BY", "DELEGATED BY"), map(_row, found)
        )


def _row(one: RoleBinding) -> tuple[str, ...]:
    until = "" if one.until is None else at(one.until)
    return one.subject, one.role, one.resource, until, one.by, one.delegated_by


@roles.command("grant")
@stored
def grant(  # noqa: PLR0913 - each parameter is an option of the command
    session: Session,
    subject: Subject,
    role: Role,
    resource: Resource = "*",
    length: Annotated[
        timedelta | None,
        typer.Option(
            "--for", parser=time_length, metavar="LENGTH", help="Only for so long, as 30d."
        ),
    ] = None,
    reason: Reason = "",
    everybody: Everybody = False,
) -> None:
    """Give somebody a role. The first one ends that one user holds all of them, and makes you the admin."""

    async def work(client: Client) -> bool:
        is_first = not await client.roles.list(everybody=everybody)
        until = None if length is None else client.store.now() + length
        await client.roles.grant(
            subject, role, resource=resource, until=until, reason=reason, everybody=everybody
        )
        return is_first

    is_first = session.call(work)
    say(f"granted: {role} to {subject}")
    if is_first:
        note("from now on nobody holds a role who was not granted it; you administer them")


@roles.command("revoke")
@stored
def revoke(
    session: Session,
    subject: Subject,
    role: Role,
    resource: Annotated[
        str, typer.Option("--resource", metavar="GLOB", help="As it was granted; all by default.")
    ] = "",
    reason: Reason = "",
    everybody: Everybody = False,
) -> None:
    """Take a role from somebody, and from those to whom they lent it; or take back what you lent."""
    session.call(
        lambda client: client.roles.revoke(
            subject, role, resource=resource or None, reason=reason, everybody=everybody
        )
    )
    say(f"revoked: {role} of {subject}")


@roles.command("delegate")
@stored
def delegate(
    session: Session,
    role: Role,
    subject: Subject,
    length: Annotated[
        timedelta,
        typer.Option("--for", parser=time_length, metavar="LENGTH", help="For how long, as 7d."),
    ],
    resource: Resource = "*",
    reason: Reason = "",
) -> None:
    """Lend a role that you hold yourself; what your delegate says counts as said by you, too."""

    async def work(client: Client) -> datetime:
        until = client.store.now() + length
        await client.roles.delegate(role, subject, until=until, resource=resource, reason=reason)
        return until

    say(f"lent: {role} to {subject}, until {at(session.call(work))}")
