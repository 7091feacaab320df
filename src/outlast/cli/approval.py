"""`outlast approvals`: see what is asked, and decide on exactly what was seen.

Invariant: a decision carries the hash of what this terminal showed, or the hash that was given; never one that was looked up for it.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Any, cast

import typer
from rich.syntax import Syntax

from outlast.cli import stick
from outlast.cli.decide import Act, decide, look
from outlast.cli.output import console, print_json, print_table, say, say_lines
from outlast.cli.run import Modules
from outlast.cli.session import Session, json_of, stored, time_length, usage_error
from outlast.cli.text import ago, at, counted, hidden_count, json_text, safe
from outlast.cli.worker import author_errors, load
from outlast.client import ApprovalView, Client, NextAsked, Sticky, Told
from outlast.client.approval import check_answer, check_edit, check_sticky, edited
from outlast.store.notice import ASKED

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
            ("RUN", "APPROVAL", "STATE", "ROLE", "VOTES", "COVERS", "DECIDE BEFORE"),
            [
                (
                    one.run_id,
                    one.approval_id,
                    one.state,
                    one.role or "anybody",
                    f"{len(one.votes)}/{one.quorum}",
                    _covered(one),
                    at(one.expires_at),
                )
                for one in found
            ],
        )


def _covered(one: ApprovalView) -> str:
    if one.kind == "question":
        return "(a question)"
    return ", ".join(str(cover["effect"]) for cover in one.subject["covers"])


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
    view, now = session.call(look(run, approval))
    if as_json:
        print_json(view)
    else:
        show(view, now)


@approvals.command("approve")
@stored
def approve(  # noqa: PLR0913 - each parameter is an option of the command
    session: Session,
    run: Run,
    approval: Approval = "",
    reason: Reason = "",
    seen: Hash = "",
    reach: stick.Reach = "",
    same: stick.Same = None,
    any_arguments: stick.AnyArguments = False,
    when: stick.When = None,
    uses: stick.Uses = None,
    lasts: stick.Lasts = None,
) -> None:
    """Say yes to exactly what was shown; with --sticky to later calls, too."""
    sticky = stick.sticky_of(reach, same, when, uses, lasts, any_arguments=any_arguments, yes=True)
    _decide(session, (run, approval), reason, seen, yes=True, sticky=sticky)


@approvals.command("deny")
@stored
def deny(  # noqa: PLR0913 - each parameter is an option of the command
    session: Session,
    run: Run,
    approval: Approval = "",
    reason: Reason = "",
    seen: Hash = "",
    reach: stick.Reach = "",
    same: stick.Same = None,
    any_arguments: stick.AnyArguments = False,
    when: stick.When = None,
    uses: stick.Uses = None,
    lasts: stick.Lasts = None,
) -> None:
    """Say no; with --sticky to later calls, too."""
    sticky = stick.sticky_of(reach, same, when, uses, lasts, any_arguments=any_arguments, yes=False)
    _decide(session, (run, approval), reason, seen, yes=False, sticky=sticky)


@approvals.command("edit")
@stored
def edit(  # noqa: PLR0913 - each parameter is an option of the command
    session: Session,
    run: Run,
    approval: Approval = "",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CALL.ARGUMENT=JSON",
            help="What an argument of a covered call is to be, as 0.amount=5; calls are numbered from 0. May be repeated.",
        ),
    ] = None,
    arguments: Annotated[
        str,
        typer.Option(metavar="JSON", help='The same as one document, as {"0": {"amount": 5}}.'),
    ] = "",
    reason: Reason = "",
    seen: Hash = "",
    modules: Modules = None,
) -> None:
    """Say what it should be instead: another request is made of that, with a hash of its own.

    At a terminal, where --module gives the code, what the effect does not take is refused before you are asked.
    """
    wanted = _edits(changes or [], arguments)
    with author_errors():
        for module in modules or ():
            load(module)

    async def work(client: Client, which: str, sha256: str) -> None:
        await client.approvals.edit(run, which, seen_sha256=sha256, arguments=wanted, reason=reason)

    def show_edited(view: ApprovalView) -> None:
        edits = edited(view, wanted)
        check_edit(view, edits)
        say("it should be instead")
        for one in edits:
            cover = view.subject["covers"][one.cover]
            say(_cover_text({**cover, "arguments": json_of(bytes(one.arguments).decode())}, ""))

    decide(session, (run, approval), seen, Act("edit", "edited", work, show_edited), show)


@approvals.command("answer")
@stored
def answer(
    session: Session,
    run: Run,
    approval: Approval = "",
    value: Annotated[
        str, typer.Option("--value", metavar="JSON", help="The answer; a text needs its quotes.")
    ] = "",
    reason: Reason = "",
    seen: Hash = "",
) -> None:
    """Answer a question."""
    if not value:
        raise usage_error("what the answer is says --value, as --value 5 or --value '\"yes\"'")
    given = json_of(value)

    async def work(client: Client, which: str, sha256: str) -> None:
        await client.approvals.answer(run, which, given, seen_sha256=sha256, reason=reason)

    def show_answer(view: ApprovalView) -> None:
        check_answer(view, given)
        say("your answer")
        say_lines(json_text(given))

    decide(session, (run, approval), seen, Act("answer", "answered", work, show_answer), show)


@approvals.command("delegate")
@stored
def delegate(
    session: Session,
    run: Run,
    approval: Annotated[str, typer.Argument(metavar="APPROVAL", help="The request's id.")],
    to: Annotated[str, typer.Option("--to", metavar="SUBJECT", help="Who decides, too.")],
    length: Annotated[
        timedelta,
        typer.Option("--for", parser=time_length, metavar="LENGTH", help="For how long, as 7d."),
    ],
    reason: Reason = "",
) -> None:
    """Lend your role to somebody, for the workflow of a request."""

    async def work(client: Client) -> str:
        until = client.store.now() + length
        await client.approvals.delegate(run, approval, to, until=until, reason=reason)
        return at(until)

    say(f"{to} may decide in your place until {session.call(work)}")


_SET = re.compile(r"(\d{1,6})\.([^=]+)=(.*)", re.DOTALL)


def _edits(changes: list[str], document: str) -> dict[int, dict[str, Any]]:
    """Return what was typed to be edited, by number of the call."""
    found: dict[int, dict[str, Any]] = {}
    for place, fields in _mapping(json_of(document)).items() if document else ():
        if not place.isdecimal() or len(place) > _DIGITS or not isinstance(fields, dict):
            raise usage_error(
                '--arguments is an object by number of the call, as {"0": {"amount": 5}}'
            )
        found[int(place)] = cast("dict[str, Any]", fields)
    for text in changes:
        match = _SET.fullmatch(text)
        if match is None:
            raise usage_error(f"--set {safe(text[:80])!r} is not CALL.ARGUMENT=JSON, as 0.amount=5")
        found.setdefault(int(match[1]), {})[match[2]] = json_of(match[3])
    if not found:
        raise usage_error("what it should be says --set CALL.ARGUMENT=JSON, or --arguments JSON")
    return found


_DIGITS = 6


def show(view: ApprovalView, now: Any) -> None:
    """Print a request."""
    for name, text in _facts(view, now):
        say(f"{name:<11}{text}")
    shown = view.subject["subject"]
    diff = _diff_of(shown)
    say("subject")
    say_lines(json_text({**shown, "diff": "(below)"} if diff else shown))
    if diff:
        say("diff")
        _print_diff(diff)
    _show_rest(view)
    say(f"{'sha256':<11}{view.subject_sha256}")


def _facts(view: ApprovalView, now: Any) -> list[tuple[str, str]]:
    """Return what is known of a request beside what is asked."""
    facts = [
        ("run", view.run_id),
        ("approval", view.approval_id),
        ("state", view.state + (f" by {view.by}" if view.by else "")),
        ("role", view.role or "anybody"),
        ("votes", _votes_text(view)),
        ("not by", _barred_text(view)),
        ("because", _why_text(view)),
        ("asked", ago(view.requested_at, now)),
        *(("told", _told_text(one, now)) for one in view.told),
        ("decide", f"before {ago(view.expires_at, now)}"),
        *(("next", _next_text(one, now)) for one in view.next),
    ]
    if view.kind == "approval":
        if view.sticky != "no":
            facts.append(("may stick", f"as far as the {view.sticky} (--sticky)"))
        facts.append(("use", f"covered effects begin before {ago(view.use_by, now)}"))
        facts.append(("edit", _EDITS[view.edits]))
    return [(name, text) for name, text in facts if text]


_EDITS = {
    "no": "no: it is approved as it is, or denied",
    "yes": "is allowed, and is a yes to what it makes of the call",
    "second": "is allowed; somebody else has to approve what it makes of the call",
}
"""What an edit is."""


def _told_text(one: Told, now: datetime) -> str:
    """Return what came of telling people, and what is still to come."""
    name = "" if one.notice == ASKED else f"{one.notice}: "
    by = f"by {', '.join(one.reached)}" if one.reached else ""
    if one.state == "sent":
        return f"{name}{by or 'nobody'}"
    if one.trouble:
        again = "" if one.state == "failed" else f"; tried again {ago(one.due_at, now)}"
        return f"{name}{by}{', and ' if by else ''}not sent: {one.trouble}{again}"
    if one.tries:
        return f"{name}is being sent"
    return f"{name}to be sent {ago(one.due_at, now)}" if one.due_at > now else f"{name}nobody yet"


def _next_text(one: NextAsked, now: datetime) -> str:
    return f"{one.role or 'anybody'}, from {ago(one.at, now)}, before {ago(one.expires_at, now)}"


def _votes_text(view: ApprovalView) -> str:
    if not (view.votes or view.quorum > 1):
        return ""
    said = [
        one.by
        + (f" for {one.behalf}" if one.behalf else "")
        + (f" on {one.approval} of {one.run}, by decision {one.sticky}" if one.sticky else "")
        for one in view.votes
    ]
    missing = f", {view.missing} missing" if view.missing else ""
    return f"{len(said)} of {view.quorum}{missing}" + (f": {', '.join(said)}" if said else "")


def _barred_text(view: ApprovalView) -> str:
    own = view.requesters if view.four_eyes else ()
    return ", ".join(dict.fromkeys((*own, *view.barred)))


def _why_text(view: ApprovalView) -> str:
    asked = {
        "declared": "the effect's declaration wants it",
        "policy": f"rule {view.rule} of policy {view.policy_version} wants it",
        "purpose": "another call had the same purpose",
    }
    again = {
        "escalated": "nobody decided in time",
        "edited": "an approver edited what was asked",
        "changed": "the arguments are written otherwise than they were",
        "unfit": "the answer, or the edit, did not fit",
    }
    note = view.subject.get("note")
    parts = [asked.get(view.source, ""), again.get(view.again, ""), str(note) if note else ""]
    return "; ".join(one for one in parts if one)


def _show_rest(view: ApprovalView) -> None:
    """Print what a yes covers and rests on, or which answers fit."""
    for name, fact in _mapping(view.subject.get("preconditions")).items():
        say(f"  rests on {name} = {json_text(_mapping(fact).get('value'), indent=None)}")
    if view.kind == "question":
        say("an answer fits")
        say_lines(json_text(view.schema))
        return
    say("a yes covers")
    for cover, spent in zip(view.subject["covers"], view.spent, strict=True):
        say(_cover_text(cover, spent))
    for one in view.changes:
        was, becomes = (json_text(value, indent=None) for value in (one.was, one.becomes))
        say(f"  edited in call {one.cover}: {one.field} was {was}, is {becomes}")


def _mapping(given: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


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
    version = f" version {safe(str(cover['version']))}" if cover.get("version") else ""
    return f"  {cover['effect']}({fields}){version}  {kind}{undo}{used}"


def _decide(
    session: Session,
    which: tuple[str, str],
    reason: str,
    seen: str,
    *,
    yes: bool,
    sticky: Sticky | None,
) -> None:
    word = "approve" if yes else "deny"

    async def work(client: Client, approval: str, sha256: str) -> None:
        verb = client.approvals.approve if yes else client.approvals.deny
        await verb(which[0], approval, seen_sha256=sha256, reason=reason, sticky=sticky)

    def show_reach(view: ApprovalView) -> None:
        if sticky is not None:
            check_sticky(view, sticky, yes=yes)
            say(f"it sticks, too: {stick.text(sticky)}")

    done = "approved" if yes else "denied"
    decide(session, which, seen, Act(word, done, work, show_reach), show)
