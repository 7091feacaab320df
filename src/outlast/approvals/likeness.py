"""Whether two JSON values mean the same argument: as the journal keeps it, and as hashes are made of it (`outlast.journal.canonical`).

The two forms agree for text, numbers within 2^53, truth and null, and lists and objects of them. Other types are written in different ways:
a Decimal with its zeros, a time with its offset, an enum by its value. Without the code nobody knows of a text what type it was, so there
is a third answer beside yes and no.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias, cast

Likeness: TypeAlias = Literal["same", "other", "unknown"]


def likeness(kept: Any, hashed: Any) -> Likeness:
    """Return whether two values of JSON mean the same; `unknown` where the types of the code would have to be known."""
    if isinstance(kept, list) and isinstance(hashed, list):
        return _of_lists(cast("list[Any]", kept), cast("list[Any]", hashed))
    if isinstance(kept, dict) and isinstance(hashed, dict):
        return of_objects(cast("dict[str, Any]", kept), cast("dict[str, Any]", hashed))
    if isinstance(kept, str) and isinstance(hashed, str):
        return "same" if kept == hashed else "unknown" if _reads_alike(kept, hashed) else "other"
    return _of_others(kept, hashed)


def _of_others(kept: Any, hashed: Any) -> Likeness:
    """Return the same of two values of which at least one is a number, a truth or null."""
    if type(kept) is type(hashed) or (_is_number(kept) and _is_number(hashed)):
        return "same" if kept == hashed else "other"
    if _is_number(kept) and isinstance(hashed, str):
        # An integer beyond 2^53 is hashed as its digits; a member of an enum may be by its name.
        return "same" if str(kept) == hashed else "unknown"
    return "other" if kept is None or hashed is None else "unknown"


def of_objects(kept: Mapping[str, Any], hashed: Mapping[str, Any]) -> Likeness:
    """Return the same of two objects. A field that one of them leaves out may be a default that is not written."""
    found = {likeness(value, hashed[name]) for name, value in kept.items() if name in hashed}
    if "other" in found:
        return "other"
    return "same" if found <= {"same"} and kept.keys() == hashed.keys() else "unknown"


def _of_lists(kept: list[Any], hashed: list[Any]) -> Likeness:
    if len(kept) != len(hashed):
        return "other"
    found = {likeness(one, other) for one, other in zip(kept, hashed, strict=True)}
    if found <= {"same"}:
        return "same"
    # The members of a set have no order of their own.
    return (
        "unknown" if all(any(likeness(a, b) != "other" for b in hashed) for a in kept) else "other"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_LONGEST = 100
"""Characters of a number or a time."""


def _reads_alike(one: str, other: str) -> bool:
    """Whether two texts are the same number, or the same moment."""
    if max(len(one), len(other)) > _LONGEST:
        return False
    try:
        return Decimal(one) == Decimal(other)
    except InvalidOperation:
        pass
    try:
        return datetime.fromisoformat(one) == datetime.fromisoformat(other)
    except ValueError:
        return False
