"""Values as JSON bytes and back, by annotation alone: stored data never names a class, a module or code.

A value round-trips exactly or is refused with the path in it; nothing is half stored. Encoding and decoding share no
mutable state, so that one codec serves any number of threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

import msgspec

from outlast.errors import DecodeError, DefinitionError, EncodeError
from outlast.journal.annotation import Builder
from outlast.journal.parse import NotJsonError, parse
from outlast.journal.plan import Plan, Unfit, Walk, too_large, unread, unrestored

T = TypeVar("T")

LIMIT_BYTES = 2 * 1024 * 1024
"""Default size limit of one stored value, in bytes of JSON."""

_READ_LIMIT_BYTES = (
    1 << 62
)  # what was stored under a higher limit is still read; its size bounds the work


class TypeCodec(Generic[T]):
    """Encodes and decodes values of one annotated type.

    Args:
        where: What the value is, for messages, as `the result of step plan`.
    """

    __slots__ = ("plan", "where")

    def __init__(self, plan: Plan, where: str) -> None:
        self.plan = plan
        self.where = where

    def encode(self, value: T, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """Return the value as JSON in UTF-8; the value itself is not changed.

        Raises: EncodeError: The value cannot be stored exactly, or is too large.
        """
        try:
            walk = Walk(limit_bytes)
            data = self.plan.encode(value, walk)
            walk.charge(0)
            text = msgspec.json.encode(data)
            if len(text) > limit_bytes:
                raise too_large(limit_bytes)
        except Unfit as unfit:
            raise self._encode_error(unfit) from unfit.error
        except Exception as error:  # what a plan did not foresee of the author's code
            raise self._encode_error(unread(error)) from error
        return text

    def _encode_error(self, unfit: Unfit) -> EncodeError:
        message = f"{self.where} cannot be stored: at {unfit.path}: {unfit.reason}"
        return EncodeError(message, path=unfit.path, hint=unfit.hint)

    def decode(self, data: bytes) -> T:
        """Return the value of JSON bytes.

        Raises: DecodeError: The bytes are no JSON, or do not fit the annotation.
        """
        try:
            return self.plan.decode(parse(data), Walk(_READ_LIMIT_BYTES))
        except NotJsonError as error:
            raise self._decode_error(Unfit(f"not readable as JSON: {error}")) from None
        except Unfit as unfit:
            raise self._decode_error(unfit) from unfit.error
        except Exception as error:  # what a plan did not foresee of the author's code
            raise self._decode_error(unrestored(error)) from error

    def _decode_error(self, unfit: Unfit) -> DecodeError:
        message = f"{self.where} as stored does not fit the code: at {unfit.path}: {unfit.reason}"
        return DecodeError(message, path=unfit.path, hint=unfit.hint)


class ArgumentCodec:
    """Encodes and decodes the arguments of one function, as an object by parameter name with defaults filled in."""

    __slots__ = ("_codec", "_names", "_positional", "signature")

    def __init__(self, signature: inspect.Signature, plan: _ArgumentPlan, where: str) -> None:
        self.signature = signature
        each = signature.parameters.values()
        self._names = names_of(signature)
        self._positional = [one.name for one in each if one.kind is one.POSITIONAL_ONLY]
        self._codec: TypeCodec[dict[str, Any]] = TypeCodec(plan, where)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the argument of each parameter, defaults filled in.

        Raises: TypeError: The function cannot be called with them, as Python itself says it.
        """
        if self._names is not None and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit_bytes: int = LIMIT_BYTES
    ) -> bytes:
        """Return the arguments as one JSON object by parameter name.

        Raises:
            TypeError: The function cannot be called with them.
            EncodeError: An argument cannot be stored.
        """
        return self._codec.encode(self.bind(args, kwargs), limit_bytes=limit_bytes)

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments to call the function with.

        Raises: DecodeError: The data does not fit the parameters.
        """
        bound = self.decode_bound(data)
        if not self._positional:
            return (), bound
        return tuple(bound.pop(name) for name in self._positional), bound

    def recode(self, data: bytes) -> bytes | None:
        """Return stored arguments as today's types write them; None when they do not fit them."""
        try:
            args, kwargs = self.decode(data)
        except DecodeError:
            return None
        return self.encode(args, kwargs)

    def decode_bound(self, data: bytes) -> dict[str, Any]:
        """Return the argument of each parameter; one that the data lacks takes its default.

        Raises: DecodeError: The data does not fit the parameters.
        """
        return self._codec.decode(data)


def names_of(signature: inspect.Signature) -> tuple[str, ...] | None:
    """Return the parameters of a function that takes each of them by position; None for another.

    A call with as many positional arguments, and no others, fits without being bound.
    """
    each = signature.parameters.values()
    if any(one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in each):
        return None
    return tuple(signature.parameters)


class _ArgumentPlan(Plan):
    """Bound arguments: an object with one field for each parameter."""

    __slots__ = ("parameters",)

    def __init__(self, parameters: dict[str, tuple[Plan, Any]]) -> None:
        super().__init__("arguments", (dict,), (dict,))
        self.parameters = parameters

    def encode(self, value: Any, walk: Walk) -> dict[str, Any]:
        """Encode each argument."""
        data: dict[str, Any] = {}
        name = ""
        try:
            for name, (plan, _) in self.parameters.items():
                data[name] = plan.encode(value[name], walk)
        except Unfit as unfit:
            raise unfit.under(name) from None
        return data

    def decode(self, data: Any, walk: Walk) -> dict[str, Any]:
        """Decode each argument."""
        if type(data) is not dict:
            raise self.misfit(data)
        stored = cast("dict[str, Any]", data)
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, (plan, default) in self.parameters.items():
                if name in stored:
                    values[name] = plan.decode(stored[name], walk)
                elif default is inspect.Parameter.empty:
                    raise Unfit("the argument is missing", "give the parameter a default")
                else:
                    values[name] = default
        except Unfit as unfit:
            raise unfit.under(name) from None
        return values


def codec_for(annotation: Any, *, where: str) -> TypeCodec[Any]:
    """Return the codec of an annotation.

    Args:
        annotation: A resolved annotation; `inspect.Parameter.empty` is refused.
        where: What it annotates, for messages, as `the result of step plan`.

    Raises: DefinitionError: The annotation is missing or names a type that cannot be stored.
    """
    try:
        return TypeCodec(_plan_for(annotation), where)
    except Unfit as unfit:
        raise _definition_error(unfit, where) from None


_PLAIN: frozenset[type[Any]] = frozenset({dict, list, str, int, float, bool, type(None)})


def codec_of(value: Any, *, where: str) -> TypeCodec[Any]:
    """Return the codec of a value whose type no annotation names: plain JSON data as it is, anything else by its own type.

    Args:
        where: What it is, for messages.

    Raises: DefinitionError: It is of a type that cannot be stored.
    """
    kind: Any = value.__class__
    return codec_for(Any if kind in _PLAIN else kind, where=where)


def arguments_codec(
    signature: inspect.Signature, hints: Mapping[str, Any], *, where: str
) -> ArgumentCodec:
    """Return the codec of a function's arguments.

    Args:
        signature: The function's signature.
        hints: The resolved annotation of each parameter by name.
        where: What the arguments are of, for messages, as `the arguments of step plan`.

    Raises: DefinitionError: A parameter is variadic, has no annotation, or one that cannot be stored.
    """
    parameters: dict[str, tuple[Plan, Any]] = {}
    for name, parameter in signature.parameters.items():
        try:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise Unfit("*args and **kwargs have no names to store by", "name each parameter")
            plan = _plan_for(hints.get(name, inspect.Parameter.empty))
            if parameter.default is not inspect.Parameter.empty:
                _check_default(plan, parameter.default)
        except Unfit as unfit:
            raise _definition_error(unfit.under(name), where) from None
        parameters[name] = (plan, parameter.default)
    return ArgumentCodec(signature, _ArgumentPlan(parameters), where)


def _check_default(plan: Plan, default: Any) -> None:
    try:
        plan.encode(default, Walk(LIMIT_BYTES))
    except Unfit as unfit:
        unfit.reason = f"the default does not fit the annotation: {unfit.reason}"
        raise


def _definition_error(unfit: Unfit, where: str) -> DefinitionError:
    return DefinitionError(
        f"{where} cannot be stored: at {unfit.path}: {unfit.reason}", hint=unfit.hint
    )


def _plan_for(annotation: Any) -> Plan:
    try:
        return _cached_plan(annotation)
    except RecursionError:
        raise Unfit(
            "a type that never ends", "let a generic class hold itself of one type only"
        ) from None
    except TypeError:  # not hashable: an Annotated with a list, for one
        return Builder().build(annotation)


@lru_cache(maxsize=4096)
def _cached_plan(annotation: Any) -> Plan:
    return Builder().build(annotation)
