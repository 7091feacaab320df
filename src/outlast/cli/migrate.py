"""`outlast migrate`: the tables of a store are brought up to date, and roles of PostgreSQL get their rights."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from outlast.app import migrate_store, rights_of, store_place
from outlast.cli.output import note, say, say_lines
from outlast.cli.session import Session, stored, usage_error
from outlast.store.migrate import PHASES


@stored
def migrate(  # noqa: PLR0913 - each is an option
    session: Session,
    phase: Annotated[
        Literal["pre", "post"] | None,
        typer.Option(
            help="`pre` before new code is deployed, `post` once no old process is left; else both."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; exit status 1 when something is missing."),
    ] = False,
    partitions: Annotated[
        int,
        typer.Option(
            min=0,
            max=1024,
            help="Of a new store in PostgreSQL: divide each table of runs into so many.",
        ),
    ] = 0,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE", help="Let this role of PostgreSQL run workers and clients, and no more."
        ),
    ] = None,
    grant_read: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help="Let this role of PostgreSQL read, and no more."),
    ] = None,
    print_grants: Annotated[
        bool,
        typer.Option("--print-grants", help="Only print the SQL of the grants; change nothing."),
    ] = False,
) -> None:
    """Bring the store's tables up to date, and make it where there is none."""
    roles = [(role, False) for role in grant or ()] + [(role, True) for role in grant_read or ()]
    if print_grants:
        if not roles:
            raise usage_error("--print-grants needs --grant ROLE or --grant-read ROLE")
        for role, read_only in roles:
            say_lines("\n".join(rights_of(session.database, role, read_only=read_only)))
        return
    if check and roles:
        raise usage_error("--check changes nothing, and so grants nothing")
    phases = PHASES if phase is None else (phase,)
    found = migrate_store(session.database, phases=phases, check=check, partitions=partitions)
    for one in found:
        say(f"{'missing' if check else 'applied'} {one.title}")
    if not found:
        note(f"{store_place(session.database)} is up to date")
    for role, read_only in roles:
        rights_of(session.database, role, read_only=read_only, give=True)
        say(f"granted {'reading' if read_only else 'work'} to {role}")
    if check and found:
        raise typer.Exit(1)
