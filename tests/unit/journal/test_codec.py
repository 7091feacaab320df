"""The codec: each value comes back exactly or is refused with its path; the annotation alone decides."""

import abc
import collections
import dataclasses
import enum
import inspect
import ipaddress
import json
import pathlib
import socket
import sys
import threading
import typing
import uuid
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from outlast.errors import DecodeError, DefinitionError, EncodeError
from outlast.journal.codec import LIMIT_BYTES, arguments_codec, codec_for

T = TypeVar("T")
N = TypeVar("N", bound=int)
UserId = NewType("UserId", int)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@dataclasses.dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclasses.dataclass
class Tip(Money):
    waiter: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Point(Generic[N]):
    x: N
    y: N


@dataclasses.dataclass
class Box(Generic[T]):
    item: T
    rest: list[T] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Endless(Generic[T]):
    inner: "Endless[list[T]] | None"


C = TypeVar("C", int, datetime)


@dataclasses.dataclass
class Choice(Generic[C]):
    item: C
    fixed: typing.Final[int] = 1


@dataclasses.dataclass
class Unknown:
    item: "Nowhere"  # noqa: F821


@dataclasses.dataclass
class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self):
        """Do nothing."""


@dataclasses.dataclass
class Texty(str):
    x: int = 1


class Clash(enum.Enum):
    A = "a"


class Base(TypedDict):
    id: typing.Required[int]


class Wide(Base, total=False):
    more: str


@dataclasses.dataclass
class IntBox(Box[int]):
    own: bool = False


@dataclasses.dataclass
class Tree:
    children: "list[Tree]"
    parent: "Tree | None" = None


@dataclasses.dataclass
class Circle:
    size: int


@dataclasses.dataclass
class Square:
    size: int


@dataclasses.dataclass
class Report:
    items: list[Money]

    @cached_property
    def total(self) -> int:
        """Return how many items there are."""
        return len(self.items)


@dataclasses.dataclass
class Doubler:
    n: int
    label: str = dataclasses.field(init=False)

    def __post_init__(self):
        self.n *= 2
        self.label = f"n{self.n}"


class Shape(msgspec.Struct, frozen=True):
    name: str
    sides: "list[Shape]" = []
    note: str | msgspec.UnsetType = msgspec.UNSET


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Mixed(enum.Enum):
    A = (1, 2)
    B = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Options(TypedDict):
    depth: int
    name: typing.NotRequired[str]


class Says(TypedDict):
    role: Literal["user", "system"]
    text: str


class Calls(TypedDict):
    role: Literal["tool"]
    name: str


class Pair(NamedTuple):
    left: int
    right: str = "r"


class User(pydantic.BaseModel):
    id: int
    name: str = "?"
    since: datetime | str = "never"
    tags: set[str] = set()


class Loose(pydantic.BaseModel, extra="allow"):
    id: int


class Names(pydantic.RootModel[list[str]]):
    pass


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

TABLE: list[tuple[Any, Any]] = [
    (None, None),
    (bool, False),
    (int, 0),
    (int, 2**63),
    (int, -(2**200)),
    (float, 1e308),
    (float, -0.0),
    (float, 5e-324),
    (str, ""),
    (str, "é\x00😀"),
    (bytes, b""),
    (bytes, b"\xff"),
    (bytearray, bytearray(b"\x00\x01")),
    (complex, complex(-0.0, 1.5)),
    (range, range(5, -7, -2)),
    (Fraction, Fraction(-22, 7)),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("-Infinity")),
    (date, date(1, 1, 1)),
    (time, time(23, 59, 59, 1)),
    (time, time(1, tzinfo=timezone(timedelta(hours=-3)))),
    (datetime, NOON),
    (datetime, datetime(2026, 6, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(minutes=90)))),
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)),
    (timedelta, timedelta.min),
    (timedelta, timedelta.max),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (zoneinfo.ZoneInfo, BERLIN),
    (uuid.UUID, ID),
    (ipaddress.IPv4Address, ipaddress.ip_address("127.0.0.1")),
    (ipaddress.IPv6Address, ipaddress.ip_address("fe80::1%eth0")),
    (ipaddress.IPv4Network, ipaddress.ip_network("10.0.0.0/8")),
    (ipaddress.IPv6Network, ipaddress.ip_network("fd00::/8")),
    (ipaddress.IPv4Interface, ipaddress.ip_interface("10.0.0.1/8")),
    (ipaddress.IPv6Interface, ipaddress.ip_interface("fd00::1/8")),
    (pathlib.Path, pathlib.Path("/tmp/é")),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("a/b")),
    (pathlib.PureWindowsPath, pathlib.PureWindowsPath("c:\\a")),
    (list, [1, "a", None]),
    (list[int], []),
    (tuple, (1, [2])),
    (tuple[()], ()),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"b", "a"})),
    (frozenset[tuple[int, Color]], frozenset({(1, Color.RED)})),
    (collections.deque[int], collections.deque([1, 2])),
    (dict, {"a": {"b": [1.5]}}),
    (dict[str, int], {}),
    (dict[int, str], {-1: "a", 2**70: "b"}),
    (dict[bool, int], {True: 1, False: 0}),
    (dict[uuid.UUID, int], {ID: 1}),
    (dict[Color, int], {Color.RED: 1}),
    (dict[Level, int], {Level.LOW: 1}),
    (dict[date, int], {date(2026, 1, 1): 1}),
    (dict[tuple[int, str], float], {(1, "a"): 2.0}),
    (dict[str | int, int], {"1": 1, 1: 2}),
    (collections.OrderedDict[str, int], collections.OrderedDict(b=1, a=2)),
    (collections.Counter[str], collections.Counter("abca")),
    (Mapping[str, int], {"a": 1}),
    (Sequence[int], (1, 2)),
    (Sequence[int], [1, 2]),
    (collections.abc.Set[int], frozenset({1})),
    (Color, Color.BLUE),
    (Mixed, Mixed.A),
    (Level, Level.HIGH),
    (Word, Word.YES),
    (Right, Right.READ | Right.WRITE),
    (Literal["a", 1, None, True], True),
    (Literal["a", 1, None, True], 1),
    (Literal[Color.RED, b"x"], b"x"),
    (Money, Money(Decimal("1.50"))),
    (Point[int], Point(1, 2)),
    (Box[datetime | str], Box(NOON, ["text"])),
    (Box, Box([1], ["a"])),
    (IntBox, IntBox(1, [2], own=True)),
    (Tree, Tree([Tree([])], Tree([]))),
    (Shape, Shape("a", [Shape("b")], "n")),
    (Options, {"depth": 1}),
    (Options, {"depth": 1, "name": ""}),
    (Pair, Pair(1)),
    (User, User(id=1, since=NOON, tags={"a"})),
    (Loose, Loose(id=1, other=[1])),
    (Names, Names(["a"])),
    (pydantic.HttpUrl, pydantic.HttpUrl("https://example.org/a")),
    (UserId, UserId(7)),
    (Annotated[int, "doc"], 7),
    (Annotated[list[int], []], [7]),
    (int | None, None),
    (datetime | str, "2026-01-31T12:00:00+00:00"),
    (datetime | str, NOON),
    (uuid.UUID | str | int, ID),
    (Decimal | float | str, Decimal(1)),
    (bytes | str, b"a"),
    (set[int] | list[int] | tuple[int, ...], {1}),
    (set[int] | list[int] | tuple[int, ...], [1]),
    (set[int] | list[int] | tuple[int, ...], (1,)),
    (Circle | Square, Square(1)),
    (Circle | Square | None, Circle(1)),
    (Circle | dict[str, int], {"$type": 1, "value": 2}),
    (Circle | dict[str, int], Circle(1)),
    (Literal["auto"] | Circle | str, "other"),
    (Literal["auto"] | Circle | None, "auto"),
    (Literal["auto"] | Literal["none", 1] | date, "none"),
    (Any, {"a": [None, True, 1, 1.5, "x", {}]}),
    (object, [2**200]),
    (int | float, 1.0),
    (str | float, 2.0),
    (Choice, Choice(NOON)),
    (Choice[int], Choice(1)),
    (Wide, {"id": 1}),
    (typing.Union[int, str, None], None),  # noqa: UP007
    (list[dict[str, int | None]], [{"a": None}]),
    (int | float, 1),
    (
        list[Says | Calls | None],
        [{"role": "tool", "name": "n"}, {"role": "user", "text": "t"}, None],
    ),
]


def same(left: Any, right: Any) -> bool:
    """Say whether two values are equal in type, value and text."""
    return type(left) is type(right) and left == right and repr(left) == repr(right)


def name_of(each):
    """Name a parameter the same in every process: the order of a set is not."""
    unordered = isinstance(each, set | frozenset)
    return f"{type(each).__name__} of {len(each)}" if unordered else repr(each)[:40]


@pytest.mark.parametrize(("annotation", "value"), TABLE, ids=name_of)
def test_round_trip(annotation, value):
    """Each type of the table comes back exactly, and encodes to the same bytes again."""
    codec = codec_for(annotation, where="it")
    data = codec.encode(value)
    back = codec.decode(data)
    if isinstance(value, set | frozenset | User):
        assert type(back) is type(value)
        assert back == value
    else:
        assert same(back, value)
    assert codec.encode(back) == data
    json.loads(data)


@pytest.mark.parametrize("text", ["NaN", "-NaN", "sNaN", "Infinity", "-0.00", "1E+400"])
def test_special_decimals_round_trip(text):
    """A Decimal that is no number keeps its text."""
    codec = codec_for(Decimal, where="it")
    assert str(codec.decode(codec.encode(Decimal(text)))) == text


def test_the_empties_are_distinct():
    """Empty text, bytes, list, dict, zero, False and None are seven values."""
    codec = codec_for(str | bytes | list[int] | dict[str, int] | int | bool | None, where="it")
    values = ["", b"", [], {}, 0, False, None]
    encoded = [codec.encode(each) for each in values]
    assert len(set(encoded)) == len(values)
    assert all(same(codec.decode(data), each) for data, each in zip(encoded, values, strict=True))


def test_a_second_showing_of_a_wall_time_keeps_its_fold():
    """The hour that clocks show twice in autumn comes back as the same one."""
    codec = codec_for(datetime, where="it")
    for fold in (0, 1):
        moment = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=BERLIN)
        back = codec.decode(codec.encode(moment))
        assert (back.fold, back.utcoffset()) == (fold, moment.utcoffset())


class MyInt(int):
    pass


class MyStr(str):
    pass


class MyList(list):
    pass


class MyDict(dict):
    pass


def cyclic() -> list[Any]:
    """Return a list that holds itself twice."""
    value: list[Any] = []
    value += [value, value]
    return value


def doubling() -> Any:
    """Return a small object whose JSON would have 2^60 leaves."""
    value: Any = 1
    for _ in range(60):
        value = [value, value]
    return value


@dataclasses.dataclass
class Holder:
    sock: Any


def without_attribute() -> Money:
    """Return a dataclass that lacks a field."""
    value = Money(Decimal(1))
    del value.amount
    return value


def with_attribute() -> Money:
    """Return a dataclass with an attribute that is no field."""
    value = Money(Decimal(1))
    value.secret = 1
    return value


REFUSED: list[tuple[Any, Any, str]] = [
    (str, "\ud800", "$"),
    (dict[str, list[str]], {"a": ["x", "\ud800"]}, "$.a[1]"),
    (dict[str, int], {"\ud800": 1}, '$["\\ud800"]'),
    (pathlib.Path, pathlib.Path("\udcff"), "$"),
    (float, float("nan"), "$"),
    (list[float], [1.0, float("-inf")], "$[1]"),
    (complex, complex(0, float("inf")), "$"),
    (Any, {"a": [float("nan")]}, "$.a[0]"),
    (Any, {"a": ID}, "$.a"),
    (Any, {1: 2}, '$["<int>"]'),
    (Any, (1, 2), "$"),
    (int, True, "$"),
    (int, MyInt(1), "$"),
    (int, 1.0, "$"),
    (int, 1 << 20_000, "$"),
    (float, 2**53 + 1, "$"),
    (float, 10**400, "$"),
    (bool, 1, "$"),
    (str, MyStr("a"), "$"),
    (str, Word.YES, "$"),
    (str, b"a", "$"),
    (list[int], MyList([1]), "$"),
    (dict[str, int], MyDict(a=1), "$"),
    (dict[str, int], collections.OrderedDict(a=1), "$"),
    (tuple[int, str], (1,), "$"),
    (tuple[int, ...], Pair(1), "$"),
    (collections.deque[int], collections.deque([1], maxlen=3), "$"),
    (datetime, datetime(2026, 1, 1), "$"),
    (date, NOON, "$"),
    (time, time(1, tzinfo=BERLIN), "$"),
    (Money, Tip(Decimal(1), waiter="w"), "$"),
    (Money, with_attribute(), "$.secret"),
    (Money, without_attribute(), "$.amount"),
    (Loose, Loose.model_validate({"id": 1, "$set": 2}), '$["$set"]'),
    (tuple[int, str], [1, "a"], "$"),
    (tuple[int, str], (1, 2), "$[1]"),
    (tuple[int, ...], (1, "a"), "$[1]"),
    (range, [1], "$"),
    (complex, 1.0, "$"),
    (Right, 1, "$"),
    (dict[tuple[int, int], int], [], "$"),
    (Money, Money("1"), "$.amount"),
    (list[Money], [Money(Decimal(1)), Money(None)], "$[1].amount"),
    (Options, {"depth": 1, "other": 2}, "$.other"),
    (Options, {}, "$.depth"),
    (Circle | Square, Money(Decimal(1)), "$"),
    (Literal["a", 1], True, "$"),
    (Literal["a"], "b", "$"),
    (Color, "r", "$"),
    (None, 1, "$"),
    (Says | Calls, {"role": "other"}, "$.role"),
    (Says | Calls, {"role": "tool", "text": "t"}, "$.name"),
    (dict[int, int], {True: 1}, '$["<bool>"]'),
    (User, User.model_construct(id="x"), "$.id"),
    (Holder, Holder(object()), "$.sock"),
]


@pytest.mark.parametrize(
    ("annotation", "value", "path"), REFUSED, ids=map(str, range(len(REFUSED)))
)
def test_refused_with_path(annotation, value, path):
    """What would not come back exactly is refused, with its path and place, in an error of our own."""
    with pytest.raises(EncodeError) as caught:
        codec_for(annotation, where="the result of step plan").encode(value)
    assert caught.value.path == path
    assert "the result of step plan" in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize("make", [cyclic, doubling], ids=["cycle", "doubling"])
def test_endless_values_are_refused(make):
    """A value that contains itself, or that unfolds without measure, is refused soon."""
    with pytest.raises(EncodeError):
        codec_for(Any, where="it").encode(make())


def test_depth_is_bounded_and_the_bound_is_usable():
    """A nesting of 100 levels is stored; one more is refused."""
    value: Any = []
    for _ in range(99):
        value = [value]
    codec = codec_for(Any, where="it")
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(EncodeError, match="100 levels"):
        codec.encode([value])


def test_size_is_bounded_and_settable():
    """Two MiB is the most, unless another limit is given; many references to one text count each time."""
    codec = codec_for(list[str], where="it")
    with pytest.raises(EncodeError, match="larger than"):
        codec.encode(["x" * LIMIT_BYTES])
    with pytest.raises(EncodeError, match="larger than"):
        codec.encode(["x" * 1000] * 3000)
    assert codec.decode(codec.encode(["x" * LIMIT_BYTES], limit_bytes=LIMIT_BYTES + 10)) == [
        "x" * LIMIT_BYTES
    ]
    with pytest.raises(EncodeError, match="larger than 10 bytes"):
        codec.encode(["123456789"], limit_bytes=10)


def test_an_author_property_that_raises_becomes_an_encode_error():
    """Code of the author that runs while a value is read cannot leak a foreign exception."""

    class Lazy(msgspec.Struct):
        x: int

    class Broken(Lazy):
        def __getattribute__(self, name):
            if name == "x":
                raise RuntimeError("no")
            return super().__getattribute__(name)

    codec = codec_for(Broken, where="it")
    with pytest.raises(EncodeError):
        codec.encode(Broken(1))


@dataclasses.dataclass
class Pipe:
    ends: list[socket.socket]


DEFINITIONS: list[tuple[Any, str]] = [
    (inspect.Parameter.empty, "no annotation"),
    ("Missing", "not resolved"),
    (list["Missing"], "not resolved"),  # noqa: F821
    (Callable[[], int], "cannot be stored"),
    (type[int], "cannot be stored"),
    (socket.socket, "cannot be stored"),
    (Pipe, r"\$\.ends\[\]: .*socket"),
    (Exception, "cannot be stored"),
    (collections.defaultdict[str, int], "cannot be stored"),
    (pydantic.BaseModel, "cannot be stored"),
    (pydantic.SecretStr, "cannot be stored"),
    (dict[str, int] | dict[str, str], "told apart"),
    (list[int] | list[str], "told apart"),
    (Options | Says, "told apart"),
    (dict[str, int] | Says, "told apart"),
    (Box[int] | Box[str], "told apart"),
    (Endless[int], "never ends"),
    (Unknown, "cannot be resolved.*Nowhere"),
    (Abstract, "abstract"),
    (Texty, "outside its fields"),
    (Literal["a", Clash.A], "same in JSON"),
    (Any | datetime, "Any and other types"),
]


@pytest.mark.parametrize(("annotation", "text"), DEFINITIONS, ids=lambda each: repr(each)[:40])
def test_refused_at_registration(annotation, text):
    """A type that cannot be stored is refused before any value is at hand."""
    with pytest.raises(DefinitionError, match=text):
        codec_for(annotation, where="the result of step plan")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is of Python 3.12")
def test_recursive_aliases():
    """A `type` statement may name itself, also inside a union."""
    names: dict[str, Any] = {}
    exec("type Json = dict[str, Json | None] | list[Json] | str | int", names)
    codec = codec_for(names["Json"] | None, where="it")
    value = {"a": [1, "x", {"b": []}], "c": None}
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(EncodeError) as caught:
        codec.encode({"a": [1.5]})
    assert caught.value.path == "$.a[0]"
    exec("type Endless = Endless | int", names)
    with pytest.raises(DefinitionError):
        codec_for(names["Endless"], where="it")
    codec = codec_for(names["Json"], where="it")
    assert codec.decode(codec.encode(value)) == value


def test_generic_aliases():
    """A `type` statement may have parameters."""
    pairs = TypeAliasType("pairs", list[tuple[T, T]], type_params=(T,))
    codec = codec_for(pairs[datetime] | None, where="it")
    assert codec.decode(codec.encode([(NOON, NOON)])) == [(NOON, NOON)]


def test_a_tag_is_a_label_of_the_annotation():
    """A tag that the annotation does not name is refused, whatever class it names."""
    codec = codec_for(Circle | Square, where="it")
    assert codec.encode(Circle(1)) == b'{"$type":"Circle","value":{"size":1}}'
    for data in (
        b'{"$type":"Money","value":{"size":1}}',
        b'{"$type":["Circle"],"value":{"size":1}}',
        b'{"$type":"Circle"}',
        b'{"size":1}',
    ):
        with pytest.raises(DecodeError):
            codec.decode(data)


def test_a_natural_member_stays_untagged_when_a_union_grows():
    """What was stored as `str` is read as `datetime | str`."""
    assert codec_for(datetime | str, where="it").decode(b'"text"') == "text"


def test_code_changes_are_tolerated():
    """A removed field is passed over, a new one takes its default, one without default is an error with its path."""
    assert codec_for(Money, where="it").decode(b'{"amount":"1","gone":2}') == Money(Decimal(1))
    assert codec_for(Shape, where="it").decode(b'{"name":"a","gone":2}') == Shape("a")
    assert codec_for(User, where="it").decode(b'{"id":1,"gone":2}') == User(id=1)
    assert codec_for(Pair, where="it").decode(b'{"left":1,"gone":2}') == Pair(1)
    assert codec_for(Options, where="it").decode(b'{"depth":1,"gone":2}') == {"depth": 1}
    for kind in (Circle, Shape, User, Pair, Options):
        with pytest.raises(DecodeError) as caught:
            codec_for(list[kind], where="it").decode(b"[{}]")
        assert caught.value.path.startswith("$[0].")


def test_a_dataclass_is_restored_and_not_constructed():
    """What was stored comes back, whatever `__post_init__` would make of it."""
    codec = codec_for(Doubler, where="it")
    value = Doubler(2)
    assert codec.decode(codec.encode(value)) == value


def test_a_cached_property_is_no_state():
    """A cached property that was read does not stand in the way, and is not stored."""
    value = Report([])
    assert value.total == 0
    assert codec_for(Report, where="it").encode(value) == b'{"items":[]}'


def test_a_model_keeps_which_fields_were_set():
    """`exclude_unset` gives the same before and after."""
    codec = codec_for(User, where="it")
    value = User(id=1, name="n")
    assert codec.decode(codec.encode(value)).model_dump(exclude_unset=True) == {
        "id": 1,
        "name": "n",
    }


def test_a_drifted_vendor_model_is_stored_and_loaded():
    """A model that was built without validation and lacks a required field comes back as it was, marked in the data."""
    codec = codec_for(User, where="it")
    value = User.model_construct(name="n")
    data = codec.encode(value)
    assert json.loads(data)["$absent"] == ["id"]
    back = codec.decode(data)
    assert vars(back) == vars(value)
    assert codec.encode(back) == data


def test_a_model_with_a_deferred_build_is_stored():
    """A model whose schema was not built yet is built when it is registered."""

    class Late(pydantic.BaseModel, defer_build=True):
        x: int

    codec = codec_for(Late, where="it")
    assert codec.decode(codec.encode(Late(x=1))) == Late(x=1)


def test_a_changed_private_attribute_is_refused():
    """State of a model that is no field would be lost, so it is refused."""

    class Keeper(pydantic.BaseModel):
        x: int
        _count: int = pydantic.PrivateAttr(default=0)

    codec = codec_for(Keeper, where="it")
    value = Keeper(x=1)
    assert codec.decode(codec.encode(value)) == value
    value._count = 2
    with pytest.raises(EncodeError) as caught:
        codec.encode(value)
    assert caught.value.path == "$._count"


def test_encoding_does_not_change_the_value():
    """Inputs are read, never changed, and what comes back shares nothing with them."""
    value = {"a": [{"b": 1}]}
    codec = codec_for(Any, where="it")
    assert codec.encode(value) == codec.encode(value) == b'{"a":[{"b":1}]}'
    assert value == {"a": [{"b": 1}]}
    back = codec.decode(codec.encode(value))
    assert back["a"] is not value["a"]


def test_equal_sets_give_equal_bytes():
    """The order of a set's members does not show in its bytes."""
    codec = codec_for(set[str], where="it")
    names = [f"n{i}" for i in range(50)]
    assert codec.encode(set(names)) == codec.encode({*names[25:], *names[:25]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"1 2",
        b"\xff",
        b"nul",
        b'"\\ud800"',
        b"[" * 100_000,
        b"9" * 5_000,
        b"1e999",
        b"NaN",
    ],
    ids=lambda each: repr(each[:8]),
)
def test_bytes_that_are_no_json(data):
    """Damaged bytes are a `DecodeError`, never None and never another exception."""
    with pytest.raises(DecodeError):
        codec_for(Any, where="it").decode(data)


HOSTILE: list[tuple[Any, bytes]] = [
    (datetime, b'"2026-01-01T00:00:00"'),
    (datetime, b'"2026-01-01T00:00:00+00:00[../../etc/passwd]"'),
    (datetime, b'"2026-01-01T00:00:00+00:00[Europe]"'),
    (zoneinfo.ZoneInfo, b'"/etc/passwd"'),
    (zoneinfo.ZoneInfo, b'""'),
    (range, b"[0,1,0]"),
    (range, b"[0,1,true]"),
    (Fraction, b'"1/0"'),
    (Fraction, b'"' + b"9" * 5000 + b'/1"'),
    (Decimal, b'"abc"'),
    (bytes, b'"a"'),
    (timedelta, b'"P999999999DT99999S"'),
    (uuid.UUID, b'"1"'),
    (pathlib.Path, b"1"),
    (dict[int, int], b'{"01":1}'),
    (set[Any], b"[[1]]"),
    (dict[tuple[Any, int], int], b"[[[[],1],1]]"),
    (Right, b"64"),
    (Level, b"3"),
    (Level, b"true"),
    (Literal[1], b"true"),
    (Literal[1], b"1.0"),
    (int, b"1.0"),
    (bool, b"1"),
    (Tree, b'{"children":' * 300 + b"[]" + b"}" * 300),
    (list[list[Any]], b"[" * 300 + b"]" * 300),
    (User, b'{"id":1,"$set":"id"}'),
    (User, b'{"id":1,"$absent":[1]}'),
]


@pytest.mark.parametrize(("annotation", "data"), HOSTILE, ids=lambda each: repr(each)[:30])
def test_data_that_does_not_fit(annotation, data):
    """JSON that the annotation does not allow is a `DecodeError`."""
    with pytest.raises(DecodeError):
        codec_for(annotation, where="it").decode(data)


def test_a_default_factory_that_raises_becomes_a_decode_error():
    """Code of the author that runs while a value is restored cannot leak a foreign exception."""

    def broken() -> int:
        raise RuntimeError("no")

    @dataclasses.dataclass
    class Late:
        x: int = dataclasses.field(default_factory=broken)

    with pytest.raises(DecodeError, match="RuntimeError"):
        codec_for(Late, where="it").decode(b"{}")


def pay(amount: Decimal, /, to: str, *, at: datetime | None = None, note: str = "") -> None:
    """Stand for an effect with each kind of parameter."""


def codec_of(function: Callable[..., Any]):
    """Return the argument codec of a function."""
    hints = typing.get_type_hints(function)
    return arguments_codec(
        inspect.signature(function), hints, where=f"the arguments of {function.__name__}"
    )


def test_arguments_are_an_object_by_parameter_with_defaults():
    """However a call is written, its arguments are the same object."""
    codec = codec_of(pay)
    data = codec.encode((Decimal("1.5"), "me"), {})
    assert data == b'{"amount":"1.5","to":"me","at":null,"note":""}'
    assert codec.encode((Decimal("1.5"),), {"note": "", "to": "me"}) == data
    args, kwargs = codec.decode(data)
    assert args == (Decimal("1.5"),)
    assert kwargs == {"to": "me", "at": None, "note": ""}
    assert pay(*args, **kwargs) is None
    assert codec.decode_bound(data) == codec.bind((Decimal("1.5"), "me"), {})


def test_arguments_tolerate_new_defaults_and_removed_parameters():
    """A parameter that stored data lacks takes its default; one without is an error."""
    codec = codec_of(pay)
    assert codec.decode_bound(b'{"amount":"1","to":"me","gone":1}')["note"] == ""
    with pytest.raises(DecodeError) as caught:
        codec.decode_bound(b'{"amount":"1"}')
    assert caught.value.path == "$.to"
    with pytest.raises(DecodeError):
        codec.decode_bound(b"[]")


def test_an_argument_is_named_in_the_error():
    """An argument that cannot be stored is named; a call that cannot be made is Python's own error."""
    codec = codec_of(pay)
    with pytest.raises(EncodeError) as caught:
        codec.encode((Decimal(1), "me"), {"at": datetime(2026, 1, 1)})
    assert caught.value.path == "$.at"
    with pytest.raises(TypeError):
        codec.encode((), {})


def test_signatures_that_cannot_be_stored():
    """Variadic parameters, missing annotations and defaults that do not fit are refused at registration."""

    def variadic(*args: int) -> None: ...
    def keywords(**kwargs: int) -> None: ...
    def bare(x) -> None: ...
    def wrong(x: int = None) -> None: ...

    for function, text in (
        (variadic, r"\$\.args"),
        (keywords, r"\$\.kwargs"),
        (bare, r"\$\.x: there is no annotation"),
        (wrong, r"\$\.x: the default does not fit"),
    ):
        with pytest.raises(DefinitionError, match=text):
            codec_of(function)


def test_one_codec_serves_many_threads():
    """Large states that are encoded at once do not mix."""
    codec = codec_for(dict[str, list[int]], where="it")
    states = [{f"k{i}": list(range(n, n + 50)) for i in range(20)} for n in range(40)]
    results: dict[int, Any] = {}

    def work(n: int) -> None:
        results[n] = codec.decode(codec.encode(states[n]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(states))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [results[n] for n in range(len(states))] == states
