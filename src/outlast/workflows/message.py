"""Typed messages to a run. A name on the wire, a type in the code.

What a name carries is known as long as some code holds a `Signal` of it: so a value that fits none of them is found before a
workflow meets it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

from outlast.effects.key import check_name
from outlast.errors import DecodeError
from outlast.journal.codec import TypeCodec, codec_for

T = TypeVar("T")
R = TypeVar("R")
Given = TypeVar("Given")
Told = TypeVar("Told")

_declared: dict[str, WeakSet[Signal[Any]]] = {}


class Signal(Generic[T]):
    """A message without an answer.

    Args:
        name: Unique in the run.
        type: Of the value that it carries; None for nothing. Hints know a class; of what is none, as `Literal["yes", "no"]`, they say
            `Any`.

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

    @overload
    def __init__(self: Signal[None], name: str, type: None = None) -> None: ...
    @overload
    def __init__(self: Signal[Given], name: str, type: type[Given]) -> None: ...
    @overload
    def __init__(self: Signal[Any], name: str, type: Any) -> None: ...
    def __init__(self, name: str, type: Any = None) -> None:  # noqa: A002 - the field's word
        self.name = check_name(name, what="signal")
        self.type: Any = type
        self.codec: TypeCodec[T] = codec_for(type, where=f"signal {self.name!r}")
        """How its values are stored."""
        _declared.setdefault(name, WeakSet()).add(self)

    def __repr__(self) -> str:
        """Show name and type."""
        return f"Signal({self.name!r}, {getattr(self.type, '__name__', self.type)})"


class Update(Generic[T, R]):
    """A message with an answer: the run says no, or does it and returns what came of it.

    Args:
        name: Unique in the run.
        type: Of the value that it carries; None for nothing.
        result: Of the answer; None for nothing.

    Raises:
        DefinitionError: The name makes ambiguous messages, or a type cannot be stored.

    Example:
        ```python
        import asyncio

        import outlast

        add = outlast.Update("add", str, int)

        @outlast.workflow
        async def basket() -> list[str]:
            items: list[str] = []

            def put(item: str) -> int:
                items.append(item)
                return len(items)

            outlast.on_update(add, put)
            await outlast.wait_condition(lambda: len(items) == 2)
            return items

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(basket(), id="basket-1")
                assert await handle.update(add, "tea") == 1
                assert await handle.update(add, "milk") == 2
                assert await handle.result() == ["tea", "milk"]

        asyncio.run(main())
        ```
    """

    @overload
    def __init__(
        self: Update[None, None], name: str, type: None = None, result: None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Update[Given, None], name: str, type: type[Given], result: None = None
    ) -> None: ...
    @overload
    def __init__(self: Update[None, Told], name: str, type: None, result: type[Told]) -> None: ...
    @overload
    def __init__(
        self: Update[Given, Told], name: str, type: type[Given], result: type[Told]
    ) -> None: ...
    @overload
    def __init__(self: Update[Given, Any], name: str, type: type[Given], result: Any) -> None: ...
    @overload
    def __init__(self: Update[None, Any], name: str, type: None, result: Any) -> None: ...
    @overload
    def __init__(self: Update[Any, None], name: str, type: Any, result: None = None) -> None: ...
    @overload
    def __init__(self: Update[Any, Told], name: str, type: Any, result: type[Told]) -> None: ...
    @overload
    def __init__(self: Update[Any, Any], name: str, type: Any, result: Any) -> None: ...
    def __init__(self, name: str, type: Any = None, result: Any = None) -> None:  # noqa: A002 - the field's word
        self.name = check_name(name, what="update")
        self.type: Any = type
        self.result: Any = result
        self.codec: TypeCodec[T] = codec_for(type, where=f"update {self.name!r}")
        """How its values are stored."""
        self.answer: TypeCodec[R] = codec_for(result, where=f"the answer to update {self.name!r}")
        """How its answers are stored."""

    def __repr__(self) -> str:
        """Show name and types."""
        names = [getattr(one, "__name__", one) for one in (self.type, self.result)]
        return f"Update({self.name!r}, {names[0]}, {names[1]})"


def encoded(
    message: Signal[Any] | Update[Any, Any] | str, value: Any, *, what: str
) -> tuple[str, bytes]:
    """Return name and JSON of a value as a message carries it.

    Args:
        message: A name too; then the value is plain JSON data.
        what: `signal` or `update`, for the error.

    Raises:
        DefinitionError: No message can have that name.
        EncodeError: The value does not fit the type.
    """
    if not isinstance(message, str):
        return message.name, message.codec.encode(value)
    name = check_name(message, what=what)
    return name, codec_for(Any, where=f"{what} {name!r}").encode(value)


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
