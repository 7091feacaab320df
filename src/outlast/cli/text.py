"""What people type, as times; and the words for people that the client has, under the command line's own name."""

from __future__ import annotations

import re
from datetime import timedelta

from outlast.client.text import (
    ago,
    at,
    command,
    counted,
    hidden_count,
    json_text,
    length,
    safe,
    typed,
)

__all__ = [
    "ago",
    "at",
    "command",
    "counted",
    "hidden_count",
    "json_text",
    "length",
    "parse_length",
    "safe",
    "typed",
]

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_NOTHING = timedelta(0)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_length(text: str) -> timedelta:
    """Return the length of time that `15`, `15s`, `500ms`, `2m` or `1h` says.

    Raises:
        ValueError: It says none, or none above zero.
    """
    match = _LENGTH.fullmatch(text.strip())
    try:
        found = timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"]) if match else _NOTHING
    except OverflowError:
        raise ValueError(
            "that is longer than any time; write seconds, or 500ms, 15s, 2m, 1h"
        ) from None
    if found <= _NOTHING:
        raise ValueError(
            f"{text[:100]!r} is no length of time; write seconds, or 500ms, 15s, 2m, 1h"
        )
    return found
