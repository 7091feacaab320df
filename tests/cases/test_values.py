"""Values, payloads, errors: faults that comparable systems had, and what happens here. The numbers are those of docs/cases.md."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import enum
import fractions
import ipaddress
import math
import pathlib
import re
import socket
import threading
import types
import uuid
import zoneinfo
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import apsw
import msgspec
import pydantic
import pytest

import outlast
from outlast.client import Client
from outlast.effects.retry import RetryPolicy
from outlast.errors import DecodeError, DefinitionError, EncodeError
from outlast.journal.canonical import canonical
from outlast.journal.codec import LIMIT_BYTES, codec_for
from outlast.journal.entry import (
    EffectIntended,
    EffectRefused,
    Entry,
    EntryRow,
    Failed,
    StepCompleted,
    StepFailed,
    from_row,
)
from outlast.journal.failure import Failure
from outlast.store import bound
from outlast.store.change import Fenced, RunHead, RunKey, Status
from outlast.store.sqlite.store import open_sqlite
from outlast.testing import Simulation, replay_run
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import following, parking
from outlast.testing.thread import SeededRandom
from outlast.workflows import registry
from outlast.workflows.definition import (
    AttemptOptions,
    Definition,
    Effect,
    EffectOptions,
    Step,
    Workflow,
)
from outlast.workflows.registry import Registry

RUN = RunKey("default", "r")
SURROGATE = "a\ud800b"
LARGE = 20_000_000

calls: list[str] = []
"""What bodies of steps and effects were called, in order."""


@pytest.fixture(autouse=True)
def _clean() -> None:
    calls.clear()


def annotated(function: Callable[..., Any], **hints: Any) -> Callable[..., Any]:
    """Return a copy of a function with these annotations; `result` is that of what it returns."""
    code, closure = function.__code__, function.__closure__
    copied = types.FunctionType(code, function.__globals__, closure=closure)
    copied.__annotations__ = {"return": hints.pop("result"), **hints}
    return copied


def step(function: Callable[..., Any], name: str = "", **options: Any) -> Step[..., Any]:
    return Step(function, name, AttemptOptions(**options))


def effect(function: Callable[..., Any], name: str = "") -> Effect[..., Any]:
    return Effect(function, name, AttemptOptions(), EffectOptions(idempotent=True))


async def entries_of(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


def run_to_end(flow: Workflow[..., Any], *others: Definition[..., Any]) -> tuple[Any, list[Entry]]:
    """Run a workflow without arguments; return its result or the error of it, and the journal."""

    async def scenario(sim: Simulation) -> tuple[Any, list[Entry]]:
        worker = await sim.start_worker()
        handle = await worker.client.start(flow(), id="r")
        try:
            found = await handle.result()
        except outlast.OutlastError as error:
            found = error
        return found, await entries_of(sim)

    return Simulation([flow, *others]).run(scenario)


# 88: text that is no text


@dataclass
class Page:
    """A record with text in it."""

    title: str
    links: list[str] = field(default_factory=list)


SURROGATES: dict[str, tuple[Any, Any, str]] = {
    "text": (str, SURROGATE, "$"),
    "member of a list": (list[str], ["a", SURROGATE], "$[1]"),
    "value of a dict": (dict[str, str], {"a": SURROGATE}, "$.a"),
    "key of a dict": (dict[str, int], {SURROGATE: 1}, '$["a\\ud800b"]'),
    "field of a record": (Page, Page("a", [SURROGATE]), "$.links[0]"),
    "in JSON data": (Any, {"a": [{"b": SURROGATE}]}, "$.a[0].b"),
    "half of a pair": (str, "\udc00", "$"),
    "path": (pathlib.PurePosixPath, pathlib.PurePosixPath(SURROGATE), "$"),
}


@pytest.mark.parametrize(
    ("kind", "value", "path"), SURROGATES.values(), ids=[f"as {one}" for one in SURROGATES]
)
def test_case_088_a_result_that_is_no_text_is_refused_with_its_path(
    kind: Any, value: Any, path: str
) -> None:
    """A step that returns a lone surrogate has failed, at once and for good; what is stored is JSON in UTF-8 as ever."""

    async def give() -> Any:
        calls.append("give")
        return value

    giving = step(annotated(give, result=kind))

    async def flow() -> str:
        try:
            await giving()
        except EncodeError as error:
            return error.path
        return ""

    async def scenario(sim: Simulation) -> tuple[str, list[bytes]]:
        worker = await sim.start_worker()
        found = await worker.client.run(workflow(), id="r")
        return found, [one.row.body for one in await sim.store.journal(RUN)]

    workflow = Workflow(flow)
    found, bodies = Simulation([workflow, giving]).run(scenario)
    assert (found, calls) == (path, ["give"])
    assert all(type(msgspec.json.decode(body)) is dict and body.decode() for body in bodies)


@pytest.mark.parametrize("place", ["start", "step", "effect", "signal", "end", "approval"])
def test_case_088_text_that_is_no_text_is_refused_wherever_it_would_enter(place: str) -> None:
    """As an argument, a message, a result or a question it is an EncodeError of whoever gives it, and nothing is called."""
    go = outlast.Signal("surrogate", str)

    async def take(text: str) -> str:
        calls.append("take")
        return text

    taking, paying = step(take), effect(take, "pay")

    async def flow(text: str) -> str:
        try:
            match place:
                case "step":
                    await taking(SURROGATE)
                case "effect":
                    await paying(SURROGATE)
                case "approval":
                    await outlast.approval(SURROGATE, role="owner", expires_in=timedelta(hours=1))
        except EncodeError as error:
            return error.path
        return SURROGATE

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        if place == "start":
            with pytest.raises(EncodeError) as caught:
                await worker.client.start(workflow(SURROGATE), id="r")
            assert await sim.store.head(RUN) is None
            return caught.value.path
        handle = await worker.client.start(workflow("a"), id="r")
        if place == "signal":
            with pytest.raises(EncodeError) as caught:
                await handle.send(go, SURROGATE)
            return caught.value.path
        if place == "end":
            with pytest.raises(outlast.WorkflowFailedError) as failed:
                await handle.result()
            cause = failed.value.__cause__
            assert isinstance(cause, EncodeError)
            return cause.path
        return await handle.result()

    path = Simulation([workflow, taking, paying]).run(scenario)
    assert path == ("$.text" if place in {"start", "step", "effect"} else "$")
    assert calls == []


class TextError(Exception):
    """Has text where exceptions can have some."""

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


def _noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


SHOWN = r"a\ud800b"
ERRORS_WITH_SURROGATES = {
    "message": lambda: ValueError(SURROGATE),
    "message of an own type": lambda: TextError(SURROGATE),
    "key": lambda: KeyError(SURROGATE),
    "file name": lambda: FileNotFoundError(2, "gone", SURROGATE),
    "note": lambda: _noted(ValueError("x"), SURROGATE),
    "cause": lambda: _caused(ValueError("x"), TextError(SURROGATE)),
    "member of a group": lambda: ExceptionGroup("x", [ValueError(SURROGATE)]),
    "module of its type": lambda: type("Strange", (Exception,), {"__module__": SURROGATE})("x"),
}


@pytest.mark.parametrize(
    "make", ERRORS_WITH_SURROGATES.values(), ids=[f"as {one}" for one in ERRORS_WITH_SURROGATES]
)
def test_case_088_in_exceptions_it_is_replaced_visibly(make: Callable[[], BaseException]) -> None:
    """An error with such text is recorded as that error; the surrogate is shown as its escape."""

    async def fail() -> int:
        raise make()

    failing = step(fail, retry=RetryPolicy(maximum_attempts=1))

    async def flow() -> int:
        return await failing()

    found, entries = run_to_end(Workflow(flow), failing)
    (failed,) = [one for one in entries if isinstance(one, StepFailed)]
    stored = msgspec.json.encode(failed.failure).decode()
    assert msgspec.json.encode(SHOWN).decode()[1:-1] in stored.replace("\\\\\\\\", "\\\\")
    assert isinstance(found, outlast.WorkflowFailedError)


def test_case_088_an_attribute_that_is_no_text_is_left_out_of_an_error() -> None:
    """The error itself is kept."""

    async def fail() -> int:
        raise TextError("x", SURROGATE)

    failing = step(fail, retry=RetryPolicy(maximum_attempts=1))

    async def flow() -> int:
        return await failing()

    _, entries = run_to_end(Workflow(flow), failing)
    (failed,) = [one for one in entries if isinstance(one, StepFailed)]
    assert failed.failure.message == "x"
    assert failed.failure.details == {}


HOSTILE = [
    b'{"lc":1,"type":"constructor","id":["os","system"],"kwargs":{"command":"true"}}',
    b'{"__class__":"subprocess.Popen","args":["true"]}',
    b'{"py/object":"builtins.eval","py/reduce":["1"]}',
    b'{"$type":"os.system","value":"true"}',
]


@pytest.mark.parametrize("data", HOSTILE)
def test_case_088_what_is_loaded_is_data_and_builds_no_objects(data: bytes) -> None:
    """Stored data that names a constructor, in whatever format, is plain data or does not fit."""
    assert codec_for(Any, where="a value").decode(data) == msgspec.json.decode(data)
    for kind in (Page, str, list[Page], Page | None, bytes, datetime):
        with pytest.raises(DecodeError):
            codec_for(kind, where="a value").decode(data)


@pytest.mark.parametrize("data", [b"\x80\x04N.", b"\xc0", b"!!python/object:os.system", b""])
def test_case_088_bytes_of_another_format_are_refused(data: bytes) -> None:
    """There is one format, and no second one is tried."""
    with pytest.raises(DecodeError, match="not readable as JSON"):
        codec_for(Any, where="a value").decode(data)


# 89: values whose type has changed


class Colour(enum.Enum):
    """Has lost a member."""

    RED = "red"


@dataclass
class Renamed:
    """Has a field that what is stored lacks, without a default."""

    name: str


@dataclass
class Inner:
    """Part of another record."""

    title: int


MISFITS: dict[str, tuple[Any, bytes, str]] = {
    "a field was renamed": (Renamed, b'{"title":"a","links":[]}', "$.name"),
    "a field has another type": (Inner, b'{"title":"a"}', "$.title"),
    "a member of a list has another type": (list[Inner], b'[{"title":1},{"title":"a"}]', "$[1].title"),
    "a member of an enum is gone": (Colour, b'"blue"', "$"),
    "a literal is gone": (Literal["a"], b'"b"', "$"),
    "a type left the union": (int | bool, b'{"title":"a"}', "$"),
    "a record became text": (str, b'{"title":"a"}', "$"),
    "text became a record": (Page, b'"a"', "$"),
    "text became bytes": (bytes, b'"?"', "$"),
    "a number became a time": (datetime, b"1", "$"),
    "nothing became something": (Page, b"null", "$"),
    "something became nothing": (None, b'{"title":"a"}', "$"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "stored", "path"), MISFITS.values(), ids=list(MISFITS))
def test_case_089_a_value_whose_type_is_gone_is_an_error_and_never_none(
    kind: Any, stored: bytes, path: str
) -> None:
    """Later code that names another type blocks the run with type and path; raw data is there to be read; nothing is lost."""

    async def give() -> Any:
        calls.append("give")
        return msgspec.json.decode(stored)

    async def flow() -> None:
        await giving()
        await outlast.receive(outlast.Signal("go", int))

    giving = before = step(annotated(give, result=Any), "give")
    after = step(annotated(give, result=kind), "give")
    old, new = Workflow(flow), Workflow(flow)
    new.__module__ = "later"

    async def scenario(sim: Simulation) -> tuple[RunHead, Any]:
        first = await sim.start_worker(definitions=[old, before])
        handle = await sim.client.start(old(), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        await first.stop()
        nonlocal giving
        giving = after
        await sim.start_worker(definitions=[new, after])
        await handle.send("go", 1)
        head = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        (done,) = [one for one in await entries_of(sim) if isinstance(one, StepCompleted)]
        return head, msgspec.json.decode(bytes(done.value))

    head, raw = Simulation([]).run(scenario)
    assert (head.reason, calls) == ("undecodable", ["give"])
    why = msgspec.json.decode(head.note)["error"]
    assert f"the result of step give as stored does not fit the code: at {path}:" in why
    assert raw == msgspec.json.decode(stored)


@pytest.mark.parametrize(("kind", "stored", "path"), MISFITS.values(), ids=list(MISFITS))
def test_case_089_a_result_whose_type_is_gone_is_an_error_or_raw_data(
    kind: Any, stored: bytes, path: str
) -> None:
    """A handle that knows the type raises; one that knows the id alone returns the data."""

    async def flow() -> Any:
        return msgspec.json.decode(stored)

    old = Workflow(annotated(flow, result=Any))

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        await worker.client.run(old(), id="r")
        now = Workflow(annotated(flow, result=kind))
        with pytest.raises(DecodeError) as caught:
            await sim.client.handle("r", now).result()
        assert caught.value.path == path
        return await sim.client.handle("r").result()

    assert Simulation([old]).run(scenario) == msgspec.json.decode(stored)


# 91, 104, 107: values that come back exactly


class Size(enum.IntEnum):
    """An enum whose members are integers."""

    SMALL = 1


class Mode(enum.Flag):
    """An enum whose members combine."""

    READ = 1
    WRITE = 2


class Point(NamedTuple):
    """A NamedTuple."""

    x: int
    y: float = 0.5


class Options(TypedDict, total=False):
    """A TypedDict."""

    depth: int


class Struct(msgspec.Struct):
    """A msgspec Struct."""

    name: str
    size: int = 0


ZONED = datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1)
STANDARD: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, -7),
    (float, 0.1),
    (complex, 1 - 2j),
    (str, "ä\0\n😀"),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"\x00\xff")),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a", "b"})),
    (dict[str, int], {"b": 1, "a": 2}),
    (dict[int, str], {1: "a"}),
    (dict[tuple[int, int], str], {(1, 2): "a"}),
    (collections.deque[int], collections.deque([1, 2])),
    (collections.OrderedDict[str, int], collections.OrderedDict(b=1, a=2)),
    (collections.Counter[str], collections.Counter("abba")),
    (range, range(1, 10, 3)),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("NaN")),
    (Decimal, Decimal("-Infinity")),
    (Decimal, Decimal("-0E+3")),
    (fractions.Fraction, fractions.Fraction(-1, 3)),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (datetime, ZONED),
    (date, date(2026, 1, 2)),
    (time, time(1, 2, 3, 4)),
    (time, time(1, 2, tzinfo=UTC)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (timezone, timezone(timedelta(hours=2))),
    (zoneinfo.ZoneInfo, zoneinfo.ZoneInfo("Europe/Berlin")),
    (uuid.UUID, uuid.UUID(int=7)),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (ipaddress.IPv6Address, ipaddress.IPv6Address("fe80::1%eth0")),
    (ipaddress.IPv4Network, ipaddress.IPv4Network("10.0.0.0/8")),
    (ipaddress.IPv6Network, ipaddress.IPv6Network("fe80::/64")),
    (ipaddress.IPv4Interface, ipaddress.IPv4Interface("10.0.0.1/8")),
    (ipaddress.IPv6Interface, ipaddress.IPv6Interface("fe80::1/64")),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("a/b")),
    (pathlib.PureWindowsPath, pathlib.PureWindowsPath("c:\\a")),
    (Path, Path("/tmp/a")),
    (Colour, Colour.RED),
    (Size, Size.SMALL),
    (Mode, Mode.READ | Mode.WRITE),
    (Literal["a", 1, None], 1),
    (int | str | None, "a"),
    (Point, Point(1)),
    (Options, {"depth": 1}),
    (Page, Page("a", ["b"])),
    (Struct, Struct("a")),
]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of equal types, with the sign of zeros, the payload of NaN, and the fold of times."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, datetime):
        return one == other and one.isoformat() == other.isoformat()
    return bool(one == other)


def there_and_back(kind: Any, value: Any) -> dict[str, Any]:
    """Send a value through every place that stores one; return what came out of each, live and in a replay."""
    found: dict[str, Any] = {}
    go = outlast.Signal("value", kind)

    async def took(value: Any) -> Any:
        found[f"argument of a{'n effect' if outlast.attempt().key else ' step'}"] = value
        return value

    take = annotated(took, value=kind, result=kind)
    taking, acting = step(take), effect(take, "act")
    keyed = has_key(value)

    async def flow(value: Any) -> Any:
        where = "" if "argument of a step" not in found else ", replayed"
        found["argument of a workflow" + where] = value
        found["result of a step" + where] = await taking(value)
        if keyed:
            found["result of an effect" + where] = await acting(value)
        found["message" + where] = await outlast.receive(go)
        return value

    workflow = Workflow(annotated(flow, value=kind, result=kind))
    definitions = [workflow, taking, acting]

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        handle = await worker.client.start(workflow(value), id="r")
        await handle.send(go, value)
        found["result of a workflow"] = await handle.result()
        await replay_run(sim.store, Registry(definitions), sim.clock, RUN)

    Simulation(definitions).run(scenario)
    assert len(found) == (11 if keyed else 8)
    return found


def has_key(value: Any) -> bool:
    """Whether a value has one canonical form, so that it can be part of an effect's key."""
    try:
        canonical(value)
    except EncodeError:
        return False
    return True


def check_there_and_back(kind: Any, value: Any) -> None:
    """Hold that a value comes back from every place equal and of its type."""
    found = there_and_back(kind, copy.deepcopy(value))
    assert {place: one for place, one in found.items() if not same(one, value)} == {}


def named(one: Any) -> str:
    """Return an id that is the same in every process: a set has no order."""
    return (
        f"{type(one).__name__} of {len(one)}" if isinstance(one, set | frozenset) else str(one)[:40]
    )


@pytest.mark.parametrize(("kind", "value"), STANDARD, ids=named)
def test_case_091_standard_types_come_back_as_they_were(kind: Any, value: Any) -> None:
    """The common types of the standard library, as argument, result and message, live and in replay."""
    check_there_and_back(kind, value)


UNSTORABLE: dict[str, Any] = {
    "a default factory": collections.defaultdict[str, int],
    "a chain of dicts": collections.ChainMap,
    "a slice": slice,
    "a compiled pattern": type(re.compile("")),
    "a memory view": memoryview,
    "a lock": type(threading.Lock()),
    "a socket": socket.socket,
    "a module": types.ModuleType,
    "a function": Callable[[], int],
    "a class": type[int],
    "an exception": ValueError,
}


@pytest.mark.parametrize("kind", UNSTORABLE.values(), ids=list(UNSTORABLE))
@pytest.mark.parametrize("place", ["argument", "result"])
def test_case_091_what_is_no_data_is_refused_where_it_is_declared(kind: Any, place: str) -> None:
    """A type that holds code or a part of the machine is refused when the app opens, not when a run meets the first value."""

    async def take(value: Any) -> Any:
        return value

    hints = (
        {"value": kind, "result": int} if place == "argument" else {"value": int, "result": kind}
    )
    with pytest.raises(DefinitionError, match="step take cannot be stored: at"):
        Registry([step(annotated(take, **hints), "take")])


def test_case_091_a_timezone_with_a_name_of_its_own_is_refused() -> None:
    """Its name would be lost."""
    zone = timezone(timedelta(hours=1), "CET")
    with pytest.raises(EncodeError, match="the name of a timezone would be lost"):
        codec_for(timezone, where="a zone").encode(zone)


# 92: types of numpy


def _numpy_type(name: str, *bases: type) -> Any:
    """Return a class that looks as numpy's does from outside: its scalars derive from Python's, its arrays from nothing."""
    return type(name, bases, {"__module__": "numpy"})


float64, str_, complex128 = (
    _numpy_type("float64", float),
    _numpy_type("str_", str),
    _numpy_type("complex128", complex),
)
int64, bool_, datetime64, ndarray = (
    _numpy_type(name) for name in ("int64", "bool_", "datetime64", "ndarray")
)
NUMPY: list[tuple[Any, Any, str]] = [
    (float, float64(1.5), "expected exactly float, got its subclass numpy.float64"),
    (str, str_("a"), "expected exactly str, got its subclass numpy.str_"),
    (complex, complex128(1), "expected exactly complex, got its subclass numpy.complex128"),
    (int, int64(), "expected int, got numpy.int64"),
    (bool, bool_(), "expected bool, got numpy.bool_"),
    (datetime, datetime64(), "expected datetime, got numpy.datetime64"),
    (list[float], ndarray(), "expected list, got numpy.ndarray"),
    (list[float], [1.0, float64(1.5)], "expected exactly float, got its subclass numpy.float64"),
    (Any, float64(1.5), "an unannotated place holds JSON data only, got numpy.float64"),
    (Any, {"a": [ndarray()]}, "an unannotated place holds JSON data only, got numpy.ndarray"),
]


@pytest.mark.parametrize(("kind", "value", "said"), NUMPY, ids=range(len(NUMPY)))
def test_case_092_a_value_of_numpy_is_refused_in_words(kind: Any, value: Any, said: str) -> None:
    """Scalars and arrays alike end the step at once, and the error names the class and what to do."""

    async def give() -> Any:
        calls.append("give")
        return value

    giving = step(annotated(give, result=kind), "give")

    async def flow() -> int:
        await giving()
        return 1

    found, _ = run_to_end(Workflow(flow), giving)
    assert isinstance(found.__cause__, EncodeError)
    assert said in found.__cause__.message
    assert found.__cause__.hint
    assert calls == ["give"]


@pytest.mark.parametrize(
    "kind", [float64, int64, datetime64, ndarray], ids=lambda one: one.__name__
)
def test_case_092_an_annotation_of_numpy_is_refused_in_words(kind: Any) -> None:
    """A class of numpy that is named is refused when the app opens."""

    async def give() -> Any:
        return 1

    with pytest.raises(DefinitionError, match=rf"numpy\.{kind.__name__} cannot be stored"):
        Registry([step(annotated(give, result=kind), "give")])


# 94, 95, 97: errors as data


class CodeError(Exception):
    """Has required arguments and a text of its own."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class KeywordError(Exception):
    """Has required keyword arguments, and none that it gives on."""

    def __init__(self, *, code: int, response: Any) -> None:
        super().__init__()
        self.code = code
        self.response = response

    def __str__(self) -> str:
        return f"status {self.code} of {self.response.name}"


class SlottedError(Exception):
    """Keeps what it has in slots."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class HostileError(Exception):
    """Breaks whoever looks at it."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        raise RuntimeError("no text")


class SystemicError(OSError):
    """A subclass of an error of the system with an argument more."""

    def __init__(self, number: int, text: str, host: str) -> None:
        super().__init__(number, text)
        self.host = host


class GroupError(ExceptionGroup[Exception]):
    """A group with a required argument."""

    def __new__(cls, code: int, members: list[Exception]) -> GroupError:  # noqa: D102
        made = super().__new__(cls, f"code {code}", members)
        made.code = code
        return made

    def __init__(self, code: int, members: list[Exception]) -> None:
        self.code = code


def _cyclic() -> Exception:
    one, two = CodeError(1, "one"), CodeError(2, "two")
    one.__cause__, two.__cause__ = two, one
    return one


def _itself() -> Exception:
    one = ValueError("alone")
    one.__context__ = one.__cause__ = one
    return one


def _deep() -> Exception:
    error: Exception = ValueError("0")
    for n in range(1, 5_000):
        error = _caused(ValueError(str(n)), error)  # type: ignore[assignment]
    return error


def _nested() -> Exception:
    error: Exception = ValueError("inmost")
    for n in range(500):
        error = ExceptionGroup(str(n), [error])
    return error


FAULTS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "required arguments": (lambda: CodeError(410, "gone"), "410: gone"),
    "required keywords": (
        lambda: KeywordError(code=410, response=threading.current_thread()),
        "status 410 of ",
    ),
    "slots": (lambda: SlottedError(410), "code 410"),
    "a text that raises": (lambda: HostileError(1), "whose text raises RuntimeError"),
    "an error of the system": (lambda: SystemicError(5, "io", "db1"), "[Errno 5] io"),
    "a builtin of five arguments": (
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        "'utf-8' codec can't decode byte 0xff",
    ),
    "a group": (lambda: ExceptionGroup("many", [CodeError(1, "a"), KeyError("k")]), "many"),
    "a group of an own class": (lambda: GroupError(3, [CodeError(1, "a")]), "code 3"),
    "causes in a circle": (_cyclic, "1: one"),
    "its own cause": (_itself, "alone"),
    "thousands of causes": (_deep, "4999"),
    "hundreds of groups": (_nested, "499"),
    "an unstorable attribute": (lambda: _with(ValueError("x"), lock=threading.Lock()), "x"),
    "an endless text": (lambda: ValueError("x" * 10_000_000), "x"),
}


def _with(error: BaseException, **attributes: Any) -> BaseException:
    vars(error).update(attributes)
    return error


def failing_at(
    place: str, make: Callable[[], BaseException]
) -> tuple[Workflow[..., Any], list[Any]]:
    """Return a workflow in which the error is raised at a place, and what it calls."""

    async def fail() -> int:
        calls.append("fail")
        raise make()

    def fail_in_thread() -> int:
        calls.append("fail")
        raise make()

    once = RetryPolicy(maximum_attempts=1)
    asynchronous, synchronous = step(fail, retry=once), step(fail_in_thread, retry=once)
    options = AttemptOptions(retry=once)
    acting = Effect(
        fail, "act", options, EffectOptions(idempotent=True, not_applied=(type(make()),))
    )

    async def flow() -> int:
        match place:
            case "step":
                return await asynchronous()
            case "thread":
                return await synchronous()
            case "effect":
                return await acting()
            case _:
                raise make()

    return Workflow(flow), [asynchronous, synchronous, acting]


@pytest.mark.parametrize("place", ["step", "thread", "effect", "workflow"])
@pytest.mark.parametrize(("make", "text"), FAULTS.values(), ids=list(FAULTS))
def test_case_094_an_error_that_cannot_be_rebuilt_is_data(
    place: str, make: Callable[[], BaseException], text: str
) -> None:
    """Whatever was raised, looking at the run works, and its result raises an error that says type and text of the original."""
    flow, others = failing_at(place, make)

    async def scenario(sim: Simulation) -> tuple[Any, Any, Failure]:
        worker = await sim.start_worker()
        handle = await worker.client.start(flow(), id="r")
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await handle.result()
        status = await handle.status()
        await handle.detail()
        assert [one.run_id for one in await sim.client.runs.list()] == ["r"]
        (failed,) = [one for one in await entries_of(sim) if isinstance(one, Failed)]
        return status.status, caught.value, failed.failure

    status, error, failure = Simulation([flow, *others]).run(scenario)
    assert status is Status.FAILED
    kind = type(make())
    name = (
        kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )
    assert text in failure.message
    assert failure.type == name
    assert name in error.message
    assert text in str(error.__cause__)
    stand_in = getattr(error.__cause__, "type_name", type(error.__cause__).__qualname__)
    assert stand_in == name or isinstance(error.__cause__, ExceptionGroup)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CodeError(410, "gone"),
        lambda: SystemicError(5, "io", "db1"),
        lambda: HostileError(3),
    ],
    ids=["required arguments", "an error of the system", "a text that raises"],
)
def test_case_094_a_declared_error_reaches_the_workflow_as_itself(
    make: Callable[[], Exception],
) -> None:
    """With `raises=` it is caught by its class and has its plain attributes; its constructor is not called again."""

    async def fail() -> int:
        raise make()

    kind = type(make())
    failing = step(fail, retry=RetryPolicy(maximum_attempts=1), raises=(kind,))

    async def flow() -> dict[str, int | str]:
        try:
            await failing()
        except kind as error:
            return {name: each for name, each in vars(error).items() if name[0] != "_"}
        return {}

    found, _ = run_to_end(Workflow(flow), failing)
    assert found == {n: each for n, each in vars(make()).items() if n[0] != "_"}


RESULTS = {"a number": int, "a record": Page, "anything": Any, "nothing": type(None), "text": str}


@pytest.mark.parametrize("kind", RESULTS.values(), ids=[f"returns {one}" for one in RESULTS])
@pytest.mark.parametrize("place", ["step", "thread", "effect", "workflow"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("x"),
        lambda: _with(ValueError("x"), value=object()),
        lambda: _caused(ValueError("x"), HostileError(1)),
        lambda: _with(ValueError("x"), __notes__=[7, object()]),
    ],
    ids=["plain", "with an object", "with a hostile cause", "with a strange note"],
)
def test_case_095_the_error_that_was_raised_is_the_one_recorded(
    make: Callable[[], BaseException], place: str, kind: Any
) -> None:
    """What cannot be kept of an error never takes its place, whatever the function would have returned."""
    if make().__class__ is not ValueError:
        pytest.fail("the parameters make a ValueError")
    flow, others = failing_at(place, make)
    flow = Workflow(annotated(flow.function, result=kind), "flow")
    found, entries = run_to_end(flow, *others)
    (failed,) = [one for one in entries if isinstance(one, Failed)]
    assert (failed.failure.type, failed.failure.message) == ("ValueError", "x")
    assert isinstance(found.__cause__, ValueError)
    assert str(found.__cause__) == "x"


async def _in_task(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    task = asyncio.create_task(fail())
    await asyncio.sleep(1)
    return await task


async def _in_wait_for(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    return await asyncio.wait_for(fail(), 10)


async def _in_timeout(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    async with asyncio.timeout(10):
        return await fail()


async def _in_gather(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    await asyncio.gather(asyncio.sleep(1), fail())
    return 1


async def _in_wait(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    done, _ = await asyncio.wait([asyncio.create_task(fail())])
    return done.pop().result()


async def _in_shield(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    return await asyncio.shield(fail())


async def _in_group(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
    except* ValueError as group_of_one:
        (error,) = group_of_one.exceptions
    raise error


async def _in_handler(fail: Callable[[], Coroutine[Any, Any, int]]) -> int:
    try:
        await fail()
    except ValueError as error:
        kept = error
    await asyncio.sleep(1)
    raise kept


WAYS = [
    *(_in_task, _in_wait_for, _in_timeout, _in_gather),
    *(_in_wait, _in_shield, _in_group, _in_handler),
]


@pytest.mark.parametrize("place", ["step", "workflow"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_case_097_an_error_in_a_background_wait_is_the_original(
    way: Callable[..., Coroutine[Any, Any, int]], place: str
) -> None:
    """However it was waited for, in a step's body or in a workflow, on every Python: type, text and attributes arrive."""

    async def fail() -> int:
        await asyncio.sleep(0.5)
        raise _with(ValueError("x"), code=7)

    async def fail_in_step() -> int:
        return await way(fail)

    once = RetryPolicy(maximum_attempts=1)
    simple, waiting = step(fail, "simple", retry=once), step(fail_in_step, "waiting", retry=once)

    async def flow() -> int:
        return await (waiting() if place == "step" else way(simple))

    found, entries = run_to_end(Workflow(flow), simple, waiting)
    assert isinstance(found.__cause__, ValueError)
    assert str(found.__cause__) == "x"
    failures = [one.failure for one in entries if isinstance(one, StepFailed | Failed)]
    assert [(one.type, one.message) for one in failures] == [("ValueError", "x")] * 2


def test_case_097_an_error_that_a_client_waits_for_in_the_background_is_the_original() -> None:
    """A task beside others that waits for the result gets the run's error, with the workflow's own as its cause."""

    async def flow() -> int:
        await asyncio.sleep(5)
        raise ValueError("x")

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> BaseException | None:
        worker = await sim.start_worker()
        handle = await worker.client.start(workflow(), id="r")
        waiting = [sim.spawn(handle.result()) for _ in range(3)]
        await asyncio.wait(waiting)
        errors = [task.exception() for task in waiting]
        assert {type(one) for one in errors} == {outlast.WorkflowFailedError}
        assert errors[0] is not None
        return errors[0].__cause__

    cause = Simulation([workflow]).run(scenario)
    assert isinstance(cause, ValueError)
    assert str(cause) == "x"


# 98: arguments that are no data


@dataclass
class Dependencies:
    """What a step is given."""

    name: str
    connection: Any


@pytest.fixture(params=["socket", "lock", "function", "generator", "file", "coroutine", "object"])
def thing(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Something alive."""
    match request.param:
        case "socket":
            with socket.socket() as made:
                yield made
        case "file":
            with Path(__file__).open() as opened:
                yield opened
        case "coroutine":
            made = asyncio.sleep(0)
            yield made
            made.close()
        case kind:
            yield {
                "lock": threading.Lock(),
                "function": lambda: 1,
                "generator": (n for n in range(3)),
                "object": object(),
            }[kind]


@pytest.mark.parametrize("place", ["step", "effect", "end"])
def test_case_098_an_argument_that_is_no_data_fails_the_run_at_once(thing: Any, place: str) -> None:
    """The run fails without any wait, the error names the field, and nothing was called or intended."""

    async def take(deps: Dependencies) -> int:
        calls.append("take")
        return 1

    taking, acting = step(take), effect(take, "act")

    async def flow() -> Any:
        match place:
            case "step":
                return await taking(Dependencies("a", {"pool": [thing]}))
            case "effect":
                return await acting(Dependencies("a", {"pool": [thing]}))
            case _:
                return {"pool": [thing]}

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> tuple[BaseException | None, float, list[Entry]]:
        worker = await sim.start_worker()
        since = sim.clock.monotonic()
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await worker.client.run(workflow(), id="r")
        return caught.value.__cause__, sim.clock.monotonic() - since, await entries_of(sim)

    cause, seconds, entries = Simulation([workflow, taking, acting]).run(scenario)
    assert isinstance(cause, EncodeError)
    assert cause.path == ("$.pool[0]" if place == "end" else "$.deps.connection.pool[0]")
    assert seconds < 1
    assert not any(isinstance(one, EffectIntended | EffectRefused | StepFailed) for one in entries)
    assert calls == []


def test_case_098_an_argument_of_a_start_that_is_no_data_is_the_callers_error(thing: Any) -> None:
    """No run is there."""

    async def flow(deps: Dependencies) -> int:
        return 1

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> str:
        with pytest.raises(EncodeError) as caught:
            await sim.client.start(workflow(Dependencies("a", thing)), id="r")
        assert await sim.store.head(RUN) is None
        return caught.value.path

    assert Simulation([workflow]).run(scenario) == "$.deps.connection"


# 100, 101: what is too large


@pytest.mark.parametrize("end", ["terminate", "cancel"])
def test_case_100_a_run_with_more_than_the_store_takes_is_ended_all_the_same(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a run writes nothing of what it holds: it works when every write of the run itself is refused."""

    async def give(size: int) -> str:
        return "x" * size

    async def flow() -> int:
        for _ in range(50):
            await giving(20_000)
        try:
            await giving(200_000)
        finally:
            calls.append("end")
        return 1

    giving, workflow = step(give), Workflow(flow)
    monkeypatch.setattr(bound, "MAX_BODY_BYTES", 100_000)

    async def scenario(sim: Simulation) -> tuple[RunHead, RunHead]:
        await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        blocked = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        if end == "terminate":
            await handle.terminate("too large")
        else:
            await handle.cancel("too large")
        closed = await sim.closed("r")
        assert (await sim.client.runs.list())[0].status is closed.status
        return blocked, closed

    blocked, closed = Simulation([workflow, giving]).run(scenario)
    assert blocked.reason == "refused by the store"
    assert closed.status is (Status.TERMINATED if end == "terminate" else Status.CANCELLED)


MIB = 1024 * 1024
BROKEN: dict[str, tuple[bytes, int, str]] = {
    "60 MB of journal": (b'"' + b"x" * MIB + b'"', 60, "large"),
    "a journal that cannot be decoded": (b"\xff{", 3, "ordinary"),
    "a journal of entries that nobody knows": (b'{"type":"of a later version"}', 3, "unheard of"),
    "no journal at all": (b"", 0, "none"),
}


@pytest.mark.parametrize("status", [Status.WAITING, Status.PAUSED, Status.BLOCKED, Status.RUNNING])
@pytest.mark.parametrize(("body", "count", "kind"), BROKEN.values(), ids=list(BROKEN))
def test_case_100_a_run_that_nobody_can_load_is_ended(
    body: bytes, count: int, kind: str, status: Status, tmp_path: Path
) -> None:
    """On a file: terminating reads no entry and loads no payload, whoever owns the run; its owner is fenced, its id is free again."""

    async def flow() -> int:
        return 1

    workflow = Workflow(flow)

    async def main() -> None:
        clock = ManualClock()
        store = await open_sqlite(tmp_path / "cases.db", clock=clock)
        bench = Bench(store, clock)
        owner = await bench.worker()
        run = await bench.start("r", worker=owner, workflow="flow")
        head = await bench.head(run)
        first = head.next_seq
        rows = tuple(EntryRow(seq, seq, kind, "", "", body) for seq in range(first, first + count))
        await bench.apply(msgspec.structs.replace(following(head, entries=0), entries=rows))
        if kind == "none":
            with contextlib.closing(apsw.Connection(str(tmp_path / "cases.db"))) as file:
                file.execute("DELETE FROM entry")
        head = await bench.head(run)
        if status is not Status.RUNNING:
            await bench.apply(parking(head, status=status))
        client = Client(NotLoading(store), random=SeededRandom("r"), principal="tester")
        handle: outlast.RunHandle[Any] = client.handle("r")
        await handle.terminate("nobody can load it")
        with pytest.raises(outlast.RunTerminatedError, match="nobody can load it"):
            await handle.result()
        if status is Status.RUNNING:
            assert isinstance(await bench.one(following(head)), Fenced)
        assert (await client.runs.list())[0].status is Status.TERMINATED
        client = Client(store, random=SeededRandom("r"), principal="tester")
        await client.start(workflow(), id="r", if_closed="restart")
        assert (await handle.status()).generation == 2
        await store.close()

    asyncio.run(main())


class NotLoading:
    """A store that loads nothing of a run but its row."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        assert name not in {"load", "journal", "mail"}, f"{name} was asked for"
        return getattr(self._store, name)


OVERSIZE: dict[str, tuple[Any, Callable[[], Any]]] = {
    "text": (str, lambda: "x" * LARGE),
    "bytes": (bytes, lambda: b"x" * LARGE),
    "many small things": (list[int], lambda: [7] * LARGE),
    "many empty things": (list[list[int]], lambda: [[]] * LARGE),
    "a deep thing": (Any, lambda: _deep_list(10_000)),
    "one key": (dict[str, int], lambda: {"x" * LARGE: 1}),
    "many keys": (dict[int, int], lambda: dict.fromkeys(range(1_000_000), 1)),
    "one number": (int, lambda: 1 << LARGE),
    "just over the limit": (str, lambda: "x" * (LIMIT_BYTES - 1)),
}


def _deep_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(("kind", "make"), OVERSIZE.values(), ids=list(OVERSIZE))
@pytest.mark.parametrize("within", [False, True], ids=["from outside", "in a worker's process"])
def test_case_101_oversize_input_is_refused_before_any_row(
    kind: Any, make: Callable[[], Any], within: bool
) -> None:
    """An input or a message that is too large is an error of whoever gives it; nothing is written, and other runs start."""
    go = outlast.Signal("oversize", kind)

    async def take(value: Any) -> int:
        return 1

    workflow = Workflow(annotated(take, value=kind, result=int), "take")

    async def wait() -> int:
        return await outlast.receive(outlast.Signal("go", int))

    waiting = Workflow(wait)

    async def scenario(sim: Simulation) -> None:
        client = (await sim.start_worker()).client if within else sim.client
        with pytest.raises(EncodeError):
            await client.start(workflow(make()), id="r")
        assert await client.runs.list() == []
        handle = await client.start(waiting(), id="r")
        with pytest.raises(EncodeError):
            await handle.send(go, make())
        assert await sim.store.mail(RUN) == ()
        await sim.start_worker()
        await handle.send("go", 1)
        assert await handle.result() == 1

    Simulation([workflow, waiting]).run(scenario)


# 103: models of vendors


def _vendor_models() -> tuple[Any, Any]:
    """Return two fresh models whose build waits for their first use, one of which leads back to itself."""
    lazy = pydantic.ConfigDict(defer_build=True, extra="allow", protected_namespaces=())

    class Usage(pydantic.BaseModel):
        model_config = lazy
        input: int
        cached: int

    class Answer(pydantic.BaseModel):
        model_config = lazy
        id: str
        model: str
        usage: Usage | None
        former: list[Answer] = []

    return Usage, Answer


@pytest.mark.parametrize("built", [False, True], ids=["never used before", "used before"])
@pytest.mark.parametrize(
    "drift", ["none", "a field is missing", "a part lacks a field", "a field more"]
)
def test_case_103_a_vendors_model_is_stored_and_loaded_as_it_came(built: bool, drift: str) -> None:
    """A model whose build is deferred, and one without what its class requires: it comes back, and what it lacked it lacks."""
    usage, answer = _vendor_models()
    if built:
        answer(id="0", model="m", usage=usage(input=1, cached=0))
    fields: dict[str, Any] = {"id": "1", "model": "m"}
    fields["usage"] = usage.model_construct(input=1, **({} if "part" in drift else {"cached": 0}))
    if drift == "a field is missing":
        del fields["model"]
    if drift == "a field more":
        fields["tier"] = "new"

    async def ask() -> Any:
        return answer.model_construct(**fields)

    seen: list[Any] = []
    asking = step(annotated(ask, result=answer), "ask")

    async def flow() -> int:
        seen.append(await asking())
        return 1

    found, _ = run_to_end(Workflow(flow), asking)
    assert found == 1
    came = seen[-1]
    assert type(came) is answer
    assert vars(came).keys() | (came.model_extra or {}).keys() == fields.keys() | {"former"}
    assert came.former == []
    assert came.model_fields_set == answer.model_construct(**fields).model_fields_set
    assert hasattr(came, "model") is (drift != "a field is missing")
    assert hasattr(came.usage, "cached") is ("part" not in drift)


# 104: empty is not absent


@dataclass
class Empty:
    """A record without fields."""


EMPTY: list[tuple[Any, Any]] = [
    (str, ""),
    (bytes, b""),
    (bytearray, bytearray()),
    (list[int], []),
    (dict[str, int], {}),
    (tuple[()], ()),
    (tuple[int, ...], ()),
    (set[int], set()),
    (frozenset[int], frozenset()),
    (int, 0),
    (float, 0.0),
    (bool, False),
    (None, None),
    (Decimal, Decimal(0)),
    (timedelta, timedelta(0)),
    (range, range(0)),
    (pathlib.PurePosixPath, pathlib.PurePosixPath()),
    (Empty, Empty()),
]
ANYTHING = str | bytes | list[int] | dict[str, int] | set[int] | int | float | bool | None


@pytest.mark.parametrize(("kind", "value"), EMPTY, ids=lambda one: repr(one)[:40])
def test_case_104_an_empty_value_is_that_value_everywhere(kind: Any, value: Any) -> None:
    """Empty, zero, false and None come back as they are, of their types, from every place and in a replay."""
    check_there_and_back(kind, value)


@pytest.mark.parametrize(
    "value", ["", b"", [], {}, set(), 0, 0.0, False, None], ids=lambda one: repr(one)
)
def test_case_104_empty_values_are_told_apart_where_all_may_come(value: Any) -> None:
    """Also under one annotation that takes all of them, and as JSON data."""
    check_there_and_back(ANYTHING, value)
    if type(value) not in (bytes, set):
        check_there_and_back(Any, value)
        check_there_and_back(dict[str, Any], {"given": value})


@pytest.mark.parametrize("value", ["", [], {}, 0, False, None], ids=lambda one: repr(one))
def test_case_104_an_empty_outcome_of_an_operator_is_an_outcome(value: Any) -> None:
    """What an operator says of an effect in doubt may be empty too."""

    async def act() -> Any:
        return object()

    acting = effect(act)

    async def flow() -> Any:
        return [await acting()]

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await handle.resolve("r:1", applied=value)
        return await handle.result()

    (found,) = Simulation([workflow, acting]).run(scenario)
    assert same(found, value)


# 106: inputs are copied


SHARED: dict[str, tuple[Any, Callable[[], Any], Callable[[Any], object]]] = {
    "a list": (list[int], lambda: [1], lambda value: value.append(2)),
    "a dict": (dict[str, int], lambda: {"a": 1}, lambda value: value.update(a=2)),
    "a set": (set[int], lambda: {1}, lambda value: value.add(2)),
    "bytes that change": (bytearray, lambda: bytearray(b"a"), lambda value: value.extend(b"b")),
    "a queue": (
        collections.deque[int],
        lambda: collections.deque([1]),
        lambda value: value.append(2),
    ),
    "a record": (Page, lambda: Page("a"), lambda value: setattr(value, "title", "b")),
    "a list in a record": (Page, lambda: Page("a"), lambda value: value.links.append("b")),
    "a dict of JSON data": (Any, lambda: {"a": [1]}, lambda value: value["a"].append(2)),
}


@pytest.mark.parametrize(("kind", "make", "change"), SHARED.values(), ids=list(SHARED))
def test_case_106_inputs_are_copied_and_never_changed(
    kind: Any, make: Callable[[], Any], change: Callable[[Any], object]
) -> None:
    """Starting twice with one object gives two equal runs; what one side changes afterwards, no other side sees."""
    given: list[Any] = []
    returned: list[Any] = []

    async def take(value: Any) -> Any:
        given.append(copy.deepcopy(value))
        change(value)
        returned.append(value)
        return value

    async def flow(value: Any) -> list[bool]:
        call = taking(value)
        first = asyncio.create_task(call)
        change(value)
        result = await first
        seen = [same(given[-1], make()), same(result, changed)]
        change(returned[-1])
        return [*seen, same(result, changed), result is not returned[-1]]

    changed = make()
    change(changed)
    taking = step(annotated(take, value=kind, result=kind), "take")
    workflow = Workflow(annotated(flow, value=kind, result=list[bool]))

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        options = make()
        for run in ("one", "two"):
            handle = await worker.client.start(workflow(options), id=run)
            assert await handle.result() == [True] * 4
        assert same(options, make())
        heads = [await sim.until(run, lambda _: True) for run in ("one", "two")]
        assert heads[0].fingerprint == heads[1].fingerprint
        change(options)
        with pytest.raises(outlast.RunConflictError):
            await worker.client.start(workflow(options), id="one")

    Simulation([workflow, taking]).run(scenario)


# 107: exact numbers and bytes


EXACT: list[tuple[Any, Any]] = [
    *((int, sign * value) for sign in (1, -1) for value in (2**53 + 1, 2**63, 2**64, 2**200, 10**4000)),
    *((float, value) for value in (1e308, -0.0, 0.0, 5e-324, 0.1 + 0.2, 1e22, float(2**63), 1.0)),
    *((complex, value) for value in (complex(-0.0, 1e308), complex(1, -0.0))),
    *((bytes, value) for value in (b"\xff", b"\x00", bytes(range(256)), b"text", b'"')),
    (dict[int, int], {2**70: -(2**70)}),
    (list[float], [1.0, -0.0, 2.0**70]),
    (tuple[int, float, bool], (1, 1.0, True)),
    (int | float, 1.0),
    (int | float, 1),
    (bool | int, True),
    (bytes | str, b"a"),
    (bytes | str, "YQ=="),
    (Any, [1, 1.0, True, 2**70, -0.0, "1"]),
    (Decimal, Decimal("1E-400")),
    (fractions.Fraction, fractions.Fraction(10**50, 3)),
    (timedelta, timedelta.max),
    (datetime, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), EXACT, ids=lambda one: repr(one)[:40])
def test_case_107_numbers_and_bytes_come_back_exactly(kind: Any, value: Any) -> None:
    """No hop changes a type or a digit: argument, result, message, live and in a replay."""
    check_there_and_back(kind, value)
    for one, other in zip(_flat(codec_trip(kind, value)), _flat(value), strict=True):
        assert same(one, other)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def codec_trip(kind: Any, value: Any) -> Any:
    """Encode and decode."""
    codec = codec_for(kind, where="a value")
    return codec.decode(codec.encode(value))


@dataclass
class Everything:
    """All of them in one record."""

    numbers: list[int]
    floats: list[float]
    data: list[bytes]
    empty: tuple[str, bytes, list[int], dict[str, int], int, bool, None] = ("", b"", [], {}, 0, False, None)  # fmt: skip


def test_case_107_also_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through SQLite, in one process and then in another life of it."""
    value = Everything(
        [one for kind, one in EXACT if kind is int],
        [one for kind, one in EXACT if kind is float],
        [one for kind, one in EXACT if kind is bytes],
    )
    go = outlast.Signal("everything", Everything)

    async def take(value: Everything) -> Everything:
        return value

    async def flow(value: Everything) -> Everything:
        assert same_record(value, await taking(value))
        return await outlast.receive(go)

    taking, workflow = step(take), Workflow(flow)
    monkeypatch.setattr(registry, "_declared", [taking, workflow])

    async def life(work: Callable[[outlast.App], Coroutine[Any, Any, None]]) -> None:
        async with outlast.open(f"sqlite:///{tmp_path / 'runs.db'}") as app:
            await work(app)

    async def first(app: outlast.App) -> None:
        handle = await app.start(workflow(value), id="r")
        await handle.send(go, value)

    async def second(app: outlast.App) -> None:
        assert same_record(await app.handle("r", workflow).result(), value)

    asyncio.run(life(first))
    asyncio.run(life(second))


def same_record(one: Everything, other: Everything) -> bool:
    """Whether every number and every byte is the same, and of its type."""
    pairs = zip(
        [*one.numbers, *one.floats, *one.data, *one.empty],
        [*other.numbers, *other.floats, *other.data, *other.empty],
        strict=True,
    )
    return all(same(left, right) for left, right in pairs)
