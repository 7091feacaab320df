"""How a value of one annotated type becomes JSON data and comes back: the contract of a plan.

A plan is chosen from an annotation alone. It accepts exact types only, so that no field of a subclass is dropped in
silence, and its answer to anything else is `Unfit`, which carries the path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 100
"""Deepest nesting of one value: what Python's stack bears, at five frames a level. A value that contains itself is found by it."""

VALUE_NESTING = 2 * MAX_DEPTH + 2
"""Deepest nesting of a stored value's JSON: each level may be tagged."""

Step = str | int
"""One step of a path: a field or key, or an index."""

_PATH_STEPS_SHOWN = 12
_KEY_CHARACTERS_SHOWN = 40
_TEXT_SHOWN = 200


class Unfit(Exception):  # noqa: N818  (never seen outside: it becomes an Encode- or DecodeError)
    """A value, or stored data, does not fit a plan.

    Args:
        reason: What is wrong, without the value itself, since values may be secret.
        hint: What to do about it.
        error: What the author's code raised, where that is the reason.
    """

    def __init__(self, reason: str, hint: str = "", error: Exception | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.error = error
        self.steps: list[Step] = []

    def under(self, step: Step) -> Unfit:
        """Note one more step of the path, innermost first, and return the same exception."""
        self.steps.append(step)
        return self

    @property
    def path(self) -> str:
        """Return the path from the root, as `$.items[3].price`."""
        steps = self.steps[::-1]
        shown = "".join(_step_text(step) for step in steps[:_PATH_STEPS_SHOWN])
        return f"${shown}…" if len(steps) > _PATH_STEPS_SHOWN else f"${shown}"


def _step_text(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if step in ("[]", "[key]"):  # in a type, not in a value
        return step
    if len(step) <= _KEY_CHARACTERS_SHOWN and step.isidentifier() and step.isascii():
        return f".{step}"
    text = step if len(step) <= _KEY_CHARACTERS_SHOWN else step[:_KEY_CHARACTERS_SHOWN] + "…"
    return f"[{json.dumps(text)}]"


class Walk:
    """What is left of the limits of one encoding or decoding.

    Args:
        limit_bytes: About how many bytes of JSON the value may become.
    """

    __slots__ = ("depth", "left", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.depth = 0
        self.left = limit_bytes
        self.limit_bytes = limit_bytes

    def enter(self, length: int) -> None:
        """Go one level deeper, into a container of `length` members.

        Raises: Unfit: The value is too deep, or too large.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unfit(f"nesting is deeper than {MAX_DEPTH} levels, or the value contains itself")
        self.charge(length)

    def charge(self, size: int) -> None:
        """Take `size` bytes from what is left.

        Raises: Unfit: Nothing is left.
        """
        self.left -= size
        if self.left < 0:
            raise too_large(self.limit_bytes)


def too_large(limit_bytes: int) -> Unfit:
    """Return the refusal of a value that is over the size limit."""
    return Unfit(
        f"the value is larger than {limit_bytes:,} bytes",
        "store it elsewhere and keep a reference, or raise the limit",
    )


class Plan:
    """How values of one annotated type become JSON data (None, bool, int, float, str, list, dict) and come back.

    Args:
        label: The type's name in messages, and its tag in a union.
        classes: The exact runtime types that it accepts.
        kinds: The types of the JSON data that it makes.
    """

    __slots__ = ("classes", "kinds", "label", "origin")

    def __init__(self, label: str, classes: Iterable[type], kinds: Iterable[type]) -> None:
        self.label = label
        self.origin = label
        self.classes = frozenset(classes)
        self.kinds = frozenset(kinds)

    @property
    def natural(self) -> bool:
        """Say whether the data is the value itself, so that it stays untagged in a union."""
        return False

    @property
    def open(self) -> bool:
        """Say whether the data can be an object with any key."""
        return False

    def encode(self, value: Any, walk: Walk) -> Any:
        """Return the JSON data of a value.

        Raises: Unfit: The value is not exactly of this type, or cannot be stored.
        """
        raise NotImplementedError

    def decode(self, data: Any, walk: Walk) -> Any:
        """Return the value of JSON data.

        Raises: Unfit: The data is not of this type.
        """
        raise NotImplementedError

    def refuse(self, value: Any) -> Unfit:
        """Return the refusal of a value whose type is not exactly this plan's."""
        kind = kind_of(value)
        base = next((each for each in self.classes if issubclass(kind, each)), None)
        if base is not None:
            name = shown_name(kind)
            return Unfit(
                f"expected exactly {self.label}, got its subclass {name}, whose extra state would be lost",
                f"convert it to {base.__name__}, or name {name.rpartition('.')[2]} in the annotation",
            )
        return Unfit(
            f"expected {self.label}, got {shown_name(kind)}", "change the value or its annotation"
        )

    def misfit(self, data: Any) -> Unfit:
        """Return the refusal of data that is not this plan's."""
        return Unfit(f"expected {self.label}, found {json_kind(data)}", "was the type changed?")


def key_step(key: Any) -> str:
    """Return the step of a path that leads through a dict's key."""
    kind = kind_of(key)
    return key if kind is str else f"<{shown_name(kind)}>"


def kind_of(value: object) -> type[Any]:
    """Return the exact type of a value, of which a checker knows nothing."""
    return type(value)


def type_name(kind: type[Any]) -> str:
    """Return the name of a type as people know it: `httpx.ConnectError`, but `ValueError`."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def shown_name(kind: type[Any]) -> str:
    """Return the name of a value's type for a message: never long, always printable, whatever its metaclass does."""
    try:
        return printable(type_name(kind))
    except Exception:  # noqa: BLE001  (a metaclass is the author's code)
        return "a type whose name cannot be read"


def printable(text: str) -> str:
    """Return text for a message: cut where it is long, and escaped where a character cannot be seen or stored."""
    shown = text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…"
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def unread(error: Exception) -> Unfit:
    """Return the refusal of a value that raised when it was read; its text may hold what is secret."""
    return Unfit(f"reading the value raised {shown_name(kind_of(error))}", error=error)


def unrestored(error: Exception) -> Unfit:
    """Return the refusal of data over which the author's code raised, as a default factory can."""
    try:
        said = f": {printable(str(error))}"
    except Exception:  # noqa: BLE001  (an author's __str__ may raise anything)
        said = ""
    return Unfit(f"restoring the value raised {shown_name(kind_of(error))}{said}", error=error)


def json_kind(data: Any) -> str:
    """Return the JSON word for a piece of data."""
    words: dict[type[Any], str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
    }
    kind = kind_of(data)
    return words.get(kind, "null" if data is None else "a number")


class ReferencePlan(Plan):
    """A type alias that names itself: stands for a plan that is still being built."""

    __slots__ = ("target",)

    def __init__(self, label: str) -> None:
        super().__init__(label, (), ())
        self.target: Plan = self

    def encode(self, value: Any, walk: Walk) -> Any:
        """Encode by the plan that this one stands for."""
        return self.target.encode(value, walk)

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode by the plan that this one stands for."""
        return self.target.decode(data, walk)
