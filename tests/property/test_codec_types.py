"""Laws of the codec over random annotations: trees of all that can be declared, each with values of exactly that type."""

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import math
import typing
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from searching import examples

from outlast.errors import DecodeError, DefinitionError, EncodeError
from outlast.journal.canonical import sha256_of
from outlast.journal.codec import TypeCodec, codec_for

T = TypeVar("T")
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(
    timezones=st.just(UTC)
    | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
)
INTS = st.integers() | st.integers(-(1 << 4_000), 1 << 4_000)


@dataclasses.dataclass(frozen=True)
class Kind:
    """An annotation with the values of its type.

    Args:
        hashable: Whether its values can be members of sets and keys.
    """

    annotation: Any
    values: st.SearchStrategy[Any]
    hashable: bool = True


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 1 << 70


class Shape(enum.Enum):
    POINT = (1, 2)
    LINE = None


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


UserId = typing.NewType("UserId", int)


@dataclasses.dataclass
class Plain:
    a: int
    b: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    a: Decimal
    plain: Plain = dataclasses.field(default_factory=lambda: Plain(1))


@dataclasses.dataclass
class Box(Generic[T]):
    held: T
    more: list[T] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Tree:
    value: int | Color
    left: Tree | None = None
    rest: list[Tree] = dataclasses.field(default_factory=list)


class Point(typing.NamedTuple):
    x: float
    label: str | int = ""


class Options(typing.TypedDict, total=False):
    depth: typing.Required[int]
    color: Color
    at: datetime


class Packed(msgspec.Struct):
    a: int
    tags: frozenset[str] = frozenset()
    rest: dict[str, int] = {}


class Model(pydantic.BaseModel):
    a: int
    when: datetime | None = None
    inner: list[Plain] = []


class Wide(pydantic.BaseModel, extra="allow"):
    a: int = 0


PLAINS = st.builds(Plain, INTS, st.none() | TEXT)
TREES = st.recursive(
    st.builds(Tree, INTS | st.sampled_from(Color)),
    lambda inner: st.builds(Tree, INTS, st.none() | inner, st.lists(inner, max_size=2)),
    max_leaves=4,
)
LEAVES: list[Kind] = [
    Kind(None, st.none()), Kind(bool, st.booleans()), Kind(int, INTS), Kind(float, FLOATS), Kind(str, TEXT), Kind(bytes, st.binary(max_size=8)),
    Kind(bytearray, st.binary(max_size=8).map(bytearray), hashable=False), Kind(complex, st.complex_numbers(allow_nan=False, allow_infinity=False)),
    Kind(datetime, MOMENTS), Kind(date, st.dates()), Kind(time, st.times()), Kind(timedelta, st.timedeltas()),
    Kind(Decimal, st.decimals(allow_nan=False)), Kind(Fraction, st.fractions()), Kind(uuid.UUID, st.uuids()),
    Kind(ipaddress.IPv6Address, st.ip_addresses(v=6)), Kind(PurePosixPath, TEXT.map(PurePosixPath)), Kind(range, st.builds(range, INTS, INTS)),
    Kind(Color, st.sampled_from(Color)), Kind(Level, st.sampled_from(Level)), Kind(Shape, st.sampled_from(Shape)), Kind(Rights, st.sampled_from([*Rights, Rights(0), Rights(3)])),
    Kind(typing.Literal["a", 1, True, None, Color.RED], st.sampled_from(["a", 1, True, None, Color.RED])), Kind(UserId, INTS), Kind(Annotated[int, "note"], INTS),
    Kind(Plain, PLAINS, hashable=False), Kind(Frozen, st.builds(Frozen, a=st.decimals(allow_nan=False), plain=PLAINS), hashable=False),
    Kind(Tree, TREES, hashable=False), Kind(Point, st.builds(Point, FLOATS, TEXT | INTS)),
    Kind(Options, st.fixed_dictionaries({"depth": INTS}, optional={"color": st.sampled_from(Color), "at": MOMENTS}), hashable=False),
    Kind(Packed, st.builds(Packed, INTS, st.frozensets(TEXT, max_size=2), st.dictionaries(TEXT, INTS, max_size=2)), hashable=False),
    Kind(Model, st.builds(Model, a=INTS, when=st.none() | MOMENTS, inner=st.lists(PLAINS, max_size=2)), hashable=False),
    Kind(Wide, st.builds(lambda a, more: Wide(a=a, **more), INTS, st.dictionaries(st.sampled_from(["b", "c"]), TEXT | INTS)), hashable=False),
    Kind(Any, st.recursive(st.none() | st.booleans() | INTS | FLOATS | TEXT, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2), max_leaves=4), hashable=False),
]  # fmt: skip


def _wrapped(kind: Kind) -> list[Kind]:
    """Return the types of one parameter, made of this one."""
    annotation, values = kind.annotation, st.lists(kind.values, max_size=3)
    found = [
        Kind(list[annotation], values, hashable=False),
        Kind(tuple[annotation, ...], values.map(tuple), kind.hashable),
        Kind(collections.deque[annotation], values.map(collections.deque), hashable=False),
        Kind(Sequence[annotation], values | values.map(tuple), hashable=False),
        Kind(dict[str, annotation], st.dictionaries(TEXT, kind.values, max_size=3), hashable=False),
        Kind(
            Mapping[int, annotation], st.dictionaries(INTS, kind.values, max_size=3), hashable=False
        ),
        Kind(Box[annotation], st.builds(Box, kind.values, values), hashable=False),
    ]
    if kind.hashable:
        found += [
            Kind(set[annotation], st.sets(kind.values, max_size=3), hashable=False),
            Kind(frozenset[annotation], st.frozensets(kind.values, max_size=3)),
            Kind(
                dict[annotation, int],
                st.dictionaries(kind.values, INTS, max_size=3),
                hashable=False,
            ),
        ]
    return found


def _joined(one: Kind, other: Kind) -> list[Kind]:
    """Return the types made of two."""
    both = one.hashable and other.hashable
    return [
        Kind(tuple[one.annotation, other.annotation], st.tuples(one.values, other.values), both),
        Kind(typing.Union[one.annotation, other.annotation], one.values | other.values, both),  # noqa: UP007
        Kind(Box[one.annotation | None] if one.annotation not in (None, Any) else Box[int], st.builds(Box, one.values if one.annotation not in (None, Any) else INTS), hashable=False),
    ]  # fmt: skip


@st.composite
def kinds(draw: st.DrawFn, most: int = 3) -> Kind:
    """Return an annotation tree of at most so many levels, with its values."""
    kind = draw(st.sampled_from(LEAVES))
    for _ in range(draw(st.integers(0, most))):
        if draw(st.booleans()):
            kind = draw(st.sampled_from(_wrapped(kind)))
        else:
            kind = draw(st.sampled_from(_joined(kind, draw(st.sampled_from(LEAVES)))))
    return kind


def codec_of(kind: Kind) -> TypeCodec[Any]:
    """Return the codec of a type, where its members can be told apart."""
    try:
        return codec_for(kind.annotation, where="it")
    except DefinitionError:
        assume(False)
        raise


def same(left: Any, right: Any) -> bool:
    """Say whether two values are equal in value and in every type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple | collections.deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, set | frozenset):
        return left == right and sorted(map(repr, map(type, left))) == sorted(
            map(repr, map(type, right))
        )
    if isinstance(left, pydantic.BaseModel):
        return left == right and left.model_fields_set == right.model_fields_set
    if dataclasses.is_dataclass(left) or isinstance(left, msgspec.Struct):
        names = getattr(left, "__struct_fields__", None) or [
            each.name for each in dataclasses.fields(left)
        ]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if isinstance(left, datetime):
        return left == right and left.utcoffset() == right.utcoffset()
    return left == right


def test_equality_by_type_is_strict():
    """The comparison that the laws here rest on sees a type, a sign and an offset."""
    for left, right in (
        (1, True),
        (0.0, -0.0),
        ([1], (1,)),
        (Decimal("1.0"), Decimal(1)),
        (Plain(1), Plain(True)),
        ({1: 2}, {1: 2.0}),
    ):
        assert not same(left, right)


@examples(4)
@given(data=st.data(), kind=kinds())
def test_a_value_of_the_declared_type_comes_back_exactly(data, kind):
    """Law: the same value, the same types all the way down, the same bytes again, the same hash."""
    codec = codec_of(kind)
    value = data.draw(kind.values)
    encoded = codec.encode(value)
    back = codec.decode(encoded)
    assert same(back, value)
    assert codec.encode(back) == encoded
    try:
        digest = sha256_of(value)
    except EncodeError:
        return
    assert sha256_of(back) == digest


@examples(4)
@given(data=st.data(), kind=kinds(), other=kinds())
def test_a_value_of_another_type_is_refused_or_is_one_of_this(data, kind, other):
    """Law: encoding names the path or gives back an equal value; nothing is taken for something else."""
    codec = codec_of(kind)
    value = data.draw(other.values)
    try:
        encoded = codec.encode(value)
    except EncodeError as error:
        assert error.path.startswith("$")
        assert len(str(error)) < 2_000
        return
    back = codec.decode(encoded)
    assert back == value
    assert codec.encode(back) == encoded


@examples(4)
@given(data=st.data(), kind=kinds(), other=kinds())
def test_json_of_another_type_is_refused_with_the_path_or_is_one_of_this(data, kind, other):
    """Law: what is decoded is of the declared type: it can be encoded, and comes back the same."""
    codec, foreign = codec_of(kind), codec_of(other)
    encoded = foreign.encode(data.draw(other.values))
    try:
        value = codec.decode(encoded)
    except DecodeError as error:
        assert error.path.startswith("$")
        assert len(str(error)) < 2_000
        return
    again = codec.encode(value)
    assert same(codec.decode(again), value)


@pytest.mark.soak
@examples(100)
@given(data=st.data(), kind=kinds(most=6))
def test_deep_annotations(data, kind):
    """The first law, over larger trees and for as long as one likes."""
    codec = codec_of(kind)
    value = data.draw(kind.values)
    encoded = codec.encode(value)
    assert same(codec.decode(encoded), value)
