"""Globs over names: `*` stands for any text, also for none; `?` for one character; every other character for itself. Case counts.

Invariant: `covers` and `meets` speak of all texts there are. Where looking would take too long they say what claims nothing: that one glob
does not cover the other, and that the two may meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from outlast.errors import PolicyError
from outlast.policy.shown import shown

LONGEST_GLOB = 200
"""Characters."""

_MOST_STATES = 5_000
"""States of two globs side by side: those that people write have some dozens."""

_OTHER = ""
"""Stands for all characters that neither of two globs names."""

_Positions = frozenset[int]


def check_glob(glob: Any, what: str) -> str:
    """Return a glob that can be used.

    Args:
        what: What it is, for the message, as `agent`.

    Raises:
        PolicyError: It is no text, empty, too long, or written in another language of globs.
    """
    if not isinstance(glob, str):
        raise PolicyError(
            f"{what} is no text: {shown(glob)}", hint=f'write a glob, as {what} = "*"'
        )
    if not glob or len(glob) > LONGEST_GLOB:
        raise PolicyError(
            f"{what} has {len(glob)} characters", hint=f"a glob has from 1 to {LONGEST_GLOB}"
        )
    if any(character in "[]{}" or not character.isprintable() for character in glob):
        raise PolicyError(
            f"{what} is no glob: {shown(glob)}",
            hint="only `*` and `?` are special, and [ ] { } are not taken: write one rule for each name",
        )
    return glob


def fits(glob: str, text: str) -> bool:
    """Say whether a text is one of those that a glob stands for. Takes time in proportion to both lengths at most."""
    place = at = mark = 0
    star = -1
    while at < len(text):
        letter = glob[place] if place < len(glob) else ""
        if letter == "*":
            star, mark = place, at
            place += 1
        elif letter in ("?", text[at]):
            place, at = place + 1, at + 1
        elif star >= 0:
            mark += 1
            place, at = star + 1, mark
        else:
            return False
    return not glob[place:].strip("*")


def covers(wide: str, narrow: str) -> bool:
    """Say whether every text of `narrow` is one of `wide`; False also where it would take too long to know."""
    if wide in ("*", narrow):
        return True
    wrong = _search(wide, narrow, lambda of_wide, of_narrow: of_narrow and not of_wide)
    return wrong is False


def meets(one: str, other: str) -> bool:
    """Say whether some text is one of both globs; True also where it would take too long to know."""
    return _search(one, other, lambda of_one, of_other: of_one and of_other) is not False


def is_name(glob: str) -> bool:
    """Say whether a glob stands for one text alone."""
    return "*" not in glob and "?" not in glob


def _search(one: str, other: str, found: Callable[[bool, bool], bool]) -> bool | None:
    """Say whether some text leads to `found`, which is told whether it is one of the first glob and of the second; None: too long."""
    letters = [*(set(one + other) - {"*", "?"}), _OTHER]
    start = (_resting(one, {0}), _resting(other, {0}))
    seen, waiting = {start}, [start]
    while waiting:
        first, second = waiting.pop()
        if found(len(one) in first, len(other) in second):
            return True
        for letter in letters:
            state = (_after(one, first, letter), _after(other, second, letter))
            if state not in seen:
                seen.add(state)
                waiting.append(state)
        if len(seen) > _MOST_STATES:
            return None
    return False


def _resting(glob: str, places: set[int]) -> _Positions:
    """Return where a reader may stand, who may also pass over a `*`."""
    reached = set(places)
    for place in sorted(places):
        while place < len(glob) and glob[place] == "*":
            place += 1
            reached.add(place)
    return frozenset(reached)


def _after(glob: str, places: _Positions, letter: str) -> _Positions:
    """Return where a reader may stand after one more character."""
    reached: set[int] = set()
    for place in places:
        if place == len(glob):
            continue
        if glob[place] == "*":
            reached.add(place)
        elif glob[place] in ("?", letter or None):
            reached.add(place + 1)
    return _resting(glob, reached)


class ToolGlob(Struct, frozen=True):
    """A glob over tools: of their names, and of the servers that have them.

    Args:
        tool: Of the name.
        server: Of the name of the server; `*` stands for a tool of no server, too.
    """

    tool: str
    server: str = "*"

    @classmethod
    def of(cls, text: Any, what: str = "tool") -> ToolGlob:
        """Return what `tool` or `server:tool` stands for.

        Raises:
            PolicyError: One of the two is no glob.
        """
        if not isinstance(text, str) or ":" not in text:
            return cls(check_glob(text, what))
        server, _, tool = text.partition(":")
        return cls(check_glob(tool, what), check_glob(server, f"the server in {what}"))

    def fits(self, tool: str, server: str) -> bool:
        """Say whether a tool is one of those."""
        return fits(self.tool, tool) and fits(self.server, server)

    def covers(self, narrow: ToolGlob) -> bool:
        """Say whether every tool of `narrow` is one of these."""
        return covers(self.tool, narrow.tool) and covers(self.server, narrow.server)

    def meets(self, other: ToolGlob) -> bool:
        """Say whether some tool is one of both."""
        return meets(self.tool, other.tool) and meets(self.server, other.server)

    def __str__(self) -> str:
        """Return it as it is written."""
        return self.tool if self.server == "*" else f"{self.server}:{self.tool}"
