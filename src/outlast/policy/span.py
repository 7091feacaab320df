"""How long somebody has, as it stands in a policy: `72h`, `30m`, `1500ms`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from outlast.errors import PolicyError
from outlast.policy.shown import shown

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""Milliseconds, the largest first."""

_TEXT = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
_NOTHING = timedelta(0)
_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=36_500)


def check_span(what: str, span: Any) -> None:
    """Refuse a length of time that nobody could keep; None is none.

    Raises:
        PolicyError: It is none, nothing or less, too long, or of no whole milliseconds.
    """
    if span is None:
        return
    if (
        not isinstance(span, timedelta)
        or not timedelta(0) < span <= _LONGEST
        or span % _MILLISECOND
    ):
        raise PolicyError(
            f"{what} is no length of time: {shown(span)}",
            hint='write it as "30m" or "72h", in Python as timedelta(hours=72)',
        )


def span_text(span: timedelta) -> str:
    """Return a length of time as it is written."""
    whole = span // _MILLISECOND
    unit = next(name for name, size in _UNITS.items() if whole % size == 0)
    return f"{whole // _UNITS[unit]}{unit}"


def span_of(text: Any, what: str) -> timedelta:
    """Return the length of time that is written.

    Raises:
        PolicyError: None is, or none that somebody could keep.
    """
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    try:
        span = timedelta(milliseconds=int(match[1]) * _UNITS[match[2]] if match else 0)
    except OverflowError:
        span = _NOTHING
    check_span(what, span or str(text))
    return span
