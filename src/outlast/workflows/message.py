"""Typed messages to a run. A name on the wire, a type in the code."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from outlast.effects.key import check_name
from outlast.journal.codec import TypeCodec, codec_for

T = TypeVar("T")


class Signal(Generic[T]):
    """A message without an answer.

    Args:
        name: Unique in the run.
        type: Of the value that it carries.

    Raises:
        DefinitionError: The name makes ambiguous messages, or the type cannot be stored.
    """

    def __init__(self, name: str, type: type[T]) -> None:  # noqa: A002 - the field's word
        self.name = check_name(name, what="signal")
        self.type: Any = type
        self.codec: TypeCodec[T] = codec_for(type, where=f"signal {self.name!r}")
        """How its values are stored."""

    def __repr__(self) -> str:
        """Show name and type."""
        return f"Signal({self.name!r}, {getattr(self.type, '__name__', self.type)})"
