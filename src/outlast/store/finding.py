"""What a look at a store found, for whoever operates it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Verdict: TypeAlias = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """One thing that was looked at.

    Args:
        check: A stable word.
        hint: What to do; empty when all is well.
    """

    check: str
    verdict: Verdict
    text: str
    hint: str = ""
