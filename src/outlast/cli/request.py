"""`outlast requests`: look at requests that came with an idempotency key, and say what became of one that nobody has ended.

Invariant: what is said is said of the record that this terminal showed, or of the one whose token was given; never of one that was
looked up for it.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from outlast.cli.answer import TEMPLATE, check_answer, is_guarded, unreadable_part
from outlast.cli.output import print_json, print_table, say, say_lines
from outlast.cli.session import Session, at_terminal, stored, usage_error
from outlast.cli.text import ago, at, counted, length, safe
from outlast.client import Client, RequestView
from outlast.errors import OutlastError, RequestStateError

requests = typer.Typer(
    no_args_is_help=True,
    help="Look at requests that came with an idempotency key, and resolve those in doubt.",
)

Request = Annotated[
    str, typer.Argument(metavar="REQUEST", help="The hash that `requests list` shows.")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document; note and answer are in base64."),
]

_SHOWN = 2000
"""Characters of a note or an answer that are printed."""


class State(StrEnum):
    """A state as it is typed, without a blank."""

    RUNNING = "running"
    DONE = "done"
    IN_DOUBT = "in-doubt"
    FREED = "freed"
    EXPIRED = "expired"


@requests.command("list")
@stored
def list_requests(
    session: Session,
    state: Annotated[
        State | None, typer.Option(help="Only these; all but expired ones by default.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most so many, the newest first.")
    ] = 50,
    as_json: Json = False,
) -> None:
    """List requests, newest first."""
    wanted: Any = None if state is None else state.value.replace("-", " ")
    found = session.call(lambda client: client.requests.list(state=wanted, limit=limit))
    if as_json:
        print_json(found)
    elif not found:
        say(f"no request is {wanted}" if wanted else "no requests")
    else:
        print_table(
            ("REQUEST", "STATE", "BEGUN", "NOTE"),
            [(one.request_id, one.state, at(one.started_at), _line(one.note)) for one in found],
        )


@requests.command("show")
@stored
def show_request(session: Session, request: Request, as_json: Json = False) -> None:
    """Show a request: where it stands, who has it, what was answered, and what can be done."""
    view = session.call(_find(request))
    if as_json:
        print_json(view)
        return
    show(view)
    resolve_words = ("requests", "resolve", view.request_id, "--token", view.token)
    if view.state == "in doubt":
        say("nobody knows what became of it: look it up, then say so")
        say(f"  {session.command(*resolve_words, '--not-applied', '--reason', 'TEXT')}")
    elif (why := unreadable_part(view)) and view.resolved_at is not None:
        say(f"{why}: whoever comes with the key is told that it was not kept. Give another one")
    else:
        return
    say(f"  {session.command(*resolve_words, '--applied', 'FILE', '--reason', 'TEXT')}")
    if is_guarded(view.note):
        say("the FILE holds the answer that its client gets, as JSON:")
        say(f"  {TEMPLATE}")


@requests.command("resolve")
@stored
def resolve(
    session: Session,
    request: Request,
    applied: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="It happened; the file (- for standard input) holds what is answered from now on, as the code that ends requests keeps it. "
            f"That of a request that came by HTTP is JSON: {TEMPLATE}",
        ),
    ] = None,
    not_applied: Annotated[
        bool, typer.Option("--not-applied", help="It did not happen; the key is free again.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the request.")] = "",
    token: Annotated[
        str,
        typer.Option(
            "--token",
            help="That `requests show` printed; without it, the request is shown and asked.",
        ),
    ] = "",
) -> None:
    """Say what became of a request in doubt; or mend an operator's answer that cannot be read."""
    if (applied is not None) + not_applied != 1:
        raise usage_error("say one of --applied FILE and --not-applied")
    if not reason:
        raise usage_error("say why: --reason TEXT")
    answer = None if applied is None else _read(applied)
    request = _id(request)
    view = session.call(_find(request))
    corrects = None
    if answer is not None:
        check_answer(view, answer)
        corrects = view.resolved_at if unreadable_part(view) else None
    if not token:
        token = _seen(view, answer, is_mended=corrects is not None)
    session.call(
        lambda client: client.requests.resolve(
            request, answer=answer, reason=reason, seen_token=token, corrects=corrects
        )
    )
    what = "the key is free again" if answer is None else "that is answered from now on"
    say(f"resolved: request {request}; {what}")


@requests.command("purge")
@stored
def purge(session: Session) -> None:
    """Remove expired requests now; each request that begins removes a few of them anyway."""
    removed = session.call(lambda client: client.requests.purge())
    say(f"removed: {counted(removed, 'expired request')}")


def show(view: RequestView) -> None:
    """Print a request."""
    say(f"{'request':<13}{view.request_id}")
    say(f"{'state':<13}{view.state}")
    say(f"{'begun':<13}{ago(view.started_at, view.now)}")
    if view.state == "running":
        left = length(view.held_until - view.now)
        say(f"{'held':<13}for {left} more, unless it is renewed or ends")
    elif view.state == "in doubt":
        say(f"{'held':<13}until {ago(view.held_until, view.now)}, and not ended")
    if view.expires_at is not None:
        say(f"{'kept':<13}until {ago(view.expires_at, view.now)}")
    say(f"{'token':<13}{view.token}")
    say(f"{'fingerprint':<13}{view.fingerprint}")
    if view.resolved_at is not None:
        by = view.by or "somebody"
        say(f"{'resolved':<13}{ago(view.resolved_at, view.now)}, by {by}: {view.reason}")
    if view.note:
        say(f"{'note':<13}{_line(view.note)}")
    if view.answer is not None:
        say(f"{'answer':<13}{counted(len(view.answer), 'byte')}")
        say_lines(_text(view.answer))


def _seen(view: RequestView, answer: bytes | None, *, is_mended: bool) -> str:
    """Show a request, ask whether this is to be said of it, and return its token."""
    if not at_terminal():
        raise usage_error(
            "to resolve a request without a terminal, give --token: the one that `outlast requests show` printed"
        )
    show(view)
    if view.state != "in doubt" and not is_mended:
        say(f"nothing is to be said: it is {view.state}")
        raise typer.Exit(1)
    said = "did not happen" if answer is None else f"happened ({counted(len(answer), 'byte')})"
    if not typer.confirm(f"Say that exactly this {said}?"):
        say("nothing was said")
        raise typer.Exit(1)
    return view.token


def _find(request: str) -> Any:
    request_id = _id(request)

    async def work(client: Client) -> RequestView:
        found = await client.requests.find(request_id)
        if found is None:
            raise RequestStateError(
                f"there is no request {request_id}, or it is kept no longer",
                reason="unknown",
                hint="see `outlast requests list`, and check the database and the tenant",
            )
        return found

    return work


def _id(request: str) -> str:
    found = request.strip().lower()
    if len(found) != 64 or not set(found) <= set("0123456789abcdef"):
        raise usage_error(
            f"{safe(request[:80])!r} is the hash of no request; give all 64 digits 0-9a-f that `outlast requests list` prints"
        )
    return found


def _read(place: str) -> bytes:
    if place == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(place).read_bytes()
    except OSError as error:
        raise OutlastError(
            f"{place} cannot be read: {error.strerror or error}",
            hint="name the file that holds the answer: --applied FILE",
        ) from None


def _line(data: bytes) -> str:
    return " ".join(_text(data).split())


def _text(data: bytes) -> str:
    try:
        text = data[: 4 * _SHOWN].decode(errors="strict" if len(data) <= 4 * _SHOWN else "ignore")
    except UnicodeDecodeError:
        return f"({counted(len(data), 'byte')} that are no text; --json shows them in base64)"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
