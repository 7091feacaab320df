"""Regular expressions that a policy may hold: those that a text, however it was chosen, cannot make endless.

Python's engine goes back and tries again. What bounds it here: a text is short; few repetitions may give back what they took; none of them
stands within another. A possessive repetition (`++`, `*+`, `?+`) never gives anything back, and is not counted.
"""

from __future__ import annotations

import re
from typing import Any

from outlast.errors import PolicyError
from outlast.policy.shown import shown

LONGEST_TEXT = 1_000
"""Characters of a text that is matched."""

_LONGEST_PATTERN = 1_000
_MOST_LOOPS = 2
"""Repetitions that may give back: there are half a million ways to share out the longest text among two and the rest."""

_MOST_CHOICES = 6
"""Places, `?` and `|`, at which there are two ways to go on: 64 ways in all."""

_TOKEN = re.compile(
    r"\\(?P<escaped>.)|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<repeat>[*+?]|\{\d*,?\d*\})(?P<how>[+?]?)"
    r"|(?P<open>\((?:\?(?:P?<?[=!<>:(]|[a-zA-Z-]+[:)]))?)|(?P<close>\))|(?P<choice>\|)|.",
    re.DOTALL,
)
_TIMES = re.compile(r"\{\d*(,?)\d*\}")
_SPACED = re.compile(r"\(\?[a-zA-Z]*x[a-zA-Z-]*[:)]")
_DIGITS = frozenset("123456789")


def check_pattern(pattern: Any) -> str:
    """Return a pattern that can be used.

    Raises:
        PolicyError: It is no regular expression, or a text could make it take very long.
    """
    if not isinstance(pattern, str) or not pattern or len(pattern) > _LONGEST_PATTERN:
        raise PolicyError(
            f"{shown(pattern)} is no regular expression",
            hint=f"write one of at most {_LONGEST_PATTERN} characters, as matches = '[a-z]+-\\d+'",
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise PolicyError(
            f"{shown(pattern)} is no regular expression: {error}",
            hint="the whole text has to match, as by re.fullmatch",
        ) from None
    if why := _slow(pattern):
        raise PolicyError(
            f"{shown(pattern)} could take very long: {why}",
            hint="write repetitions that give nothing back: [a-z]++ for [a-z]+, or use starts_with, in, equals",
        )
    return pattern


def _slow(pattern: str) -> str:
    """Return why a text could make a pattern take very long; empty where none can."""
    scan = _Scan()
    for match in _TOKEN.finditer(pattern):
        if why := scan.take(match):
            return why
    if scan.loops > _MOST_LOOPS:
        return (
            f"{scan.loops} of its repetitions may give back what they took, more than {_MOST_LOOPS}"
        )
    if scan.choices > _MOST_CHOICES:
        return f"it has {scan.choices} choices, more than {_MOST_CHOICES}"
    return ""


class _Scan:
    """What was read of a pattern.

    Args:
        groups: Of each open group, the whole among them, whether it holds a repetition or choice that may give back.
        closed: The same of the group that was closed by the last token; False where that closed none.
    """

    def __init__(self) -> None:
        self.loops = self.choices = 0
        self.groups = [False]
        self.closed = False

    def take(self, token: re.Match[str]) -> str:
        """Read one token; return why the pattern is refused, if it is."""
        inner, self.closed = self.closed, False
        if token["open"]:
            return self._open(token["open"])
        if token["close"] and len(self.groups) > 1:
            self.closed = self.groups.pop()
            self.groups[-1] |= self.closed
        elif token["choice"]:
            self.choices += 1
            self.groups[-1] = True
        elif token["repeat"] and token["how"] != "+":
            return self._repeat(token["repeat"], inner=inner)
        return "it refers back to what a group took" if token["escaped"] in _DIGITS else ""

    def _open(self, opening: str) -> str:
        if opening in ("(?P=", "(?("):
            return "it refers back to what a group took"
        if _SPACED.fullmatch(opening):
            return "it is written with spaces that do not count"
        if not opening.endswith(")"):
            self.groups.append(False)
        return ""

    def _repeat(self, repeat: str, *, inner: bool) -> str:
        """Read a repetition that may give back, of a group whose inside may, too, or of something else."""
        if inner and repeat != "?":
            return "a repetition, or a choice, stands within another repetition"
        times = _TIMES.fullmatch(repeat)
        if times and not times[1]:
            return ""
        self.groups[-1] = True
        if repeat == "?":
            self.choices += 1
        else:
            self.loops += 1
        return ""
