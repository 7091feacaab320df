"""What a person is asked, and whether code that came since still asks it."""

from __future__ import annotations

from typing import Any, cast

from outlast.journal.entry import ENTRY_NESTING
from outlast.journal.parse import NotJsonError, parse
from outlast.journal.subject import Subject, subject_of

__all__ = ["SAME_PURPOSE", "Subject", "still_asks", "subject_of"]

SAME_PURPOSE = "same_purpose_as"
"""In the subject of a request that the engine makes: the operation whose purpose the covered call has too."""


def still_asks(recorded: bytes, today: bytes) -> bool:
    """Whether a recorded request means what the code asks today: the same, fields that were added since apart.

    A cover that is used is held against the recorded hash by the store, so this decides only whether the run can go on.

    Args:
        recorded: The `body` of the request as it was shown.
        today: The `body` that the code asks with now.
    """
    try:
        return _extends(_without_hashes(recorded), _without_hashes(today))
    except (
        NotJsonError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # what is recorded was not asked by any code
        return False


def _without_hashes(body: bytes) -> Any:
    value = parse(body, nesting=ENTRY_NESTING)
    # What an answer must look like follows from a type, and the version of an effect is in its hash.
    value.pop("question", None)
    for cover in value["covers"]:
        del cover["action_sha256"]
        cover.pop("version", None)
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
