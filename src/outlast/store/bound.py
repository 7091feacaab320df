"""What no store can keep: the checks that turn an unstorable value into a refusal of its own change.

A value that one store took and another could not would tie a run to its store, and a statement that fails in the middle of a
transaction would take other changes down with it. So both are found before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import TypeAlias, cast

from msgspec import Struct

from outlast.journal.length import (
    APPROVAL_ID_BYTES,
    MESSAGE_ID_BYTES,
    NAME_BYTES,
    OPERATION_BYTES,
    RUN_ID_BYTES,
    size_in_bytes,
)
from outlast.store.change import Change
from outlast.store.moment import BEGINNING_OF_TIME, END_OF_TIME, to_micros

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The largest payload of one row: above the 50 MiB at which a whole history blocks, below what any store can hold."""

_LONGEST_SILENCE = timedelta(days=36_500)
_MOST = (1 << 63) - 1
_LEAST = -(1 << 63)

UNSTORABLE = "unstorable"
"""The refusal of a change that no store can keep: NUL or lone surrogates in text, a naive time or one beyond the calendar, a number
beyond 63 bits, a payload too large, a name or an id too long for an index."""

_LONGEST = {
    "tenant": NAME_BYTES,
    "run_id": RUN_ID_BYTES,
    "workflow": NAME_BYTES,
    "queue": NAME_BYTES,
    "effect": NAME_BYTES,
    "operation": OPERATION_BYTES,
    "message_id": MESSAGE_ID_BYTES,
    "approval_id": APPROVAL_ID_BYTES,
    "notice": NAME_BYTES,
    "sticky_id": NAME_BYTES,
    "request_id": NAME_BYTES,
    # Of an operation that waits for another run it is that one's id.
    "name": RUN_ID_BYTES,
}
"""By the name of the field, in bytes: what stands in an index of some store."""
_SHORTEST = min(_LONGEST.values())
_NEVER_LONG = _SHORTEST // 4
"""So many characters are within all of these, whatever they are."""


CORRUPT = "corrupt"
"""The refusal of a change that meets a row that cannot be read."""


_Path: TypeAlias = tuple[str | int, ...]


def unstorable_part(change: Change) -> str:
    """Return the path of the first field of `change` that cannot be kept, as `entries[2].name`, or an empty string."""
    if _is_plain(change):
        return ""
    for path in _parts((), change):
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return "".join(steps).removeprefix(".")
    return ""


def size_bytes(value: object) -> int:
    """Return how many bytes of payload there are in a change, or a part of one, in whatever field."""
    if isinstance(value, bytes):
        return len(value)
    total = 0
    for one in _fields(value):
        if type(one) is bytes:
            total += len(one)
        elif one and isinstance(one, tuple | Struct):
            total += size_bytes(cast("object", one))
    return total


@cache
def _getter(kind: type[Struct]) -> Callable[[Struct], tuple[object, ...]]:
    names = kind.__struct_fields__
    if len(names) == 1:
        return lambda one: (getattr(one, names[0]),)
    return attrgetter(*names)


def _fields(value: object) -> tuple[object, ...]:
    """Return the values of a struct or a tuple; nothing of what is neither."""
    if isinstance(value, tuple):
        return cast("tuple[object, ...]", value)
    return _getter(type(value))(value) if isinstance(value, Struct) else ()


def _is_plain(value: object) -> bool:
    """Whether all of it is of the simplest kinds, and within every bound. Nearly every change is, and to say so takes a tenth of `_parts`."""
    for one in _fields(value):
        kind = type(one)
        if one is None or one == () or kind is bool:
            continue
        if kind is str:
            text = cast("str", one)
            fits = len(text) <= _SHORTEST and text.isascii() and "\0" not in text
        elif kind is bytes:
            fits = len(cast("bytes", one)) <= MAX_BODY_BYTES
        elif kind is int:
            fits = _LEAST <= cast("int", one) <= _MOST
        else:
            fits = isinstance(one, tuple | Struct) and _is_plain(cast("object", one))
        if not fits:
            return False
    return True


def _parts(path: _Path, value: object) -> Iterator[_Path]:
    """Yield the paths of what cannot be kept in a field, whatever its struct: one that is added later is looked at too."""
    match value:
        case tuple():
            for place, one in enumerate(cast("tuple[object, ...]", value)):
                yield from _parts((*path, place), one)
        case Struct():
            for name in value.__struct_fields__:
                # What a change is of is named without saying so: `run_id`.
                inner = () if name == "run" and not path else (*path, name)
                yield from _parts(inner, getattr(value, name))
        case _:
            if not _is_kept(value) or (isinstance(value, str) and _is_long(path, value)):
                yield path


def _is_long(path: _Path, text: str) -> bool:
    if len(text) <= _NEVER_LONG or not path:
        return False
    limit = _LONGEST.get(str(path[-1]))
    return limit is not None and size_in_bytes(text) > limit


def _is_kept(value: object) -> bool:
    match value:
        case str():
            return keeps(value)
        case bytes():
            return len(value) <= MAX_BODY_BYTES
        case int():
            return _LEAST <= value <= _MOST
        case datetime():
            return _is_moment(value)
        case timedelta():
            return timedelta(0) < value < _LONGEST_SILENCE
        case _:
            return True


def keeps(text: str) -> bool:
    """Whether a store can hold a text: it has no NUL and no lone surrogate."""
    return "\0" not in text and (text.isascii() or _encodes(text))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_moment(time: datetime) -> bool:
    """Whether a time is one of the calendar, in UTC too: whoever reads it gets it so."""
    try:
        is_aware = time.utcoffset() is not None
        return is_aware and BEGINNING_OF_TIME <= to_micros(time) < END_OF_TIME
    except Exception:  # noqa: BLE001 - the zone is somebody's own code
        return False
