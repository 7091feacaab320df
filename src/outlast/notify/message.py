"""What people read of a request: plain text, with what the run wrote marked as such.

Invariant: nothing that a run, a model or a remote system wrote becomes a link, a mention or a line of ours: control and direction characters
are shown escaped, what services would make something of is written as JSON writes it, and each line is quoted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from outlast.approvals.text import ago, json_text, safe, typed
from outlast.journal.entry import ENTRY_NESTING, ApprovalRequested
from outlast.journal.parse import NotJsonError, parse, parse_as
from outlast.notify.setting import Show
from outlast.store.change import ApprovalRow, DueNotice
from outlast.store.notice import ASKED, NoticeRow

_SUMMARY_LENGTH = 200
_FULL_LENGTH = 10_000
_MOST_EFFECTS = 20
_HASH_DIGITS = 12
_INERT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "@": "\\u0040"})


class _Cover(Struct, frozen=True):
    effect: str
    arguments: dict[str, Any]


class _Subject(Struct, frozen=True):
    subject: Any
    covers: list[_Cover]


@cache
def _requests() -> msgspec.json.Decoder[ApprovalRequested]:
    return msgspec.json.Decoder(ApprovalRequested)


@cache
def _subjects() -> msgspec.json.Decoder[_Subject]:
    return msgspec.json.Decoder(_Subject)


class Text(Struct, frozen=True):
    """A message."""

    title: str
    body: str


def notice_id(notice: NoticeRow) -> str:
    """Return what is the same for each sending of one notice, and for no other one: 32 hex digits."""
    names = (notice.tenant, notice.run_id, notice.generation, notice.approval_id, notice.notice)
    return hashlib.sha256(msgspec.json.encode(names)).hexdigest()[:32]


def message_of(due: DueNotice, show: Show, link: str, now: datetime) -> Text:
    """Return what people are told.

    Args:
        link: To what shows it; empty for none.
    """
    request, subject = _asked_in(due.asked)
    put = due.asked.put
    is_question = put.kind == "question"
    name = f"run {inert(due.asked.run.run_id)}"
    why = _why(due.notice, request)
    title = f"{why[0]}{inert(put.role)}: {'a question' if is_question else 'an approval'} waits in {name}"
    asks = "asks a question" if is_question else "asks for a yes"
    lines = [f"Workflow {inert(due.workflow)}, {name}, {asks}.", *why[1:]]
    lines += ["", *_terms(due.asked, now), ""]
    if subject is None:
        lines += ["What is asked cannot be read, or has another hash: decide nothing.", ""]
    elif show != "nothing":
        lines += [*_action(subject, show), ""]
    lines += ["To look at it, and to decide:", *_commands(due.asked), ""]
    if link:
        lines += ["This link shows it. It decides nothing, whoever opens it:", link, ""]
    return Text(title, "\n".join(lines))


def inert(text: str) -> str:
    """Return text from elsewhere as it is shown in a message: no link and no mention to any service."""
    return safe(text).translate(_INERT).replace("://", ":\\u002f\\u002f")


def _why(notice: NoticeRow, request: ApprovalRequested | None) -> tuple[str, ...]:
    """Return how the title begins, and the sentence that says why this comes."""
    if notice.notice != ASKED:
        return "Reminder: ", "Nobody has decided yet, or not enough have."
    if request is not None and request.again == "escalated":
        return "Escalated to ", "Those who were asked before did not decide in time."
    if request is not None and request.again:
        return "Asked again: ", f"It takes the place of a request that was closed: {request.again}."
    return ("",)


def _terms(row: ApprovalRow, now: datetime) -> Iterator[str]:
    put = row.put
    yield f"role      {inert(put.role)}"
    quorum = 1 if put.terms is None else put.terms.quorum
    if quorum > 1:
        yield f"votes     {len(row.votes)} of {quorum}"
    if put.terms is not None and put.terms.four_eyes:
        yield "who       not whoever started the run"
    yield f"decide    before {ago(put.expires_at, now)}"
    yield f"sha256    {inert(put.subject_sha256[:_HASH_DIGITS])}…"


def _action(asked: _Subject, show: Show) -> Iterator[str]:
    if asked.covers:
        yield "A yes permits, once each:"
    for cover in asked.covers[:_MOST_EFFECTS]:
        fields = json_text(cover.arguments, indent=None) if show == "full" else ""
        yield f"  {inert(cover.effect)} {inert(_cut(fields, _FULL_LENGTH))}".rstrip()
    if len(asked.covers) > _MOST_EFFECTS:
        yield f"  and {len(asked.covers) - _MOST_EFFECTS} more"
    yield "What the run wrote about it (its words, not Outlast's):"
    full = show == "full"
    text = json_text(asked.subject, indent=2 if full else None)
    for line in _cut(text, _FULL_LENGTH if full else _SUMMARY_LENGTH).split("\n"):
        yield f"| {inert(line)}"


def _commands(row: ApprovalRow) -> Iterator[str]:
    tenant = [] if row.run.tenant == "default" else ["--tenant", row.run.tenant]
    verbs = ("show", "answer") if row.put.kind == "question" else ("show", "approve", "deny")
    for verb in verbs:
        words = ["approvals", verb, row.run.run_id, row.put.approval_id]
        yield f"  {safe(typed(tenant, words))}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _asked_in(row: ApprovalRow) -> tuple[ApprovalRequested | None, _Subject | None]:
    """Return the request that a row holds, and what it asks; nothing where that cannot be read, or has not the hash under which it is asked."""
    try:
        request = parse_as(_requests(), row.put.body, nesting=ENTRY_NESTING)
        body = bytes(request.subject)
        if hashlib.sha256(body).hexdigest() != row.put.subject_sha256:
            return request, None
        parse(body, nesting=ENTRY_NESTING)
        return request, parse_as(_subjects(), body, nesting=ENTRY_NESTING)
    except NotJsonError:
        return None, None
