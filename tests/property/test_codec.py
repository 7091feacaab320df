"""Laws of the codec: what is encoded comes back; whatever bytes come in, data or `DecodeError` comes out."""

import collections
import dataclasses
import enum
import ipaddress
import math
import typing
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searching import examples

from outlast.errors import DecodeError, EncodeError, OutlastError
from outlast.journal.canonical import canonical, preimage, sha256_of
from outlast.journal.codec import TypeCodec, codec_for
from outlast.journal.failure import Failure, capture, rebuild


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass(frozen=True)
class Leaf:
    when: datetime | str
    price: Decimal | float | None = None


@dataclasses.dataclass
class Tree:
    leaves: tuple[Leaf, ...]
    children: "list[Tree]"
    named: "dict[str, Tree | Leaf]"


class Shape(msgspec.Struct):
    points: list[tuple[int, float]]
    tags: set[str | bytes | uuid.UUID]
    extra: Any = None


class Options(typing.TypedDict):
    depth: int
    color: typing.NotRequired[Color]


TEXT = st.text(st.characters(exclude_categories=("Cs",)))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(timezones=st.one_of(st.just(UTC), OFFSETS))
DECIMALS = st.decimals(allow_nan=False)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, TEXT),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)
LEAVES = st.builds(Leaf, MOMENTS | TEXT, st.none() | FLOATS | DECIMALS)
TREES = st.recursive(
    st.builds(Tree, st.just(()), st.just([]), st.just({})),
    lambda inner: st.builds(
        Tree,
        st.lists(LEAVES, max_size=2).map(tuple),
        st.lists(inner, max_size=2),
        st.dictionaries(TEXT, inner | LEAVES, max_size=2),
    ),
    max_leaves=5,
)
SHAPES = st.builds(
    Shape,
    st.lists(st.tuples(st.integers(), FLOATS), max_size=3),
    st.sets(TEXT | st.binary() | st.uuids(), max_size=3),
    JSON,
)
OPTIONS = st.fixed_dictionaries(
    {"depth": st.integers()}, optional={"color": st.sampled_from(Color)}
)

DECLARED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, st.integers()),
    "float": (float, FLOATS),
    "str": (str, TEXT),
    "bytes": (bytes, st.binary()),
    "bool | int | float": (bool | int | float | None, st.booleans() | st.integers() | FLOATS),
    "datetime": (datetime, MOMENTS),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "timedelta": (timedelta, st.timedeltas()),
    "Decimal": (Decimal, DECIMALS),
    "Fraction": (Fraction, st.fractions()),
    "complex": (complex, st.complex_numbers(allow_nan=False, allow_infinity=False)),
    "UUID": (uuid.UUID, st.uuids()),
    "ip": (ipaddress.IPv4Address | ipaddress.IPv6Address, st.ip_addresses()),
    "set": (frozenset[int], st.frozensets(st.integers())),
    "deque": (collections.deque[int], st.lists(st.integers()).map(collections.deque)),
    "int keys": (dict[int, str], st.dictionaries(st.integers(), TEXT)),
    "date keys": (dict[date | None, int], st.dictionaries(st.none() | st.dates(), st.integers())),
    "union": (datetime | date | str | bytes | list[int] | set[int] | None, MOMENTS | st.dates() | TEXT
              | st.binary() | st.lists(st.integers()) | st.sets(st.integers()) | st.none()),
    "Any": (Any, JSON),
    "tree": (Tree, TREES),
    "shape": (Shape, SHAPES),
    "options": (Options, OPTIONS),
    "list of unions": (list[Shape | Leaf | Options], st.lists(SHAPES | LEAVES | OPTIONS, max_size=3)),
}  # fmt: skip
CODECS: dict[str, TypeCodec[Any]] = {
    name: codec_for(annotation, where=name) for name, (annotation, _) in DECLARED.items()
}


def same(left: Any, right: Any) -> bool:
    """Say whether two values are equal in value and in every type."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple | collections.deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if dataclasses.is_dataclass(left):
        return same(vars(left), vars(right))
    if isinstance(left, msgspec.Struct):
        return same(msgspec.structs.asdict(left), msgspec.structs.asdict(right))
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if isinstance(left, datetime):
        return left == right and left.utcoffset() == right.utcoffset()
    return left == right


@pytest.mark.parametrize("name", DECLARED)
@examples(0.6)
@given(data=st.data())
def test_round_trip(name, data):
    """Every value of a declared type comes back exactly, and to the same bytes again."""
    codec = CODECS[name]
    value = data.draw(DECLARED[name][1])
    encoded = codec.encode(value)
    back = codec.decode(encoded)
    assert same(back, value)
    assert codec.encode(back) == encoded


HOSTILE = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.uuids(),
        st.datetimes(), MOMENTS, st.decimals(), st.just(object()), st.sampled_from(Color), LEAVES,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=4),
        st.builds(Leaf, inner, inner), st.builds(Shape, inner, inner, inner),
    ),
    max_leaves=10,
)  # fmt: skip


@examples(3)
@given(name=st.sampled_from(sorted(DECLARED)), value=HOSTILE)
def test_any_value_is_stored_exactly_or_refused(name, value):
    """A value of any type either comes back equal or is an `EncodeError` with a path, whatever the annotation."""
    codec = CODECS[name]
    try:
        encoded = codec.encode(value)
    except EncodeError as error:
        assert error.path.startswith("$")
        str(error).encode()
        return
    assert codec.decode(encoded) == value


def decode_or_refuse(codec: TypeCodec[Any], data: bytes) -> None:
    """Decode, and where that succeeds, come back to the same bytes in one more round."""
    try:
        value = codec.decode(data)
    except DecodeError as error:
        assert error.path.startswith("$")
        str(error).encode()
        return
    try:
        again = codec.encode(value)
    except EncodeError:  # deeper than what may be stored, or text that is none
        return
    assert codec.encode(codec.decode(again)) == again


@examples(3)
@given(name=st.sampled_from(sorted(DECLARED)), data=st.binary(max_size=200))
def test_any_bytes_give_data_or_a_decode_error(name, data):
    """Bytes of any kind never raise a foreign exception."""
    decode_or_refuse(CODECS[name], data)


KEYS = st.sampled_from(
    [
        "$type",
        "value",
        "leaves",
        "children",
        "named",
        "when",
        "price",
        "points",
        "tags",
        "depth",
        "color",
    ]
)
NAMES = st.sampled_from(
    [
        "Leaf",
        "Tree",
        "Shape",
        "datetime",
        "UUID",
        "bytes",
        "set",
        "2026-01-01",
        "P1DT1S",
        "1/0",
        "r",
    ]
)
NEAR = st.recursive(
    st.one_of(JSON, NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@examples(6)
@given(name=st.sampled_from(sorted(DECLARED)), data=NEAR)
def test_json_that_nearly_fits_gives_data_or_a_decode_error(name, data):
    """JSON with the right names in wrong places never raises a foreign exception."""
    decode_or_refuse(CODECS[name], msgspec.json.encode(data))


@pytest.mark.parametrize("name", DECLARED)
def test_deep_and_long_bytes_are_bounded(name):
    """Nesting and length of hostile bytes end in an error or in data, without exhausting the stack."""
    nested = b'{"children":[' * 5_000
    for data in (
        b"[" * 50_000,
        nested,
        nested + b"]}" * 5_000,
        b"9" * 100_000,
        b'"' + b"9" * 100_000 + b'"',
    ):
        decode_or_refuse(CODECS[name], data)


@examples(2)
@given(value=JSON)
def test_canonical_form_does_not_depend_on_order(value):
    """The order of keys changes no hash, and the pre-image is its own pre-image."""

    def turned(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: turned(each[key]) for key in reversed(list(each))}
        return [turned(item) for item in each] if isinstance(each, list) else each

    assert canonical(value) == canonical(turned(value)) == canonical(preimage(value))


@examples(2)
@given(name=st.sampled_from(sorted(DECLARED)), data=st.data())
def test_the_hash_survives_storage(name, data):
    """A value hashes the same before it is stored and after it is read."""
    value = data.draw(DECLARED[name][1])
    back = CODECS[name].decode(CODECS[name].encode(value))
    try:
        before = sha256_of(value)
    except EncodeError:
        return
    assert sha256_of(back) == before


@examples(2)
@given(value=HOSTILE)
def test_any_value_has_a_hash_or_is_refused(value):
    """A value of any type has a canonical form or is an `EncodeError`."""
    try:
        canonical(value)
    except EncodeError as error:
        assert error.path.startswith("$")


ERRORS = st.recursive(
    st.one_of(
        st.builds(ValueError, st.text()),
        st.builds(KeyError, st.text() | st.integers() | st.none()),
        st.builds(
            OSError, st.integers(-5, 40), st.text(), st.text(st.characters(exclude_characters="\0"))
        ),
        st.builds(TimeoutError),
        st.builds(OutlastError, st.text(), hint=st.text()),
        st.builds(UnicodeError, st.text(), st.integers()),
    ),
    lambda inner: st.one_of(
        st.builds(ExceptionGroup, st.text(), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda error, cause: _with_cause(error, cause), inner, inner),
    ),
    max_leaves=6,
)


def _with_cause(error: BaseException, cause: BaseException) -> BaseException:
    if error is not cause and error.__cause__ is None:
        error.__cause__ = cause
    return error


@examples(3)
@given(error=ERRORS)
def test_capture_after_rebuild_is_the_same_failure(error):
    """Law: capture, store, rebuild and capture again give the same failure."""
    failure = capture(error)
    stored = msgspec.json.decode(msgspec.json.encode(failure), type=Failure)
    assert stored == failure
    assert capture(rebuild(stored)) == failure
