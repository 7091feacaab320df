"""What annotations say once aliases, new types, markers and type variables are taken away, and what fields types have.

Nothing here looks at a value. Pydantic is recognised only where a program has imported it.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from outlast.journal.plan import Plan, Unfit, type_name
from outlast.journal.record import (
    ABSENT,
    DataclassPlan,
    ModelPlan,
    NamedTuplePlan,
    RecordPlan,
    StructPlan,
    TypedDictPlan,
)

_MARKERS = {"Required", "NotRequired", "ReadOnly", "Final"}
_MAX_EXPANSIONS = 1_000
_STORABLE = "annotate a dataclass, Struct, Pydantic model, TypedDict, NamedTuple or a type of the standard library"


class Described(msgspec.Struct, frozen=True):
    """A field as its class declares it.

    Args:
        name: The name in Python.
        annotation: The resolved annotation.
        default: Makes the default; None where there is none.
    """

    name: str
    annotation: Any
    default: Callable[[], Any] | None


def bare_of(annotation: Any) -> Any:
    """Return what an annotation stands for, without markers, new types and type variables; aliases stay.

    Raises: Unfit: It is missing, or a name that was not resolved.
    """
    for _ in range(_MAX_EXPANSIONS):
        if annotation is inspect.Parameter.empty:
            raise Unfit("there is no annotation", "annotate every parameter and what is returned")
        if isinstance(annotation, str | typing.ForwardRef):
            raise Unfit(
                f"the name {annotation!r} was not resolved",
                "define it at module level, or use a class",
            )
        if isinstance(annotation, TypeVar):
            annotation = _of_variable(annotation)
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif typing.get_origin(annotation) is typing.Annotated or _is_marker(annotation):
            annotation = typing.get_args(annotation)[0]
        else:
            return type(None) if annotation is None else annotation
    raise Unfit("a type that never ends")


def _of_variable(variable: TypeVar) -> Any:
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007  (a tuple of members)
    return Any if variable.__bound__ is None else variable.__bound__


def _is_marker(annotation: Any) -> bool:
    return getattr(typing.get_origin(annotation), "_name", None) in _MARKERS


def is_alias(annotation: Any) -> bool:
    """Say whether an annotation was made by a `type X = …` statement."""
    origin = typing.get_origin(annotation) or annotation
    return type(origin).__name__ == "TypeAliasType"


def alias_value(alias: Any) -> Any:
    """Return what a `type X = …` statement stands for."""
    origin = typing.get_origin(alias) or alias
    bindings = dict(zip(origin.__type_params__, typing.get_args(alias), strict=False))
    return substituted(origin.__value__, bindings)


def substituted(annotation: Any, bindings: Mapping[Any, Any]) -> Any:
    """Return an annotation with its type variables replaced."""
    if isinstance(annotation, TypeVar):
        return bindings.get(annotation, annotation)
    if isinstance(annotation, type) or not bindings:
        return annotation
    free: tuple[Any, ...] = getattr(annotation, "__parameters__", ())
    if not free:
        return annotation
    return annotation[tuple(bindings.get(each, each) for each in free)]


def union_members(annotation: Any) -> list[Any]:
    """Return the members of a union, through aliases and new types; a type that is no union is its own only member.

    Raises: Unfit: A member is not resolved, or the union contains itself.
    """
    result: list[Any] = []
    waiting: list[Any] = [annotation]
    for _ in range(_MAX_EXPANSIONS):
        if not waiting:
            return result
        each = bare_of(waiting.pop(0))
        if typing.get_origin(each) in (typing.Union, types.UnionType):
            waiting[:0] = typing.get_args(each)
        elif is_alias(each):
            waiting.insert(0, alias_value(each))
        elif each is not msgspec.UnsetType and each not in result:
            result.append(each)
    raise Unfit("a union that contains itself", "name a class or a list in it")


def described(
    kind: type[Any], arguments: tuple[Any, ...], rest: Callable[[], Plan]
) -> tuple[RecordPlan, list[Described]]:
    """Return the empty plan of a record type, and its fields.

    Args:
        kind: The type.
        arguments: What the type's own parameters stand for.
        rest: Gives the plan of fields that are not declared.

    Raises: Unfit: The type is no record, or its annotations cannot be resolved.
    """
    if _derives(kind, msgspec.Struct):
        return StructPlan(kind), list(_struct_fields(kind, arguments))
    if dataclasses.is_dataclass(kind):
        _check_layout(kind)
        return DataclassPlan(kind), list(_dataclass_fields(kind, arguments))
    if _derives(kind, dict) and hasattr(kind, "__total__"):
        return TypedDictPlan(kind), list(_typed_dict_fields(kind, arguments))
    if _derives(kind, tuple) and hasattr(kind, "_fields"):
        return NamedTuplePlan(kind), list(_named_tuple_fields(kind, arguments))
    pydantic: Any = sys.modules.get("pydantic")
    model = getattr(pydantic, "BaseModel", None)
    if model is not None and _derives(kind, model) and kind is not model:
        return ModelPlan(kind, rest()), list(_model_fields(kind))
    raise Unfit(f"{type_name(kind)} cannot be stored", _STORABLE)


def _derives(kind: type[Any], base: type[Any]) -> bool:
    return issubclass(kind, base)  # apart, so that a checker does not narrow what it is asked of


def _check_layout(kind: type[Any]) -> None:
    try:
        object.__new__(kind)
    except TypeError:
        raise Unfit(
            f"{type_name(kind)} is abstract, or holds state outside its fields",
            "store a plain dataclass",
        ) from None


def _hints(kind: type, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the annotation of each field, with type variables replaced class by class."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001  (evaluating annotations runs the author's code)
        raise Unfit(
            f"the annotations of {type_name(kind)} cannot be resolved: {error}",
            "import what they name",
        ) from None
    bindings = _bindings(kind, arguments)
    result: dict[str, Any] = {}
    for name, hint in hints.items():
        owner = next((each for each in kind.__mro__ if name in inspect.get_annotations(each)), kind)
        result[name] = substituted(hint, bindings.get(owner, {}))
    return result


def _bindings(kind: type, arguments: tuple[Any, ...]) -> dict[type, dict[Any, Any]]:
    """Return, for a class and each generic base, what its type variables stand for."""
    found: dict[type, dict[Any, Any]] = {}
    waiting: list[tuple[type, tuple[Any, ...]]] = [(kind, arguments)]
    while waiting:
        each, given = waiting.pop()
        own = dict(zip(getattr(each, "__parameters__", ()), given, strict=False))
        found[each] = own
        for base in (
            types.get_original_bases(each) if sys.version_info >= (3, 12) else _original_bases(each)
        ):
            origin: Any = typing.get_origin(base) or base
            if isinstance(origin, type) and origin not in found:
                waiting.append(
                    (origin, tuple(substituted(part, own) for part in typing.get_args(base)))
                )
    return found


def _original_bases(kind: type) -> tuple[Any, ...]:
    return kind.__dict__.get("__orig_bases__", kind.__bases__)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _struct_fields(kind: type[msgspec.Struct], arguments: tuple[Any, ...]) -> Iterator[Described]:
    hints = _hints(kind, arguments)
    for field in structs.fields(kind):
        default: Callable[[], Any] | None = None
        if field.default is not msgspec.NODEFAULT:
            default = _constant(field.default)
        elif field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory
        yield Described(field.name, hints[field.name], default)


def _dataclass_fields(kind: Any, arguments: tuple[Any, ...]) -> Iterator[Described]:
    hints = _hints(kind, arguments)
    for field in dataclasses.fields(kind):
        default: Callable[[], Any] | None = None
        if field.default is not dataclasses.MISSING:
            default = _constant(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        yield Described(field.name, hints.get(field.name, field.type), default)


def _typed_dict_fields(kind: Any, arguments: tuple[Any, ...]) -> Iterator[Described]:
    for name, hint in _hints(kind, arguments).items():
        # The class's own sets are wrong where annotations are strings, so that the marker comes first.
        marker = getattr(typing.get_origin(hint), "_name", None)
        needed = marker == "Required" or (
            marker != "NotRequired" and name in kind.__required_keys__
        )
        yield Described(name, hint, None if needed else _constant(ABSENT))


def _named_tuple_fields(kind: Any, arguments: tuple[Any, ...]) -> Iterator[Described]:
    hints = _hints(kind, arguments)
    defaults: dict[str, Any] = kind._field_defaults
    for name in kind._fields:
        default = _constant(defaults[name]) if name in defaults else None
        yield Described(name, hints.get(name, Any), default)


def _model_fields(kind: Any) -> Iterator[Described]:
    if not kind.__pydantic_complete__:
        kind.model_rebuild(raise_errors=False)
    for name, field in kind.model_fields.items():
        default = None if field.is_required() else _model_default(field)
        yield Described(name, field.annotation, default)


def _model_default(field: Any) -> Callable[[], Any]:
    return lambda: field.get_default(call_default_factory=True)
