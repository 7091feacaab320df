"""Canonical JSON: the table of pre-images is a format, held here by vectors."""

import collections
import dataclasses
import enum
import ipaddress
import json
import pathlib
import uuid
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import msgspec
import pydantic
import pytest

from outlast.errors import EncodeError
from outlast.journal.canonical import canonical, payload_sha256, preimage, sha256_of


class Color(enum.Enum):
    RED = "r"


class Mixed(enum.Enum):
    A = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


class Shape(msgspec.Struct):
    sides: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class User(pydantic.BaseModel, extra="allow"):
    id: int


class Pair(NamedTuple):
    left: int
    right: int


VECTORS = [
    (None, "null"),
    (True, "true"),
    (0, "0"),
    (2**53 - 1, "9007199254740991"),
    (2**53, '"9007199254740992"'),
    (-(2**53) + 1, "-9007199254740991"),
    (-(2**53), '"-9007199254740992"'),
    (2**200, f'"{2**200}"'),
    (-0.0, "0"),
    (1.0, "1"),
    (1e21, "1e+21"),
    (1e-7, "1e-7"),
    (333333333.33333329, "333333333.3333333"),
    ("é\u2028\x00", '"é\u2028\\u0000"'),
    (Decimal("1.50"), '"1.5"'),
    (Decimal(100), '"1E+2"'),
    (Decimal("1E+2"), '"1E+2"'),
    (Decimal("-0.00"), '"0"'),
    (Decimal("123456789012345678901234567890.10"), '"123456789012345678901234567890.1"'),
    (b"\xff\xfe", '"//4="'),
    (bytearray(b"a"), '"YQ=="'),
    (datetime(2026, 1, 31, 12, tzinfo=UTC), '"2026-01-31T12:00:00Z"'),
    (datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), '"2026-01-31T12:00:00Z"'),
    (datetime(2026, 1, 31, 12, microsecond=5, tzinfo=UTC), '"2026-01-31T12:00:00.000005Z"'),
    (date(2026, 1, 31), '"2026-01-31"'),
    (time(1, 2, 3), '"01:02:03"'),
    (time(1, 2, 3, tzinfo=UTC), '"01:02:03+00:00"'),
    (timedelta(days=1, microseconds=1), '"P1DT0.000001S"'),
    (timedelta(seconds=-30), '"-P0DT30S"'),
    (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (ipaddress.ip_network("10.0.0.0/8"), '"10.0.0.0/8"'),
    (pathlib.PurePosixPath("a/b"), '"a/b"'),
    (zoneinfo.ZoneInfo("Europe/Berlin"), '"Europe/Berlin"'),
    (Fraction(2, 6), '"1/3"'),
    (complex(1, -2), "[1,-2]"),
    (range(3), "[0,3,1]"),
    (Color.RED, '"r"'),
    (Mixed.A, '"A"'),
    (Level.LOW, "1"),
    ([1, (2, 3)], "[1,[2,3]]"),
    (collections.deque([1]), "[1]"),
    ({10, 9, "a", None}, '["a",10,9,null]'),
    (frozenset({b"b", b"a"}), '["YQ==","Yg=="]'),
    ({"b": 1, "a": 2, "\ufb33": 3, "\U0001f600": 4}, '{"a":2,"b":1,"\U0001f600":4,"\ufb33":3}'),
    ({2: 1, 10: 2}, '{"10":2,"2":1}'),
    ({date(2026, 1, 1): 1}, '{"2026-01-01":1}'),
    (collections.Counter("aab"), '{"a":2,"b":1}'),
    (Money(Decimal("1.0")), '{"amount":"1","currency":"EUR"}'),
    (Shape(4), '{"sides":4}'),
    (User(id=1, more="x"), '{"id":1,"more":"x"}'),
    (Pair(1, 2), '{"left":1,"right":2}'),
]


@pytest.mark.parametrize(("value", "text"), VECTORS, ids=map(str, range(len(VECTORS))))
def test_vectors(value, text):
    """Each line of the table has the bytes that it had in the first release."""
    assert canonical(value).decode() == text


def test_hash_vectors():
    """The hashes are those of the canonical bytes."""
    empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert payload_sha256({}) == sha256_of({}) == empty
    assert sha256_of({"approve": True}) == sha256_of({"approve": True})
    assert payload_sha256({"b": 1, "a": 2}) == payload_sha256({"a": 2, "b": 1})
    assert payload_sha256({"a": 2**53}) != payload_sha256({"a": 2**53 + 1})


REFUSED = [
    ({"a": [float("nan")]}, "$.a[0]"),
    (float("inf"), "$"),
    (Decimal("NaN"), "$"),
    ([Decimal("Infinity")], "$[0]"),
    ("\ud800", "$"),
    ({"\ud800": 1}, '$["\\ud800"]'),
    ({"a": datetime(2026, 1, 1)}, "$.a"),
    ({1: 0, "1": 0}, "$"),
    ({(1, 2): 0}, '$["<tuple>"]'),
    ({True: 0}, '$["<bool>"]'),
    (object(), "$"),
    ([Money(object())], "$[0].amount"),
    (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "$"),
]


@pytest.mark.parametrize(("value", "path"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_refused_with_path(value, path):
    """What has no canonical form is refused, with its path."""
    with pytest.raises(EncodeError) as caught:
        canonical(value)
    assert caught.value.path == path


def test_endless_values_are_refused():
    """A value that contains itself has no canonical form."""
    value: list[object] = []
    value += [value, value]
    with pytest.raises(EncodeError):
        canonical(value)


def test_a_cached_property_is_not_hashed():
    """What a model remembers beside its fields changes no hash."""
    from functools import cached_property

    class Lazy(pydantic.BaseModel):
        x: int

        @cached_property
        def double(self) -> int:
            return self.x * 2

    value = Lazy(x=1)
    before = sha256_of(value)
    assert value.double == 2
    assert sha256_of(value) == before


def test_preimage_is_json():
    """The pre-image is data that any JSON tool takes."""
    assert json.loads(json.dumps(preimage([value for value, _ in VECTORS]))) == preimage(
        [value for value, _ in VECTORS]
    )
