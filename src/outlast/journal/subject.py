"""What a person is asked, as it is shown and hashed: a subject, the actions that a yes covers, the facts on which it rests.

What is shown is what is hashed, and what is hashed is what a decision must carry. A request that follows another one is made of what was
recorded of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from outlast.journal.asking import Precondition
from outlast.journal.canonical import canonical, sha256_of
from outlast.journal.entry import ENTRY_NESTING, Cover
from outlast.journal.parse import NotJsonError, parse

NOTE = "note"
"""In what is shown of a request that follows another one: why that one was of no use."""


class Subject(Struct, frozen=True):
    """The request as JSON, and its hash."""

    body: Raw
    sha256: str


def subject_of(
    shown: bytes,
    covers: Sequence[tuple[Cover, Mapping[str, str]]],
    undone_by: Sequence[str] = (),
    *,
    versions: Sequence[str] = (),
    preconditions: Iterable[Precondition] = (),
    schema: Any = None,
) -> Subject:
    """Return what is stored, shown and hashed. What is empty is left out, so that hashes that were recorded stay as they are.

    Args:
        shown: JSON of the author's subject.
        covers: Each cover, with the canonical JSON of its arguments (or pattern fields) by parameter name.
        undone_by: Of each cover, the effect that undoes it, which a yes permits too; empty for none.
        versions: Of each cover, the version of its effect; empty for none.
        schema: Of a question: the JSON schema of its answer.
    """
    actions: list[dict[str, Any]] = [
        {
            "effect": cover.effect,
            "kind": "call" if cover.action_sha256 else "pattern",
            "action_sha256": cover.action_sha256,
            "arguments": _values(fields),
        }
        for cover, fields in covers
    ]
    for name, values in (("compensate", undone_by), ("version", versions)):
        for action, value in zip(actions, values, strict=False):
            if value:
                action[name] = value
    for action, (cover, _) in zip(actions, covers, strict=True):
        if cover.agent:
            action["agent"] = cover.agent
    body: dict[str, Any] = {"subject": msgspec.json.decode(shown), "covers": actions}
    facts = {one.name: _fact(one) for one in preconditions}
    if facts:
        body["preconditions"] = facts
    if schema is not None:
        body["question"] = {"schema": schema}
    return _subject(body)


def with_actions(recorded: bytes, actions: Mapping[int, tuple[str, Mapping[str, str]]]) -> Subject:
    """Return what is asked when some of the covered calls are others than those of a recorded request.

    Args:
        recorded: The `body` of that request.
        actions: By its place among the covers, the hash of the new action, and the canonical JSON of its arguments by parameter name.

    Raises:
        NotJsonError: The recorded body is none, or has no such cover.
    """
    body = _body(recorded)
    body.pop(NOTE, None)
    for place, (action_sha256, fields) in actions.items():
        covers: Any = body.get("covers")
        if not isinstance(covers, list) or not 0 <= place < len(cast("list[Any]", covers)):
            raise NotJsonError(f"it covers nothing at place {place}")
        if not isinstance(covers[place], dict):
            raise NotJsonError(f"what it covers at place {place} is no action")
        covers[place] |= {"action_sha256": action_sha256, "arguments": _values(fields)}
    return _subject(body)


def with_note(recorded: bytes, note: str) -> Subject:
    """Return what is asked when nothing of a recorded request is another, but that a note says why it is asked again.

    Raises:
        NotJsonError: The recorded body is none.
    """
    body = _body(recorded)
    body[NOTE] = note
    return _subject(body)


def _body(recorded: bytes) -> dict[str, Any]:
    body: Any = parse(recorded, nesting=ENTRY_NESTING)
    if not isinstance(body, dict):
        raise NotJsonError("what was shown is no object")
    return cast("dict[str, Any]", body)


def _subject(body: dict[str, Any]) -> Subject:
    return Subject(body=Raw(canonical(body)), sha256=sha256_of(body))


def _values(fields: Mapping[str, str]) -> dict[str, Any]:
    return {name: msgspec.json.decode(value) for name, value in fields.items()}


def _fact(one: Precondition) -> dict[str, Any]:
    return {
        "step": one.step,
        "arguments": msgspec.json.decode(one.arguments),
        "value": msgspec.json.decode(one.value),
    }
