"""`outlast release`: what may go on whose workers are paused."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.output import say
from outlast.cli.session import Session, stored, usage_error


@stored
def release(
    session: Session,
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Ids of runs.")] = None,
    workflow: Annotated[
        str, typer.Option(metavar="NAME", help="All open runs of this workflow.")
    ] = "",
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="All runs of all tenants: paused workers go on with everything."
        ),
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust/--careful",
            help="After a restore: vouch that nothing was forgotten; else effects that have no outcome are held to have been attempted.",
        ),
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; kept.")] = "",
) -> None:
    """Let runs go on whose workers are paused: after `outlast worker MODULE --paused`, or after a restore of the store."""
    if not reason.strip():
        raise usage_error("say why with --reason; it is kept")
    named = runs or []
    if bool(named) + bool(workflow) + everything != 1:
        raise usage_error("name runs, or --workflow NAME, or --all")
    count = session.call(
        lambda client: client.release(
            *named, workflow=workflow, everything=everything, trust=trust, reason=reason
        )
    )
    how = "nothing of it was forgotten" if trust else "what was restored goes on with care"
    if everything:
        say(f"released: everything ({how})")
    else:
        say(f"released: {count} {'run' if count == 1 else 'runs'} ({how})")
