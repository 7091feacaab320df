"""What a policy holds, in messages: short, whatever it is."""

from __future__ import annotations

from typing import Any

from outlast.journal.plan import printable

_SHOWN = 60
"""Characters of a value that a message repeats."""


def shown(value: Any) -> str:
    """Return a value for a message: the beginning of how Python writes it, or its type where it cannot be written."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, or nested too deep
        text = f"a value of type {type(value).__name__}"
    return printable(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
