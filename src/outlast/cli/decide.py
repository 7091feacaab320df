"""How each decision is made: on the hash that was given, or on what this terminal has shown and somebody has confirmed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import typer

from outlast.cli.output import say
from outlast.cli.session import Session, at_terminal, usage_error
from outlast.client import ApprovalView, Client

Show = Callable[[ApprovalView, Any], None]


@dataclass(frozen=True, slots=True)
class Act:
    """What is decided.

    Args:
        word: For the question, as `approve`.
        done: For the result, as `approved`.
        work: Decides, given the client, the id and the hash.
        show: Prints more of what is about to be decided, given the request.
    """

    word: str
    done: str
    work: Callable[[Client, str, str], Awaitable[None]]
    show: Callable[[ApprovalView], None] = lambda _: None


def decide(session: Session, which: tuple[str, str], seen: str, act: Act, show: Show) -> None:
    """Decide on exactly what was seen.

    Args:
        which: The run, and the request, which may be empty where one waits.
        seen: The hash that was typed; empty to be shown and asked.
        show: Prints a request, given the time.
    """
    run, approval = which
    seen = seen.strip().lower()
    if seen and not re.fullmatch(r"[0-9a-f]{64}", seen):
        raise usage_error(
            "--hash is the whole SHA-256 that `outlast approvals show` prints: 64 digits 0-9a-f"
        )
    if not seen:
        approval, seen = _confirmed(session, which, act, show)

    async def work(client: Client) -> tuple[str, str]:
        found = approval or (await client.approvals.get(run)).approval_id
        await act.work(client, found, seen)
        return found, client.principal

    decided, by = session.call(work)
    say(f"{act.done}: {decided} of run {run}, by {by}")


def _confirmed(session: Session, which: tuple[str, str], act: Act, show: Show) -> tuple[str, str]:
    """Return id and hash of what was shown and confirmed."""
    if not at_terminal():
        raise usage_error(
            f"to {act.word} without a terminal, give --hash: the SHA-256 that `outlast approvals show` printed"
        )
    view, now = session.call(look(*which))
    show(view, now)
    if view.state != "pending":
        say(f"nothing is to be decided: it is {view.state}")
        raise typer.Exit(1)
    act.show(view)
    if not typer.confirm(f"{act.word.capitalize()} exactly this ({view.subject_sha256[:12]}…)?"):
        say("nothing was decided")
        raise typer.Exit(1)
    return view.approval_id, view.subject_sha256


def look(run: str, approval: str) -> Any:
    """Return what looks a request up, with the store's time."""

    async def work(client: Client) -> tuple[ApprovalView, Any]:
        return await client.approvals.get(run, approval), client.store.now()

    return work
