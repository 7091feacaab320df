"""Workflow shapes: workflows as data, and what each may return.

The result of a shape does not depend on how its parts are timed, except where it says so itself (what was cut off, what
expired); so whatever a simulation does, `fits` can tell a right result from a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import msgspec

from outlast.testing.simulation.world import Declared, answer

SIGNALS = 6
"""How many names of messages there are. A shape uses each of them at one place."""


class Node(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A part of a shape."""


class Work(Node, frozen=True, tag=True):
    """A step that returns twice `n`, after failing `fails` times, in so many seconds."""

    n: int
    fails: int = 0
    seconds: float = 0.0
    thread: bool = False


class Broken(Node, frozen=True, tag=True):
    """A step that fails for good."""

    n: int


class Nap(Node, frozen=True, tag=True):
    """A durable timer."""

    seconds: float


class Draw(Node, frozen=True, tag=True):
    """Chance and time of the workflow itself."""


class Hear(Node, frozen=True, tag=True):
    """Messages of one name; with `seconds`, a wait for the first that may be cut off."""

    signal: int
    count: int = 1
    seconds: float | None = None


class Act(Node, frozen=True, tag=True):
    """An effect."""

    declared: Declared
    thread: bool = False


class Twin(Node, frozen=True, tag=True):
    """Two equal calls of an effect at once, which are one effect."""

    act: Act


class Ask(Node, frozen=True, tag=True):
    """An approval, and the effect that it covers.

    Args:
        pattern: Cover by the pattern of calls instead of the call.
        again: Act a second time on the one cover of the pattern, which must be refused.
        seconds: Time to decide.
        pause: Time between the decision and the effect, of which `use_within` leaves twice as much.
    """

    act: Act
    pattern: bool = False
    again: bool = False
    seconds: float = 60.0
    pause: float = 0.0


class Several(Node, frozen=True, tag=True):
    """Parts in a row (`seq`), or at once (`gather`, `group`)."""

    how: str
    parts: tuple[Shape, ...]


class Limit(Node, frozen=True, tag=True):
    """A part that is cut off after so many seconds."""

    seconds: float
    part: Shape


Shape: TypeAlias = Work | Broken | Nap | Draw | Hear | Act | Twin | Ask | Several | Limit

_decoder = msgspec.json.Decoder(Shape)


def fits(shape: Shape, value: Any, path: str, expect: Expect) -> bool:
    """Whether `value` is a right result of `shape`.

    Args:
        path: What the effects of this part are for.
    """
    match shape:
        case Work(n):
            return value == n * 2
        case Broken():
            return value == "broken"
        case Nap():
            return value == "slept"
        case Draw():
            return isinstance(value, list) and len(cast("list[Any]", value)) == 3
        case Hear(signal, count, seconds):
            heard = expect.heard[signal][:count]
            return value == heard or (seconds is not None and value == "nothing")
        case Act():
            return value == answer(path) or (expect.may_decline and value == "declined")
        case Twin(act):
            return value[0] == value[1] and fits(act, value[0], path, expect)
        case Ask():
            return _fits_ask(shape, value, path, expect)
        case Several(_, parts):
            return len(value) == len(parts) and all(
                fits(part, one, f"{path}.{at}", expect)
                for at, (part, one) in enumerate(zip(parts, value, strict=True))
            )
        case Limit(_, part):
            return value == "cut" or (
                value[0] == "in time" and fits(part, value[1], f"{path}.0", expect)
            )


def _fits_ask(shape: Ask, value: Any, path: str, expect: Expect) -> bool:
    if expect.answer != "approve":
        return value == "expired" or (expect.answer == "deny" and value == "denied")
    if value in ("expired", "too late"):
        return True
    if value[0] != "granted" or not fits(shape.act, value[1], path, expect):
        return False
    return len(value) == 3 if shape.again else len(value) == 2


class Expect(msgspec.Struct, frozen=True):
    """What the result depends on.

    Args:
        heard: The values that were sent, by signal, in order.
        answer: What people say: `approve`, `deny`, or nothing at all.
        may_decline: Whether receivers may say no.
    """

    heard: dict[int, list[int]]
    answer: str
    may_decline: bool


def nodes(shape: Shape, path: str = "0") -> Iterator[tuple[str, Shape]]:
    """Return every part of a shape with its path."""
    yield path, shape
    if isinstance(shape, Several):
        for number, part in enumerate(shape.parts):
            yield from nodes(part, f"{path}.{number}")
    elif isinstance(shape, Limit):
        yield from nodes(shape.part, f"{path}.0")
