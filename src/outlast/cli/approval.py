"""`outlast approvals`: see what is asked, and decide on exactly what was seen.

Invariant: a decision carries the hash of what this terminal showed, or the hash that was given; never one that was looked up for it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

import typer
from rich.syntax import Syntax

from outlast.cli.output import console, print_json, print_table, say, say_lines
from outlast.cli.session import Session, at_terminal, stored, usage_error
from outlast.cli.text import ago, at, counted, hidden_count, json_text, safe
from outlast.client import ApprovalView, Client

_PAGE = 1000

approvals = typer.Typer(no_args_is_help=True, help="See what people are asked, and decide.")

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Approval = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="May be left out when one request waits.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")]
Hash = Annotated[
    str,
    typer.Option(
        "--hash", metavar="SHA256", help="Of what was seen; without it, it is shown and asked."
    ),
]


@approvals.command("list")
@stored
def list_approvals(
    session: Session,
    run: Annotated[str, typer.Option(help="Only of this run.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Decided and expired ones too.")] = False,
    as_json: Json = False,
) -> None:
    """List requests that wait for a decision, oldest first."""
    found = session.call(lambda client: _all(client, run, pending=not every))
    if as_json:
        print_json(found)
    elif not found:
        say("no request waits" if not every else "no requests")
    else:
        print_table(
            ("RUN", "APPROVAL", "STATE", "ROLE", "COVERS", "DECIDE BEFORE"),
            [
                (
                    one.run_id,
                    one.approval_id,
                    one.state,
                    one.role,
                    ", ".join(str(cover["effect"]) for cover in one.subject["covers"]),
                    at(one.expires_at),
                )
                for one in found
            ],
        )


async def _all(client: Client, run: str, *, pending: bool) -> list[ApprovalView]:
    """Return all requests, read page by page."""
    found: list[ApprovalView] = []
    while True:
        after = found[-1] if found else None
        page = await client.approvals.list(pending=pending, run_id=run, limit=_PAGE, after=after)
        found += page
        if len(page) < _PAGE:
            return found


@approvals.command("show")
@stored
def show_approval(
    session: Session, run: Run, approval: Approval = "", as_json: Json = False
) -> None:
    """Show what is asked: the subject, the actions that a yes covers, the hash, the deadlines."""
    view, now = session.call(_get(run, approval))
    if as_json:
        print_json(view)
    else:
        show(view, now)


@approvals.command("approve")
@stored
def approve(
    session: Session, run: Run, approval: Approval = "", reason: Reason = "", seen: Hash = ""
) -> None:
    """Say yes to exactly what was shown."""
    _decide(session, (run, approval), reason, seen, yes=True)


@approvals.command("deny")
@stored
def deny(
    session: Session, run: Run, approval: Approval = "", reason: Reason = "", seen: Hash = ""
) -> None:
    """Say no."""
    _decide(session, (run, approval), reason, seen, yes=False)


def show(view: ApprovalView, now: Any) -> None:
    """Print a request."""
    shown = view.subject["subject"]
    say(f"{'run':<11}{view.run_id}")
    say(f"{'approval':<11}{view.approval_id}")
    say(f"{'state':<11}{view.state}" + (f" by {view.by}" if view.by else ""))
    say(f"{'role':<11}{view.role or 'anybody'}")
    say(f"{'asked':<11}{ago(view.requested_at, now)}")
    say(f"{'decide':<11}before {ago(view.expires_at, now)}")
    say(f"{'use':<11}covered effects begin before {ago(view.use_by, now)}")
    diff = _diff_of(shown)
    say("subject")
    say_lines(json_text({**shown, "diff": "(below)"} if diff else shown))
    if diff:
        say("diff")
        _print_diff(diff)
    say("a yes covers")
    for cover, spent in zip(view.subject["covers"], view.spent, strict=True):
        say(_cover_text(cover, spent))
    say(f"{'sha256':<11}{view.subject_sha256}")


def _diff_of(shown: Any) -> str:
    if isinstance(shown, dict):
        diff = cast("dict[str, Any]", shown).get("diff")
        return diff if isinstance(diff, str) else ""
    return ""


def _print_diff(diff: str) -> None:
    text = safe(diff, lines=True).rstrip("\n")
    screen = console()
    if screen.is_terminal:
        screen.print(
            Syntax(text, "diff", theme="ansi_dark", background_color="default", word_wrap=True)
        )
    else:
        say_lines(text)
    if hidden := hidden_count(diff):
        say(
            f"({counted(hidden, 'character')} of the diff hidden from the eye or obeyed by terminals, shown escaped)"
        )


def _cover_text(cover: dict[str, Any], spent: str) -> str:
    fields = ", ".join(
        f"{name}={json_text(value, indent=None)}" for name, value in cover["arguments"].items()
    )
    kind = "this call, once" if cover["kind"] == "call" else "any one call with these fields"
    used = f"; used by {spent}" if spent else ""
    undo = f"; undone by {safe(str(cover['compensate']))}" if cover.get("compensate") else ""
    return f"  {cover['effect']}({fields})  {kind}{undo}{used}"


def _get(run: str, approval: str) -> Any:
    async def work(client: Client) -> tuple[ApprovalView, Any]:
        return await client.approvals.get(run, approval), client.store.now()

    return work


def _decide(session: Session, which: tuple[str, str], reason: str, seen: str, *, yes: bool) -> None:
    run, approval = which
    word = "approve" if yes else "deny"
    seen = seen.strip().lower()
    if seen and not re.fullmatch(r"[0-9a-f]{64}", seen):
        raise usage_error(
            "--hash is the whole SHA-256 that `outlast approvals show` prints: 64 digits 0-9a-f"
        )
    if not seen:
        if not at_terminal():
            raise usage_error(
                f"to {word} without a terminal, give --hash: the SHA-256 that `outlast approvals show` printed"
            )
        view, now = session.call(_get(run, approval))
        show(view, now)
        if view.state != "pending":
            say(f"nothing is to be decided: it is {view.state}")
            raise typer.Exit(1)
        if not typer.confirm(f"{word.capitalize()} exactly this ({view.subject_sha256[:12]}…)?"):
            say("nothing was decided")
            raise typer.Exit(1)
        approval, seen = view.approval_id, view.subject_sha256

    async def work(client: Client) -> tuple[str, str]:
        found = approval or (await client.approvals.get(run)).approval_id
        verb = client.approvals.approve if yes else client.approvals.deny
        await verb(run, found, seen_sha256=seen, reason=reason)
        return found, client.principal

    decided, by = session.call(work)
    say(f"{'approved' if yes else 'denied'}: {decided} of run {run}, by {by}")
