"""Words for people: times, lengths of time, commands to type, and text from elsewhere made safe to print.

Invariant: what `safe` returns holds no control or direction character, whatever a run, a model or a remote system wrote.
"""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

_KEPT = frozenset("\n\t")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that show nothing."""

_ABOUT_RUNS = frozenset({"runs", "approvals"})
"""Commands whose commands name a run first."""

_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def safe(text: str, *, lines: bool = False) -> str:
    r"""Return `text` with every character that a terminal obeys or hides written as `\u202e`.

    Args:
        lines: Keep newlines and tabs.
    """
    return "".join(
        _escape(character)
        if _is_hidden(character) and not (lines and character in _KEPT)
        else character
        for character in text
    )


def hidden_count(text: str) -> int:
    """Return how many characters `safe(text, lines=True)` escapes."""
    return sum(_is_hidden(character) and character not in _KEPT for character in text)


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON for people: readable letters, everything that hides escaped."""
    return safe(json.dumps(value, ensure_ascii=False, indent=indent), lines=True)


def at(time: datetime) -> str:
    """Return a time for people, in UTC."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def ago(time: datetime, now: datetime) -> str:
    """Return a time with how long ago it was or how soon it will be."""
    gap = time - now
    words = length(abs(gap))
    near = f"in {words}" if gap >= timedelta(0) else f"{words} ago"
    return f"{at(time)} ({near})"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, as `1 effect` or `2 effects`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def length(gap: timedelta) -> str:
    """Return a length of time in words, with its two largest units."""
    seconds = int(gap.total_seconds())
    if seconds < 1:
        return "less than a second"
    parts: list[str] = []
    for word, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(counted(count, word) if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def command(words: Iterable[str]) -> str:
    """Return words as they are typed into a shell."""
    return shlex.join(words)


def typed(options: Iterable[str], words: Sequence[str]) -> str:
    """Return a command of Outlast as it is typed into a shell; an id that begins with a dash is told from an option.

    Args:
        options: Behind `outlast`.
        words: The command, then what it is about, then options of its own.
    """
    about = list(words[2:]) if words[0] in _ABOUT_RUNS else []
    end = next((n for n, one in enumerate(about) if n and one.startswith("--")), len(about))
    if any(one.startswith("-") for one in about[:end]):
        words = [*words[:2], *about[end:], "--", *about[:end]]
    return command(["outlast", *options, *words])


def _is_hidden(character: str) -> bool:
    if " " <= character <= "~":
        return False
    return (
        unicodedata.category(character) in _HIDDEN
        or character in _BLANK
        or any(ord(character) in selectors for selectors in _SELECTORS)
    )


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
