"""How one effect undoes another: which of its arguments it is given, and what is refused where that is declared."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, Protocol

from outlast.errors import DecodeError
from outlast.journal.codec import ArgumentCodec, TypeCodec
from outlast.replay.context import EffectRequest, Undo
from outlast.workflows.declared import refuse

RESULT = "result"
"""The parameter of a compensation that is given what the effect returned."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Undoable(Protocol):
    """An effect, as far as undoing it is concerned."""

    name: str
    kind: str

    @property
    def signature(self) -> inspect.Signature:
        """The function's signature."""
        ...

    @property
    def arguments(self) -> ArgumentCodec:
        """How its arguments are stored."""
        ...

    @property
    def result(self) -> TypeCodec[Any]:
        """How its result is stored."""
        ...

    @property
    def hints(self) -> dict[str, Any]:
        """The annotations of parameters and result, resolved."""
        ...

    def request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EffectRequest:
        """Return what is asked of the run for a call."""
        ...


def undo_of(effect: Undoable, compensation: Undoable) -> Undo:
    """Return how `compensation` undoes a call of `effect`."""
    given = [name for name in compensation.signature.parameters if name in _own(effect)]
    needs_result = RESULT in compensation.signature.parameters and RESULT not in given

    def bind(arguments: bytes, value: bytes | None) -> EffectRequest:
        bound = effect.arguments.decode_bound(arguments)
        call = {name: bound[name] for name in given}
        if needs_result:
            if value is None:
                raise DecodeError(
                    f"{compensation.name} needs the result of {effect.name}, and there is none",
                    hint="deploy the code that began the run, whose compensation does not need it",
                )
            call[RESULT] = effect.result.decode(value)
        return compensation.request((), call)

    return Undo(compensation.name, needs_result, bind)


def check_compensation(effect: Undoable, compensation: Any, *, has_timeout: bool) -> None:
    """Return when `compensation` can undo a call of `effect`, as far as that is known where they are declared.

    Raises:
        DefinitionError: It cannot.
    """
    if getattr(compensation, "kind", "") != "effect":
        raise refuse(
            effect.name,
            f"has compensate={compensation!r}, which is no effect",
            "undoing changes the world too: declare it with @effect, above this one",
        )
    if not has_timeout:
        raise refuse(
            effect.name,
            "has a compensation and no start_to_close_timeout",
            "give one, as start_to_close_timeout=timedelta(seconds=30): nothing is undone while an attempt could still act",
        )
    if RESULT in _own(effect) and RESULT in compensation.signature.parameters:
        raise refuse(
            effect.name,
            f"has a parameter {RESULT} itself, and is undone by {compensation.name}, which takes one",
            f"give the effect's parameter another name: {RESULT} is what it returned",
        )
    known = [*_own(effect), RESULT]
    for name, parameter in compensation.signature.parameters.items():
        if parameter.kind not in _NAMED:
            raise refuse(
                effect.name,
                f"is undone by {compensation.name}, whose parameter {name} has no name of its own to be given by",
                "let it take ordinary parameters",
            )
        if name not in known and parameter.default is parameter.empty:
            raise refuse(
                effect.name,
                f"is undone by {compensation.name}, which takes {name}",
                f"a compensation takes parameters of the effect by name, and its result: {', '.join(known)}",
            )


def check_types(effect: Undoable, compensation: Undoable) -> None:
    """Return when the compensation takes what it is given.

    Raises:
        DefinitionError: An annotation of it names another type than the effect's.
    """
    for name in compensation.signature.parameters:
        is_own = name in _own(effect)
        given = effect.hints.get(name if is_own else "return", Any)
        wanted = compensation.hints.get(name, Any)
        if (is_own or name == RESULT) and not _takes(wanted, given):
            raise refuse(
                effect.name,
                f"is undone by {compensation.name}, whose {name} is {_shown(wanted)}, and it gives {_shown(given)}",
                "let both annotations be the same",
            )


def _own(effect: Undoable) -> list[str]:
    return [name for name, one in effect.signature.parameters.items() if one.kind in _NAMED]


def _takes(wanted: Any, given: Any) -> bool:
    if wanted in (Any, object, given) or given is Any:
        return True
    is_union = typing.get_origin(wanted) in (typing.Union, types.UnionType)
    return is_union and any(_takes(one, given) for one in typing.get_args(wanted))


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
