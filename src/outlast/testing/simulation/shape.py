"""Workflow shapes: workflows as data, and what each may return.

The result of a shape does not depend on how its parts are timed, except where it says so itself (what was cut off, what
expired); so whatever a simulation does, `fits` can tell a right result from a wrong one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, cast

import msgspec

from outlast.testing.simulation.world import Declared, answer

_MICROSECOND = 1e-6
SIGNALS = 6
"""How many names of messages there are. A shape uses each of them at one place."""


class Node(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a shape."""


class Work(Node, frozen=True, tag=True):
    """A step that returns twice `n`, after failing `fails` times, in so many seconds.

    Args:
        beats: It says how far it is, as it goes, and goes on from what it finds.
        limit: It has only so much time for all attempts.
        far: It runs in a queue, which every worker serves.
    """

    n: int
    fails: int = 0
    seconds: float = 0.0
    thread: bool = False
    beats: bool = False
    limit: bool = False
    far: bool = False


class Hand(Node, frozen=True, tag=True):
    """A step that is handed out; somebody outside says twice `n`, if not too late.

    Args:
        limit: It has only so much time for all attempts.
        beats: Whoever has it says meanwhile how far he is, or it has failed; and goes on from what the one before has said.
    """

    n: int
    thread: bool = False
    limit: bool = False
    beats: bool = False


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


class Serve(Node, frozen=True, tag=True):
    """Updates of one name, answered by a handler after a step; over when so many have come."""

    signal: int
    count: int = 1


class Act(Node, frozen=True, tag=True):
    """An effect.

    Args:
        limit: It has only so much time for all attempts.
    """

    declared: Declared
    thread: bool = False
    limit: bool = False


class Twin(Node, frozen=True, tag=True):
    """Two equal calls of an effect, which are one effect.

    Args:
        in_row: The second one after the first instead of beside it: refused when that succeeded.
    """

    act: Act
    in_row: bool = False


class Often(Node, frozen=True, tag=True):
    """Two equal calls in a row of an effect that repeats, which are two effects."""

    act: Act


class Stray(Node, frozen=True, tag=True):
    """An effect that nobody waits for."""

    act: Act


class Tidy(Node, frozen=True, tag=True):
    """A part, and a step afterwards, whatever became of it."""

    part: Shape


class Tell(Node, frozen=True, tag=True):
    """A part that publishes when it begins, and when it is done."""

    part: Shape


class Bear(Node, frozen=True, tag=True):
    """A part that a child carries out.

    Args:
        close: What becomes of the child when its parent has ended.
    """

    part: Shape
    close: Literal["terminate", "cancel", "abandon"] = "terminate"


class Talk(Node, frozen=True, tag=True):
    """A child that is sent so many messages, and returns what it has heard.

    Args:
        outside: Send, and wait for its end, as with a run that is no child.
    """

    count: int
    outside: bool = False


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
    """Parts in a row (`seq`), at once (`gather`, `group`), or each in a generation of its own (`rolls`: the whole shape only)."""

    how: str
    parts: tuple[Shape, ...]


class Limit(Node, frozen=True, tag=True):
    """A part that is cut off after so many seconds."""

    seconds: float
    part: Shape


Shape: TypeAlias = (
    Work
    | Hand
    | Broken
    | Nap
    | Draw
    | Hear
    | Act
    | Twin
    | Often
    | Stray
    | Tidy
    | Tell
    | Ask
    | Several
    | Limit
    | Serve
    | Bear
    | Talk
)

_decoder = msgspec.json.Decoder(Shape)


def fits(shape: Shape, value: Any, path: str, expect: Expect) -> bool:
    """Whether `value` is a right result of `shape`.

    Args:
        path: What the effects of this part are for.
    """
    match shape:
        case Several(_, parts):
            return len(value) == len(parts) and all(
                fits(part, one, f"{path}.{at}", expect)
                for at, (part, one) in enumerate(zip(parts, value, strict=True))
            )
        case Limit(seconds, part):
            return _lasted(value, "cut", seconds, expect) or (
                value[0] == "in time" and fits(part, value[1], f"{path}.0", expect)
            )
        case Tidy(part) | Tell(part):
            return fits(part, value, f"{path}.0", expect)
        case Bear(part):
            return fits(part, value, f"{path}/0", expect)
        case Act() | Twin() | Often() | Stray() | Ask():
            return _fits_effect(shape, value, path, expect)
        case _:
            return _fits_simple(shape, value, expect)


LATE = "late"
"""The result of a part whose time for all attempts was over."""


def _fits_simple(
    shape: Work | Hand | Broken | Nap | Draw | Hear | Serve | Talk, value: Any, expect: Expect
) -> bool:
    match shape:
        case Work(n) | Hand(n):
            return value == n * 2 or (shape.limit and value == LATE)
        case Broken():
            return value == "broken"
        case Nap(seconds):
            return _lasted(value, "slept", seconds, expect)
        case Draw():
            return isinstance(value, list) and len(cast("list[Any]", value)) == 3
        case Talk(count):
            return value == list(range(count))
        case Serve(signal, count):
            # One that came before its handler was named is sent again, behind those that came later.
            return len(value) == count and Counter(value) <= Counter(expect.heard[signal])
        case Hear(signal, count, seconds):
            heard = expect.heard[signal][:count]
            return value == heard or (
                seconds is not None and _lasted(value, "nothing", seconds, expect)
            )


def _fits_effect(
    shape: Act | Twin | Often | Stray | Ask, value: Any, path: str, expect: Expect
) -> bool:
    match shape:
        case Act():
            if value == "declined":
                return expect.may_decline
            return value == answer(path) or (shape.limit and value == LATE)
        case Twin(act, in_row):
            return _fits_twin(value, in_row) and fits(act, value[0], path, expect)
        case Stray():
            return value == "left"
        case Often(act):
            return len(value) == 2 and all(fits(act, one, often(path), expect) for one in value)
        case Ask():
            return _fits_ask(shape, value, path, expect)


def often(purpose: str) -> str:
    """Return the purpose of what is done twice."""
    return f"{purpose}*"


def _lasted(value: Any, word: str, seconds: float, expect: Expect) -> bool:
    """Whether a wait ended so, and not before its time, as far as clocks that nobody sets can tell."""
    return value[0] == word and (expect.jumps or value[1] >= seconds - _MICROSECOND)


def _fits_twin(value: Any, in_row: bool) -> bool:
    if in_row and value[0] not in ("declined", LATE):
        return value[1] == "RepeatedEffectError"
    return in_row or value[0] == value[1]


def _fits_ask(shape: Ask, value: Any, path: str, expect: Expect) -> bool:
    word, refused, *done = value
    if refused != "ApprovalMismatchError":
        return False
    if expect.answer != "approve":
        return word == "expired" or (expect.answer == "deny" and word == "denied")
    if word in ("expired", "too late"):
        return True
    if word != "granted" or not fits(shape.act, done[0], path, expect):
        return False
    # What was refused because its time was over has spent nothing.
    said = done[1:] if done[0] != LATE else ["ApprovalSpentError"] * len(done[1:])
    return said == (["ApprovalSpentError"] if shape.again else [])


class Expect(msgspec.Struct, frozen=True):
    """What the result depends on.

    Args:
        heard: The values that were sent, by signal, in order.
        answer: What people say: `approve`, `deny`, or nothing at all.
        may_decline: Whether receivers may say no.
        jumps: Whether somebody sets the store's clock.
    """

    heard: dict[int, list[int]]
    answer: str
    may_decline: bool
    jumps: bool = False


def nodes(shape: Shape, path: str = "0") -> Iterator[tuple[str, Shape]]:
    """Return every part of a shape with its path, but for those that children carry out."""
    yield path, shape
    if isinstance(shape, Several):
        for number, part in enumerate(shape.parts):
            yield from nodes(part, f"{path}.{number}")
    elif isinstance(shape, Limit | Tidy | Tell):
        yield from nodes(shape.part, f"{path}.0")
