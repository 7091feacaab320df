"""Typed messages to a run. A name on the wire, a type in the code.

What a name carries is known as long as some code holds a `Signal` of it: so a value that fits none of them is found before a
workflow meets it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import WeakSet

from outlast.effects.key import check_name
from outlast.errors import DecodeError
from outlast.journal.codec import TypeCodec, codec_for

T = TypeVar("T")

_declared: dict[str, WeakSet[Signal[Any]]] = {}


class Signal(Generic[T]):
    """A message without an answer.

    Args:
        name: Unique in the run.
        type: Of the value that it carries.

    Raises:
        DefinitionError: The name makes ambiguous messages, or the type cannot be stored.

    Example:
        ```python
        from dataclasses import dataclass
        import outlast

        @dataclass(frozen=True)
        class Answer:
            text: str

        ANSWER = outlast.Signal("answer", Answer)

        @outlast.workflow
        async def ask() -> str:
            return (await outlast.receive(ANSWER)).text

        async with outlast.open("memory://") as app:
            handle = await app.start(ask(), id="a")
            await handle.send(ANSWER, Answer("yes"), id="mail-17")  # the same id again is the same message
            assert await handle.result() == "yes"
        ```
    """

    def __init__(self, name: str, type: type[T]) -> None:  # noqa: A002 - the field's word
        self.name = check_name(name, what="signal")
        self.type: Any = type
        self.codec: TypeCodec[T] = codec_for(type, where=f"signal {self.name!r}")
        """How its values are stored."""
        _declared.setdefault(name, WeakSet()).add(self)

    def __repr__(self) -> str:
        """Show name and type."""
        return f"Signal({self.name!r}, {getattr(self.type, '__name__', self.type)})"


def misfit(name: str, value: bytes) -> str:
    """Return why a value fits no signal that is declared under this name; an empty string when one fits, or there is none.

    Args:
        value: As JSON.
    """
    problems: list[str] = []
    for signal in _declared.get(name, ()):
        try:
            signal.codec.decode(value)
        except DecodeError as error:
            problems.append(error.message)
        else:
            return ""
    return "; or ".join(sorted(set(problems)))
