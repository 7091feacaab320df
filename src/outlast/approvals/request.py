"""What a person is asked: the subject as it is shown, the actions that a yes covers, and the hash over both.

What is shown is what is hashed, and what is hashed is what the decision must carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw

from outlast.journal.canonical import canonical, sha256_of
from outlast.journal.entry import ENTRY_NESTING, Cover
from outlast.journal.parse import NotJsonError, parse

SAME_PURPOSE = "same_purpose_as"
"""In the subject of a request that the engine makes: the operation whose purpose the covered call has too."""


class Subject(msgspec.Struct, frozen=True):
    """The request as JSON, and its hash."""

    body: Raw
    sha256: str


def subject_of(
    shown: bytes, covers: Sequence[tuple[Cover, Mapping[str, str]]], undone_by: Sequence[str] = ()
) -> Subject:
    """Return what is stored, shown and hashed.

    Args:
        shown: JSON of the author's subject.
        covers: Each cover, with the canonical JSON of its arguments (or pattern fields) by parameter name.
        undone_by: Of each cover, the effect that undoes it, which a yes permits too; empty for none.
    """
    actions: list[dict[str, Any]] = [
        {
            "effect": cover.effect,
            "kind": "call" if cover.action_sha256 else "pattern",
            "action_sha256": cover.action_sha256,
            "arguments": {name: msgspec.json.decode(value) for name, value in fields.items()},
        }
        for cover, fields in covers
    ]
    for action, name in zip(actions, undone_by, strict=False):
        if name:
            action["compensate"] = name
    body = {"subject": msgspec.json.decode(shown), "covers": actions}
    return Subject(body=Raw(canonical(body)), sha256=sha256_of(body))


def still_asks(recorded: bytes, today: bytes) -> bool:
    """Whether a recorded request means what the code asks today: the same, fields that were added since apart.

    A cover that is used is held against the recorded hash by the store, so this decides only whether the run can go on.

    Args:
        recorded: The `body` of the request as it was shown.
        today: The `body` that the code asks with now.
    """
    try:
        return _extends(_without_hashes(recorded), _without_hashes(today))
    except (NotJsonError, LookupError, TypeError):  # what is recorded was not asked by any code
        return False


def _without_hashes(body: bytes) -> Any:
    value = parse(body, nesting=ENTRY_NESTING)
    for cover in value["covers"]:
        del cover["action_sha256"]
    return value


def _extends(old: Any, new: Any) -> bool:
    if type(old) is not type(new):
        return False
    if isinstance(old, dict):
        fields = cast("dict[str, Any]", old)
        return all(key in new and _extends(value, new[key]) for key, value in fields.items())
    if isinstance(old, list):
        items = cast("list[Any]", old)
        return len(items) == len(new) and all(map(_extends, items, new))
    return old == new
