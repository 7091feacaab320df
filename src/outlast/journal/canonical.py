"""Canonical JSON (RFC 8785) of values, and their SHA-256: what keys and approvals are made of.

RFC 8785 knows only what JSON and IEEE 754 hold, so every other value has a *pre-image*, a piece of JSON that stands for
it. This table is a format: keys that were computed under it must come out again for ever.

| value | pre-image |
| --- | --- |
| None, bool, str | itself; a lone surrogate is refused |
| int | itself within ±(2^53 − 1), else its decimal digits as a string |
| float | itself as RFC 8785 writes it (`-0.0` is `0`, `1.0` is `1`); NaN and infinities are refused |
| Decimal | string, exact, without trailing zeros: `1.50` is `"1.5"`, `100` is `"1E+2"`, any zero is `"0"`; NaN is refused |
| Enum | pre-image of its value, where that is a str or an int; else its name |
| bytes, bytearray | standard base64 with padding (RFC 4648 section 4) |
| datetime | UTC, `2026-01-31T12:00:00Z`, microseconds as six digits where they are not zero; naive is refused |
| date, time | ISO 8601, microseconds where they are not zero; a time with an offset keeps it |
| timedelta | `P1DT30.000001S`: days, then seconds, six digits of microseconds where not zero, `-` in front if negative |
| UUID, IP address, network or interface, URL, path | its `str` |
| Fraction | `"1/3"`, in lowest terms |
| complex | `[real, imaginary]` |
| range | `[start, stop, step]` |
| ZoneInfo | its key |
| timezone | its offset, as a timedelta |
| list, tuple, deque | array |
| set, frozenset | array, sorted by the canonical bytes of the members |
| dict, Counter, OrderedDict | object; keys that are no str by their pre-image, which must be a string or an integer |
| dataclass, Struct, Pydantic model, NamedTuple | object of its fields, by their names in Python |
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias, cast

import msgspec
import rfc8785

from outlast.errors import EncodeError
from outlast.journal.plan import MAX_DEPTH, Plan, Unfit, Walk, key_step, kind_of, shown_name, unread
from outlast.journal.scalar import check_float, check_int, check_text
from outlast.journal.text import string_plan, write_duration

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_MAX_EXACT = (1 << 53) - 1
_MAX_MEMBERS = 1 << 24
_SEQUENCES = frozenset({list, tuple, deque})
_SETS = frozenset({set, frozenset})
_MAPPINGS = frozenset({dict, OrderedDict, Counter})


def preimage(value: Any) -> Json:
    """Return the JSON data that stands for a value in hashes, by the table above.

    Raises: EncodeError: The value, or a part of it, has no pre-image; the error names the path.
    """
    try:
        return _preimage(value, Walk(_MAX_MEMBERS))
    except Unfit as unfit:
        message = f"no canonical form: at {unfit.path}: {unfit.reason}"
        raise EncodeError(message, path=unfit.path, hint=unfit.hint) from unfit.error
    except RecursionError:
        raise EncodeError(f"no canonical form: nested deeper than {MAX_DEPTH} levels") from None


def canonical(value: Any) -> bytes:
    """Return a value as RFC 8785 JSON in UTF-8, through its pre-image.

    Raises: EncodeError: The value, or a part of it, has no pre-image.
    """
    return rfc8785.dumps(preimage(value))  # pyright: ignore[reportArgumentType]  (it takes all JSON)


def sha256_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical form, in hex.

    Raises: EncodeError: The value, or a part of it, has no pre-image.
    """
    return hashlib.sha256(canonical(value)).hexdigest()


def payload_sha256(bound: Mapping[str, Any]) -> str:
    """Return the SHA-256 of arguments by parameter name, defaults filled in, in hex.

    Raises: EncodeError: An argument, or a part of it, has no pre-image.
    """
    return sha256_of(dict(bound))


def _preimage(value: Any, walk: Walk) -> Json:
    kind = kind_of(value)
    if value is None or kind is bool:
        return value
    if kind in (str, int, float):
        return _natural(value)
    walk.enter(1)
    try:
        data = _enum(value) if issubclass(kind, enum.Enum) else _members(value, kind, walk)
    except (Unfit, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001  (properties and the like are the author's code)
        raise unread(error) from None
    walk.depth -= 1
    return data


def _enum(value: Any) -> Json:
    plain: Any = value.value
    return _natural(plain if type(plain) in (str, int) else value.name)


def _natural(value: str | float) -> Json:
    if isinstance(value, str):
        check_text(value)
        return value
    if isinstance(value, float):
        check_float(value)
        return value
    check_int(value)
    return value if -_MAX_EXACT <= value <= _MAX_EXACT else str(value)


def _members(value: Any, kind: type[Any], walk: Walk) -> Json:
    if kind in _SEQUENCES:
        return _array(value, walk)
    if kind in _SETS:
        return sorted(_array(value, walk), key=rfc8785.dumps)  # pyright: ignore[reportArgumentType]
    if kind in _MAPPINGS:
        return _object(value, walk)
    if kind is complex:
        return _array((value.real, value.imag), walk)
    if kind is range:
        return _array((value.start, value.stop, value.step), walk)
    fields = _fields(value, kind)
    if fields is not None:
        return _object(fields, walk)
    return _text(value, kind)


def _array(values: Iterable[Any], walk: Walk) -> list[Json]:
    data: list[Json] = []
    try:
        for each in values:
            walk.charge(1)
            data.append(_preimage(each, walk))
    except Unfit as unfit:
        raise unfit.under(len(data)) from None
    return data


def _object(values: Mapping[Any, Any], walk: Walk) -> dict[str, Json]:
    data: dict[str, Json] = {}
    for key, each in values.items():
        walk.charge(1)
        try:
            name = _key(key, walk)
            data[name] = _preimage(each, walk)
        except Unfit as unfit:
            raise unfit.under(key_step(key)) from None
    if len(data) != len(values):
        raise Unfit("two keys of the dict have the same pre-image")
    return data


def _key(key: Any, walk: Walk) -> str:
    data = _preimage(key, walk)
    if type(data) is int:
        return str(data)
    if type(data) is not str:
        raise Unfit("a key that is neither text nor an integer")
    return data


def _field(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception as error:  # noqa: BLE001  (properties are the author's code)
        raise unread(error).under(name) from None


def _fields(value: Any, kind: Any) -> dict[str, Any] | None:
    """Return the fields of a record by name, or None where the value is no record."""
    whole: Any = value  # what a checker narrows no further
    names: Iterable[str] | None = None
    model: Any = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    # By the type alone: what a value says of its own class may be anything.
    if issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind)]
    elif issubclass(kind, tuple):
        names = getattr(cast("Any", kind), "_fields", None)
    elif model is not None and issubclass(kind, model):
        names = [name for name in kind.model_fields if name in vars(value)]
    if names is None:
        return None
    found = {name: _field(whole, name) for name in names}
    found.update(getattr(whole, "__pydantic_extra__", None) or {})
    return {name: each for name, each in found.items() if each is not msgspec.UNSET}


def _text(value: Any, kind: type[Any]) -> str:
    if kind is datetime:
        return _moment(value)
    if kind is Decimal:
        return _decimal(value)
    if kind is timedelta:
        return write_duration(value)
    plan: Plan | None = string_plan(kind)
    if plan is None:
        raise Unfit(
            f"{shown_name(kind)} has no canonical form", "leave it out of the key, or pass its text"
        )
    return plan.encode(value, Walk(_MAX_MEMBERS))


def _moment(value: datetime) -> str:
    if value.utcoffset() is None:
        raise Unfit("a naive datetime means nothing on another machine", "give it a timezone")
    try:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise Unfit("a datetime whose UTC is out of range") from None


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise Unfit("a Decimal that is no number", "leave it out of the key")
    kept = "".join(map(str, digits)).rstrip("0")
    if not kept:
        return "0"
    exponent += len(digits) - len(kept)
    return str(Decimal((sign, tuple(map(int, kept)), exponent)))
