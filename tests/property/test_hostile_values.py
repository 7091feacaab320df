"""Values that do their worst when looked at: each is stored exactly, or refused with the path, in a short text; nothing in between."""

# ruff: noqa: D102, D105 - classes that misbehave on purpose
from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import typing
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searching import examples

from outlast.errors import DecodeError, EncodeError, OutlastError, StepFailedError
from outlast.journal.canonical import canonical
from outlast.journal.codec import codec_for
from outlast.journal.entry import EntryRow, Failed, from_row, to_row
from outlast.journal.failure import MAX_FAILURES, Failure, capture, rebuild

_LONGEST_ERROR = 2_000
_LARGEST_FAILURE = 16 * 1024 * 1024
"""Bytes of JSON of one tree of exceptions, whatever is in it."""


class Broken(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no text either")


class NamelessType(type):
    """A class that does not say what it is."""

    def __getattribute__(cls, name: str) -> Any:
        if name in {"__qualname__", "__module__", "__name__", "__mro__"}:
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Nameless(metaclass=NamelessType):
    pass


class Liar:
    """Says that it is an int."""

    @property
    def __class__(self) -> Any:
        return int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("a")


class Hostile:
    """Raises whatever is asked of it."""

    def _raise(self, *_: Any) -> Any:
        raise Broken

    __repr__ = __str__ = __iter__ = __len__ = __bool__ = __eq__ = __int__ = __index__ = (
        __getattr__
    ) = _raise

    def __hash__(self) -> int:
        return 1


class Text(str):
    """A str that says of itself what is not so."""

    def isascii(self) -> bool:
        return True

    def __len__(self) -> int:
        return 1

    def encode(self, *_: Any) -> bytes:
        return b"fine"


class Whole(int):
    pass


class Many(dict):
    pass


class Row(list):
    pass


class Data(bytes):
    pass


class Number(enum.IntEnum):
    ONE = 1


class Strange(enum.Enum):
    """An Enum whose members cannot be looked up."""

    A = "a"
    B = "b"
    broken: ClassVar[bool]

    def __hash__(self) -> int:
        if BROKEN:
            raise Broken
        return 1


BROKEN: list[bool] = []


class Pair(typing.NamedTuple):
    left: int
    right: int


@dataclasses.dataclass
class Record:
    """A field that is a property of a subclass's making."""

    a: Any

    def __getattribute__(self, name: str) -> Any:
        if name == "a":
            raise Broken
        return super().__getattribute__(name)


@dataclasses.dataclass
class Secretive:
    a: int

    @property
    def __dict__(self) -> Any:
        raise Broken


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int


@dataclasses.dataclass
class Made:
    a: int
    b: list[int] = dataclasses.field(default_factory=lambda: no_default())
    start: dataclasses.InitVar[int] = 0


def no_default() -> Any:
    """Make nothing."""
    raise Broken


class Zone(tzinfo):
    def utcoffset(self, moment: Any) -> Any:
        raise Broken


class KeyedZone(tzinfo):
    """A zone with a key that names none."""

    key = "../../etc/passwd"

    def utcoffset(self, moment: Any) -> Any:
        return timedelta(hours=1)

    def dst(self, moment: Any) -> Any:
        return None


def looped(kind: type) -> Any:
    """Return a container that holds itself."""
    held: Any = kind()
    if kind is dict:
        held["again"] = [held]
    else:
        held.append({"again": held})
    return held


def deep(levels: int) -> Any:
    """Return lists in lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def slotted_without_value() -> Slotted:
    """Return a record that was never filled."""
    return object.__new__(Slotted)


LONG = type("L" * 100_000, (), {"__module__": "\x1b[2J\ud800"})

VALUES: dict[str, Any] = {
    "nameless": Nameless(), "liar": Liar(), "hostile": Hostile(), "text": Text("\ud800"), "long name": LONG(),
    "whole": Whole(5), "row": Row([1]), "many": Many(a=1), "data": Data(b"x"), "int enum": Number.ONE, "pair": Pair(1, 2),
    "default dict": collections.defaultdict(int, a=1), "generator": (each for each in "ab"), "a type": Record,
    "a list that holds itself": looped(list), "a dict that holds itself": looped(dict), "deep": deep(100_000), "deeper": deep(101),
    "surrogate": "\ud800", "surrogate key": {"\ud800": 1}, "long key": {"k" * 1_000_000: object()}, "key of bytes": {b"k": 1},
    "hostile key": {Hostile(): 1}, "huge": 1 << 1_000_000, "negative huge": -(1 << 20_000), "nan": float("nan"), "inf": float("-inf"),
    "sNaN": Decimal("sNaN"), "infinite": Decimal("-Infinity"), "fraction": Fraction(1 << 20_000, 3), "naive": datetime(2026, 1, 1),
    "last moment": datetime.max.replace(tzinfo=timezone(-timedelta(hours=23, minutes=59))),
    "first moment": datetime.min.replace(tzinfo=timezone(timedelta(hours=23, minutes=59))), "broken zone": datetime(2026, 1, 1, tzinfo=Zone()),
    "keyed zone": datetime(2026, 1, 1, tzinfo=KeyedZone()), "longest": timedelta.max, "shortest": timedelta.min,
    "record": Record.__new__(Record), "secretive": Secretive(1), "unfilled": slotted_without_value(), "record with more": Slotted(1),
    "range": range(1 << 30_000), "function": len, "error": Broken(), "set": {1, "a"}, "complex": complex("nan"),
}  # fmt: skip
TYPES: list[Any] = [
    Any, int, float, str, bytes, bool | None, int | str, list[int], list[Any], dict[str, int], dict[int, Any], dict[Pair, Any],
    tuple[int, ...], tuple[Any, Any], set[str], datetime, datetime | str | None, timedelta, Decimal, Fraction, complex, range,
    Record, Secretive, Slotted, Pair, Number, list[Record | Slotted], dict[str, list[Any]], typing.Literal["a", 1], Strange,
]  # fmt: skip
CODECS = {str(each): codec_for(each, where="the result of step plan") for each in TYPES}


def refused(error: EncodeError) -> None:
    """Check that a refusal is short, printable and says where."""
    assert error.path.startswith("$")
    assert len(str(error)) < _LONGEST_ERROR
    assert all(line.isprintable() for line in str(error).splitlines())


@pytest.mark.parametrize("name", VALUES)
def test_a_hostile_value_is_stored_exactly_or_refused(name):
    """Under every annotation, bare and inside each container."""
    value = VALUES[name]
    for codec in CODECS.values():
        for held in (value, [value], {"k": value}, (value, value), {"k": [value]}):
            try:
                encoded = codec.encode(held)
            except EncodeError as error:
                refused(error)
                continue
            back = codec.decode(encoded)
            assert type(back) is type(held) or (type(held) is int and type(back) is float)
            assert codec.encode(back) == encoded


@pytest.mark.parametrize("name", VALUES)
def test_a_hostile_value_has_a_hash_or_is_refused(name):
    """The canonical form too is whole or refused with the path."""
    for held in (VALUES[name], [VALUES[name]], {"k": VALUES[name]}, Slotted(VALUES[name])):
        try:
            canonical(held)
        except EncodeError as error:
            refused(error)


def test_a_refusal_names_the_place_where_the_code_of_the_author_raised():
    """Property, zone, attributes: the path leads to each."""
    for annotation, value, path in (
        (list[Record], [Record.__new__(Record)], "$[0].a"),
        (dict[str, datetime], {"k": datetime(2026, 1, 1, tzinfo=Zone())}, "$.k"),
        (list[Secretive], [Secretive(1)], "$[0]"),
        (list[int], [1, Nameless()], "$[1]"),
    ):
        with pytest.raises(EncodeError) as caught:
            codec_for(annotation, where="it").encode(value)
        assert caught.value.path == path
    with pytest.raises(EncodeError) as caught:
        canonical({"k": [Record.__new__(Record)]})
    assert caught.value.path == "$.k[0].a"


def test_an_enum_that_cannot_be_looked_up_is_refused_with_its_place():
    """A hash of the author's that raises is a refusal."""
    codec = codec_for(list[Strange], where="it")
    BROKEN.append(True)
    try:
        with pytest.raises(EncodeError) as caught:
            codec.encode([Strange.A])
    finally:
        BROKEN.clear()
    assert caught.value.path == "$[0]"


def test_a_default_factory_that_raises_is_a_decode_error_with_its_place():
    """Also where what it raises has no text."""
    codec = codec_for(list[Made], where="it")
    with pytest.raises(DecodeError) as caught:
        codec.decode(b'[{"a":1}]')
    assert caught.value.path == "$[0].b"
    assert len(str(caught.value)) < _LONGEST_ERROR


def test_no_member_of_a_dict_is_lost_to_another():
    """Two texts of one key, and a key that stands twice in pairs, are refused: one of two values would be gone."""
    one = "12345678-1234-5678-1234-567812345678"
    for annotation, data in (
        (dict[__import__("uuid").UUID, int], f'{{"{one}":1,"{one.replace("-", "")}":2}}'.encode()),
        (dict[tuple[int, int], int], b"[[[1,2],1],[[1,2],2]]"),
        (dict[Decimal, int], b'{"sNaN":1}'),
    ):
        with pytest.raises(DecodeError) as caught:
            codec_for(annotation, where="it").decode(data)
        assert caught.value.path != "$"


def test_a_key_of_a_zone_that_is_none_is_not_stored():
    """Only what is found again under its key is stored by it; any other zone by its offset."""
    codec = codec_for(datetime, where="it")
    moment = datetime(2026, 1, 1, tzinfo=KeyedZone())
    assert codec.decode(codec.encode(moment)) == moment
    zone = _zone_of_a_file("no/such zone")
    with pytest.raises(EncodeError):
        codec.encode(datetime(2026, 1, 1, tzinfo=zone))
    with pytest.raises(EncodeError):
        codec_for(type(zone), where="it").encode(zone)


def _zone_of_a_file(key: str) -> Any:
    import io
    import struct
    from zoneinfo import ZoneInfo

    header = b"TZif" + b"\0" * 16 + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    return ZoneInfo.from_file(io.BytesIO(header + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"), key=key)


# Exceptions


class Group(ExceptionGroup):
    """Shows other members than it has, without end."""

    @property
    def exceptions(self) -> Any:
        while True:
            yield ValueError("more")


class Impostor(Exception):
    """Says that it is a group."""

    @property
    def __class__(self) -> Any:
        return BaseExceptionGroup

    @property
    def exceptions(self) -> Any:
        while True:
            yield self

    message = "m"


class Causes(Exception):
    """Has a new cause whenever it is asked, and a traceback that leads to itself."""

    @property
    def __cause__(self) -> Any:
        return Causes()

    @property
    def __traceback__(self) -> Any:
        return Endless()


class Endless:
    tb_frame = None
    tb_lineno = 1

    @property
    def tb_next(self) -> Any:
        return self


class Quits(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class TextOfText(Exception):
    def __str__(self) -> str:
        return Text("\ud800" * 3)


class NamelessError(Exception, metaclass=NamelessType):
    pass


class Notes(Exception):
    @property
    def __notes__(self) -> Any:
        return iter(int, 1)


class WithText(Exception):
    """A text that raises without a name."""

    def __str__(self) -> str:
        raise NamelessError


class NoDict(Exception):
    @property
    def __dict__(self) -> Any:
        raise Broken


class Hashless(Exception):
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise Broken


def with_fields(error: BaseException, *pairs: tuple[Any, Any]) -> BaseException:
    """Return an error with attributes under any key."""
    vars(error).update(pairs)
    return error


def noted(error: BaseException, *notes: Any) -> BaseException:
    """Return an error with notes."""
    error.__notes__ = list(notes)
    return error


def chained(length: int) -> BaseException:
    """Return an error with a chain of causes."""
    error: BaseException = ValueError("0")
    for number in range(length):
        after = ValueError(str(number))
        after.__cause__ = error
        error = after
    return error


def cyclic() -> BaseException:
    """Return two errors, each the cause of the other."""
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def renamed() -> BaseException:
    """Return an error whose class has an endless name of what no terminal should see."""
    kind = type("Long", (Exception,), {})
    kind.__qualname__, kind.__module__ = "q" * 1_000_000, "\x1b\ud800" * 100_000
    return kind("x")


BIG = noted(ValueError("\0" * 1_000_000), *["\0" * 100_000] * 50)
ERRORS: dict[str, BaseException] = {
    "nameless": NamelessError("x"), "no text": Broken(), "a text without a name": WithText(), "quits": Quits(), "no dict": NoDict("x"),
    "text of text": TextOfText(), "hashless": Hashless("x"), "notes without end": Notes("x"), "causes without end": Causes(),
    "group": Group("many", [ValueError("x")]), "impostor": Impostor(), "renamed": renamed(), "cyclic": cyclic(),
    "a long chain": chained(100_000), "large": BIG, "large group": ExceptionGroup("g", [BIG] * 99),
    "wide group": ExceptionGroup("g", [ValueError("x")] * 100_000), "surrogate": ValueError("\ud800"), "surrogate argument": KeyError("\ud800"),
    "surrogate attribute": with_fields(Hashless("x"), ("\ud800", 1), ("kept", "yes")), "long attribute": with_fields(Quits(), ("k" * 1_000_000, 1)),
    "attributes without names": with_fields(TextOfText(), (5, 1), (None, 2), (b"x", 3), (Hostile(), 4)), "hostile arguments": ValueError(Nameless(), Hostile()),
    "huge argument": ValueError(1 << 100_000), "hostile notes": noted(ValueError("x"), Hostile(), 5, "\ud800", Text("\ud800")),
    "odd fields": with_fields(StepFailedError("m"), ("message", Hostile()), ("type_name", "\ud800"), ("stack", "x" * 1_000_000)),
    "cancelled": asyncio.CancelledError("\ud800"), "exit": SystemExit(Hostile()), "decoding": UnicodeDecodeError("utf-8", b"\xff" * 100_000, 0, 1, "\ud800"),
    "system": OSError(10**400, "x", "\0"), "own": OutlastError("\x1b[2J" * 100_000, hint="\ud800", run="r"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_any_exception_is_captured_bounded_and_storable(name):
    """Law: capture raises nothing, its size is bounded, an entry can keep it, and capture after rebuild is the same."""
    failure = capture(ERRORS[name])
    row = to_row(Failed(failure), 0, 0)
    assert len(row.body) < _LARGEST_FAILURE
    entry = from_row(row)
    assert isinstance(entry, Failed)
    assert _plain(entry.failure) == _plain(failure)
    assert _plain(capture(rebuild(entry.failure))) == _plain(failure)


def _plain(failure: Failure) -> Failure:
    """Return a failure without stacks, which a rebuilt exception does not have."""
    cause = None if failure.cause is None else _plain(failure.cause)
    return msgspec.structs.replace(
        failure, stack="", cause=cause, members=tuple(map(_plain, failure.members))
    )


def test_what_can_be_kept_of_an_exception_is_kept():
    """One attribute that cannot be kept costs no other."""
    failure = capture(ERRORS["surrogate attribute"])
    assert (failure.message, failure.details) == ("x", {"kept": "yes"})


def nested(levels: int) -> Failure:
    """Return a failure that no capture gives."""
    failure = Failure("ValueError", "x")
    for _ in range(levels):
        failure = Failure("ValueError", "x", cause=failure)
    return failure


def test_a_failure_deeper_than_any_captured_one_is_refused():
    """What nests as deep as a capture may is read; one level more was written by nobody."""
    deepest = capture(chained(MAX_FAILURES))
    levels = 0
    while deepest.cause is not None:
        deepest, levels = deepest.cause, levels + 1
    row = to_row(Failed(nested(levels)), 0, 0)
    assert isinstance(from_row(row), Failed)
    with pytest.raises(DecodeError, match="nested deeper"):
        from_row(to_row(Failed(nested(levels + 1)), 0, 0))


FIELDS = st.dictionaries(
    st.text(max_size=5) | st.integers() | st.none(),
    st.text() | st.integers() | st.none() | st.floats(),
    max_size=4,
)


@examples(3)
@given(
    text=st.text() | st.integers() | st.binary() | st.none(),
    fields=FIELDS,
    notes=st.lists(st.text() | st.none(), max_size=3),
    repeat=st.integers(1, 30_000),
)
def test_any_text_fields_and_notes_are_captured(text, fields, notes, repeat):
    """Law: the same for texts and fields of any kind and length."""
    message = text * repeat if isinstance(text, str) else text
    error = noted(with_fields(Hashless(message), *fields.items()), *notes)
    failure = capture(error)
    body = to_row(Failed(failure), 0, 0)
    assert len(body.body) < _LARGEST_FAILURE
    assert _plain(
        capture(rebuild(from_row(EntryRow(0, 0, "failed", "", "", body.body)).failure))
    ) == _plain(failure)
