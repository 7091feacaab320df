"""The workflows whose journals are golden: together they use every entry kind and every construct of workflow code.

A workflow here never changes in what it does: its journals are in flight for ever. A new construct is a new workflow.
"""

# ruff: noqa: D103
from __future__ import annotations

import asyncio
import builtins
import contextlib
import enum
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic

import outlast
from outlast import Applied, NotApplied, Unknown

T = TypeVar("T")
SOON = timedelta(seconds=20)
REBUILT = (
    Exception, ArithmeticError, AssertionError, AttributeError, BlockingIOError, BrokenPipeError, BufferError,
    ChildProcessError, ConnectionAbortedError, ConnectionError, ConnectionRefusedError, ConnectionResetError,
    EOFError, FileExistsError, FileNotFoundError, FloatingPointError, ImportError, IndexError, InterruptedError,
    IsADirectoryError, KeyError, LookupError, MemoryError, ModuleNotFoundError, NameError, NotADirectoryError,
    NotImplementedError, OSError, OverflowError, PermissionError, ProcessLookupError, RecursionError,
    RuntimeError, TimeoutError, TypeError, UnboundLocalError, ValueError, ZeroDivisionError,
)  # fmt: skip
"""Each type of Python's own that a failure is rebuilt as."""

word = outlast.Signal("word", str)
told = outlast.Query("told", int, list[str])
number = outlast.Signal("number", int)

world: dict[str, Any] = {}
"""What happened under each key; the outside of the effects."""
trouble: list[str] = []
"""What the next attempts do, one after another: `die`, `lost`, `no`, or nothing special."""
deaths: list[Any] = []
"""Called by an attempt that is to die."""
attempts: Counter[str] = Counter()


def forget() -> None:
    """Begin a world anew."""
    world.clear()
    trouble.clear()
    deaths.clear()
    attempts.clear()


class Broken(Exception):
    """A type of the author's, that steps declare."""


class NoSuchAccount(Exception):
    """Proves that nothing happened."""


# Steps


@outlast.step
async def double(n: int) -> int:
    """Take as many tenths of a second as `n` says, so that the order of outcomes is written here."""
    await asyncio.sleep(n / 10)
    return 2 * n


@outlast.step
def in_thread(text: str) -> str:
    return text.upper()


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=3))
async def flaky(name: str, failures: int) -> int:
    attempts[name] += 1
    if attempts[name] <= failures:
        raise ConnectionError(f"attempt {attempts[name]} of {name}")
    return attempts[name]


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1), raises=(Broken,))
async def fails(kind: str) -> None:
    """Raise an exception of that kind."""
    match kind:
        case "group":
            raise ExceptionGroup("several", [ValueError("one"), Broken("two"), KeyError("three")])
        case "noted":
            error = ValueError("with notes")
            error.add_note("the first note")
            error.add_note("the second note: äöü €")
            raise error
        case "caused":
            try:
                raise LookupError("the cause")
            except LookupError as cause:
                raise Broken("because of it") from cause
        case "foreign":
            raise NoSuchAccount("arrives as StepFailedError")
        case _:
            raise getattr(builtins, kind)(f"said {kind}")


# Effects


async def act(value: str) -> str:
    key = outlast.idempotency_key()
    does = trouble.pop(0) if trouble else ""
    await asyncio.sleep(0.2)
    if does == "no":
        raise NoSuchAccount("nothing happened")
    result = world.setdefault(key, value)
    if does == "die":
        deaths.pop()()
        await asyncio.sleep(0.1)
    if does == "lost":
        raise OSError("the answer was lost")
    return result


def look(value: str) -> Applied[str] | NotApplied | Unknown:
    if trouble and trouble[0] == "unknown":
        trouble.pop(0)
        return Unknown("the other side does not say")
    key = outlast.idempotency_key()
    return Applied(world[key]) if key in world else NotApplied()


@outlast.effect(idempotent=True, retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=1)))
async def idempotent(value: str) -> str:
    return await act(value)


@outlast.effect(probe=look, start_to_close_timeout=SOON, not_applied=(NoSuchAccount,),
                retry=outlast.RetryPolicy(maximum_attempts=2))  # fmt: skip
async def probed(value: str) -> str:
    return await act(value)


@outlast.effect(start_to_close_timeout=SOON, not_applied=(NoSuchAccount,))
async def once(value: str) -> str:
    return await act(value)


@outlast.effect(idempotent=True, repeats=True)
async def again(value: str) -> str:
    return await act(value)


@outlast.effect(idempotent=True, key_on=("invoice",), version="2")
async def keyed(invoice: str, note: str = "none") -> str:
    return await act(f"{invoice} {note}")


# Parallel work


@outlast.workflow
async def parallel() -> list[Any]:
    first = await asyncio.gather(double(3), double(1), double(2))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(n)) for n in (2, 1)]
    tasks += [asyncio.create_task(double(n)) for n in (3, 1)]
    done, _ = await asyncio.wait(tasks[2:], return_when=asyncio.FIRST_COMPLETED)
    early = sum(task.result() for task in done)
    arrived = [await one for one in asyncio.as_completed(tasks[2:])]
    failed = await asyncio.gather(fails("KeyError"), double(1), return_exceptions=True)
    return [
        *first,
        *(task.result() for task in tasks[:2]),
        early,
        arrived,
        [type(one).__name__ for one in failed],
    ]


async def branch(n: int) -> int:
    inner = await asyncio.gather(double(n), double(n + 1))
    return sum(inner) + await double(1)


@outlast.workflow
async def group_fails() -> None:
    """It ends as failed, with a group; the sibling is cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(fails("noted"))
        group.create_task(fails("caused"))
        group.create_task(outlast.sleep(1000))


@outlast.workflow
async def waits() -> list[str]:
    said: list[str] = []
    said.append(str(await asyncio.wait_for(double(1), 5)))
    try:
        await asyncio.wait_for(outlast.sleep(100), 2)
    except TimeoutError:
        said.append("wait_for")
    try:
        async with asyncio.timeout(1):
            await asyncio.gather(double(30), outlast.receive(word))
    except TimeoutError:
        said.append("timeout")
    async with asyncio.timeout(10) as later:
        await double(1)
        later.reschedule(None)
    try:
        await outlast.receive(word, timeout=timedelta(seconds=3))
    except TimeoutError:
        said.append("receive")
    await outlast.sleep(0)
    await asyncio.sleep(1.5)
    await outlast.sleep(timedelta(minutes=10))
    return said


@outlast.workflow
async def primitives() -> list[str]:
    event, lock, condition = asyncio.Event(), asyncio.Lock(), asyncio.Condition()
    semaphore, queue, log = asyncio.Semaphore(2), asyncio.Queue[int](2), list[str]()

    async def worker(n: int) -> None:
        async with semaphore:
            await queue.put(await double(n))
        async with lock:
            log.append(f"lock {n}")
            await double(1)
        await event.wait()
        async with condition:
            log.append(f"done {n}")
            condition.notify_all()

    async def consumer() -> None:
        for _ in range(3):
            log.append(f"got {await queue.get()}")
            await outlast.sleep(0.5)
            queue.task_done()
        event.set()

    async with asyncio.TaskGroup() as group:
        for n in (3, 1, 2):
            group.create_task(worker(n))
        group.create_task(consumer())
        async with condition:
            await condition.wait_for(lambda: "done 2" in log)
    await queue.join()
    return log


@outlast.workflow
async def cancellation() -> list[str]:
    said: list[str] = []

    async def stubborn() -> str:
        try:
            await outlast.sleep(100)
        except asyncio.CancelledError:
            said.append(str(await double(1)))
        return "went on"

    async def careful() -> None:
        try:
            await outlast.receive(number)
        finally:
            said.append(await idempotent("clean-up"))

    tasks = [asyncio.create_task(one()) for one in (stubborn, careful)]
    shielded = asyncio.create_task(double(20))
    outer = asyncio.ensure_future(asyncio.shield(shielded))
    await outlast.sleep(1)
    for task in (*tasks, outer):
        task.cancel()
    results = await asyncio.gather(*tasks, outer, return_exceptions=True)
    said += [one if isinstance(one, str) else type(one).__name__ for one in results]
    waiting = asyncio.create_task(probed("cannot be cancelled"))
    await outlast.sleep(0.1)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    return [*said, str(await shielded)]


@outlast.workflow
async def cancelled() -> str:
    """Somebody cancels it; what it began is cleaned up."""
    try:
        await idempotent("begun")
        async with asyncio.TaskGroup() as group:
            group.create_task(outlast.sleep(1000))
            group.create_task(outlast.receive(word))
    finally:
        await again("undone")
    return "never"


@outlast.workflow
async def streams() -> list[int]:
    @asynccontextmanager
    async def opened() -> Any:
        await double(1)
        try:
            yield 5
        finally:
            await double(2)

    async def numbers() -> Any:
        for n in (1, 2, 3):
            yield await double(n)

    found: list[int] = []
    async with opened() as first, contextlib.aclosing(numbers()) as some:
        found.append(first)
        async for one in some:
            found.append(one)
            if one == 4:
                break
    return found


# Failures and retries


@outlast.workflow
async def failures() -> list[list[str]]:
    """Each type that is rebuilt, a declared one, a foreign one, a group, notes and a cause."""
    told: list[list[str]] = []
    for kind in (*(one.__name__ for one in REBUILT), "group", "noted", "caused", "foreign"):
        try:
            await fails(kind)
        except Exception as error:
            members = getattr(error, "exceptions", ())
            told.append([
                type(error).__name__, str(error), *getattr(error, "__notes__", []),
                *(f"{type(one).__name__}: {one}" for one in (*members, error.__cause__) if one is not None),
            ])  # fmt: skip
    return told


@outlast.workflow
async def retries() -> list[Any]:
    good = await flaky("comes good", 2)
    try:
        await flaky("gives up", 9)
    except ConnectionError as error:
        return [good, str(error), in_order(await asyncio.gather(in_thread("a"), in_thread("b")))]
    return []


def in_order(texts: list[str]) -> str:
    return " ".join(texts)


@outlast.workflow
async def raises_own() -> None:
    """It fails with a type and a note of its own."""
    await double(1)
    error = Broken("own words", 5)
    error.add_note("seen from above")
    raise error


@outlast.workflow
async def resolved() -> list[str]:
    """Steps that an operator answers, in place of attempts that never succeed."""
    said = [str(await flaky_for_ever("a"))]
    try:
        await flaky_for_ever("b")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
    return said


@outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(hours=1)))
async def flaky_for_ever(name: str) -> int:
    raise ConnectionError(f"{name} never answers")


# Messages


@outlast.workflow
async def messages() -> list[Any]:
    """Several names, several in one turn, one that waits from before, one that does not fit."""
    heard: list[Any] = [await outlast.receive(number)]
    heard += [await outlast.receive(word), await outlast.receive(word)]
    total = 0

    async def add() -> None:
        nonlocal total
        while True:
            total += await outlast.receive(number)

    adding = asyncio.create_task(add())
    await outlast.wait_condition(lambda: total >= 10)
    try:
        await outlast.wait_condition(lambda: total >= 99, timeout=timedelta(seconds=5))
    except TimeoutError:
        heard.append("not yet")
    adding.cancel()
    heard.append(total)
    heard.append(await outlast.receive(word, timeout=timedelta(hours=1)))
    return heard


# Approvals


@outlast.workflow
async def approved() -> list[str]:
    grant = await outlast.approval(
        {"change": "both"}, covers=[again("exact"), again.where(value="pattern")], role="boss",
        expires_in=timedelta(hours=1), use_within=timedelta(hours=2),
    )  # fmt: skip
    said = [grant.by, grant.reason, await again("exact"), await again("pattern")]
    for value in ("exact", "other"):
        try:
            await again(value)
        except outlast.ApprovalError as error:
            said.append(type(error).__name__)
    return said


@outlast.workflow
async def denied() -> list[str]:
    try:
        await outlast.approval(
            "one", covers=[once("x")], role="boss", expires_in=timedelta(hours=1)
        )
    except outlast.ApprovalDeniedError as error:
        return [error.by, error.reason]
    return []


@outlast.workflow
async def expires() -> None:
    """Caught once, then uncaught: the run ends as cancelled."""
    with contextlib.suppress(outlast.ApprovalExpiredError):
        await outlast.approval(
            "first", covers=[once("x")], role="boss", expires_in=timedelta(seconds=30)
        )
    await outlast.approval(
        "second", covers=[once("x")], role="boss", expires_in=timedelta(seconds=30)
    )


@outlast.workflow
async def too_late() -> list[str]:
    """The grant ends before the effect begins: the store refuses the intent."""
    await outlast.approval(
        "both", covers=[once("x")], role="boss", expires_in=timedelta(seconds=50)
    )
    await outlast.sleep(100)
    try:
        return [await once("x")]
    except outlast.ApprovalError as error:
        return [type(error).__name__, error.hint]


@outlast.workflow
async def gives_up_asking() -> str:
    """The request is withdrawn, and the decision comes too late."""
    try:
        async with asyncio.timeout(30):
            await outlast.approval("quick", role="boss", expires_in=timedelta(hours=1))
    except TimeoutError:
        return await outlast.receive(word)
    return "decided"


# Effects


@outlast.workflow
async def effects() -> list[str]:
    """Each declaration; an equal call in flight; equal calls that repeat; an equal call that is refused; a key of one parameter."""
    said = [await idempotent("a"), await probed("b"), await once("c")]
    said += await asyncio.gather(idempotent("d"), idempotent("d"), probed("e"))
    said += [await again("f"), await again("f"), await keyed("i-1", note="first")]
    for call in (lambda: idempotent("a"), lambda: keyed("i-1", note="second")):
        try:
            said.append(await call())
        except outlast.RepeatedEffectError as error:
            said.append(type(error).__name__)
    return said


@outlast.workflow
async def unknown(which: Literal["idempotent", "probed", "once"]) -> list[str]:
    """The outcome of an attempt is not known; a sibling goes on."""
    effect = {"idempotent": idempotent, "probed": probed, "once": once}[which]
    results = await asyncio.gather(effect("x"), double(1), return_exceptions=True)
    return [
        f"{type(one).__name__}: {one}" if isinstance(one, Exception) else str(one)
        for one in results
    ]


# Time and chance


@outlast.workflow
async def entropy() -> dict[str, Any]:
    async def draw() -> list[Any]:
        dice = outlast.random()
        await double(1)
        return [
            dice.random(),
            dice.randint(1, 6),
            str(outlast.uuid4()),
            outlast.random().choice("abc"),
        ]

    first = outlast.now()
    drawn = await asyncio.gather(draw(), draw())
    await outlast.sleep(5)
    shuffled = list(range(8))
    outlast.random().shuffle(shuffled)
    told = outlast.info()
    return {
        "first": first.isoformat(), "then": outlast.now().isoformat(), "drawn": drawn, "shuffled": shuffled,
        "bytes": outlast.random().randbytes(4).hex(), "uniform": outlast.random().uniform(0, 1),
        "info": [told.run_id, told.workflow, str(told.generation), str(told.entries), told.started_at.isoformat()],
    }  # fmt: skip


# Parked, taken over, begun again


@outlast.workflow
async def parks(rounds: int) -> list[str]:
    """It leaves memory between its messages, and another worker takes it up."""
    heard: list[str] = []
    for n in range(rounds):
        heard.append(await outlast.receive(word))
        await outlast.sleep(60)
        heard.append(str(await double(n)))
    return heard


@outlast.workflow
async def generations(fate: str) -> str:
    """The same id, used again after each end: a journal and keys of its own."""
    result = await idempotent("the same payload")
    if fate == "fail":
        raise ValueError("this generation fails")
    return f"{result} of generation {outlast.info().generation}"


# Handlers


put = outlast.Update("put", str, int)
weigh = outlast.Update("weigh", int, float)


@outlast.workflow
async def handlers(fate: str) -> list[Any]:
    """Signals and updates by handlers that do all that a body may; some come early, some together, some while the run ends."""
    items: list[Any] = []

    def check(item: str) -> None:
        if item in items:
            raise ValueError(f"{item} is there already")

    def add(item: str) -> int:
        items.append(item)
        return len(items)

    async def take(n: int) -> None:
        items.append(await double(n))
        if fate == "a handler fails" and n == 3:
            raise LookupError("no place for 3")

    async def work_out(n: int) -> float:
        if n < 0:
            raise ArithmeticError("nothing weighs less than nothing")
        try:
            await outlast.sleep(n)
            parts = await asyncio.gather(double(n), double(n + 1))
            return sum(parts) + outlast.random().random()
        finally:
            items.append(f"weighed {n}")

    outlast.on_update(put, add, validator=check)
    await double(1)
    outlast.on_signal(number, take)
    outlast.on_update(weigh, work_out)
    await outlast.wait_condition(lambda: len(items) >= 4)
    items.append(await outlast.receive(word))
    if fate == "the body fails":
        raise KeyError("the body")
    return items


# Values


@outlast.workflow
async def forks() -> list[Any]:
    """An effect and a request are under way at once; later effects depend on a step, and one of them is covered."""
    first = await double(1)
    paid, grant = await asyncio.gather(
        once(f"{outlast.info().run_id} {outlast.info().generation} {first}"),
        outlast.approval(
            "go on", covers=[keyed("covered")], role="boss", expires_in=timedelta(hours=1)
        ),
    )
    said = [paid, grant.by, outlast.now().hour, await double(2)]
    for call in (again(f"{said[-1]}"), keyed("covered")):
        try:
            said.append(await call)
        except (outlast.ForkedEffectError, outlast.StepFailedError) as error:
            said.append(type(error).__name__)
    return said


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    name: str
    depth: NotRequired[int]


@dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclass(frozen=True)
class Box(Generic[T]):
    item: T
    rest: tuple[T, ...] = ()


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Person(pydantic.BaseModel):
    name: str
    born: date


@dataclass
class Everything:
    """One field for each kind of value that the codec stores."""

    nothing: None = None
    truth: bool = True
    small: int = -5
    big: int = 2**70
    real: float = 0.1
    text: str = 'äöü € 𝄞 "quoted" \\ \n \u2028'
    raw: bytes = b"\x00\xff"
    exact: Decimal = Decimal("1.10")
    moment: datetime = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
    day: date = date(2026, 3, 1)
    clock: time = time(23, 59, 1)
    span: timedelta = timedelta(days=1, microseconds=7)
    key: UUID = UUID("12345678-1234-5678-1234-567812345678")
    colour: Colour = Colour.BLUE
    level: Level = Level.LOW
    choice: Literal["a", "b", 3] = "b"
    numbers: list[int] = field(default_factory=lambda: [1, 2])
    fixed: tuple[int, str] = (1, "x")
    many: tuple[float, ...] = (1.0, 2.5)
    names: set[str] = field(default_factory=lambda: {"a", "b", "c", "d", "e"})
    frozen: frozenset[int] = frozenset({3, 1, 2})
    by_name: dict[str, Money] = field(default_factory=lambda: {"x": Money(Decimal("2.50"))})
    by_number: dict[int, str] = field(default_factory=lambda: {2: "two", 1: "one"})
    pair: Pair = Pair(1, "r")
    options: Options = field(default_factory=lambda: Options(name="n"))
    box: Box[Money] = field(
        default_factory=lambda: Box(Money(Decimal(1)), (Money(Decimal(2), "USD"),))
    )
    shape: Circle | Square = field(default_factory=lambda: Square(2.0))
    person: Person = field(default_factory=lambda: Person(name="Ada", born=date(1815, 12, 10)))
    maybe: Money | None = None
    anything: Any = field(default_factory=lambda: {"a": [1, None, True, "x", 1.5]})


@outlast.step
async def echo(value: Everything) -> Everything:
    return value


@outlast.effect(idempotent=True)
async def keep(value: Everything, count: int = 1) -> Everything:
    """Its key is made of the written pre-images of all these types."""
    return value


@outlast.workflow
async def values(value: Everything) -> list[Any]:
    echoed = await echo(value)
    kept = await keep(echoed)
    await outlast.approval(
        echoed, covers=[keep(echoed, count=2)], role="boss", expires_in=timedelta(hours=1)
    )
    again = await keep(echoed, count=2)
    return [echoed == value, kept == value, again == value, sorted(value.names), repr(value.person)]


@outlast.workflow
async def publishes(fate: str) -> list[str]:
    """In a row, side by side, in the clean-up of what is cancelled, and right before the end; and it answers a query."""
    heard: list[str] = []
    outlast.on_query(told, lambda most: heard[:most])

    async def part(name: str, seconds: float) -> None:
        try:
            outlast.publish(name, {"began": name})
            await outlast.sleep(seconds)
            outlast.publish(name, "slept")
        finally:
            outlast.publish("last", name)

    outlast.publish("stage", 1)
    outlast.publish("stage", 2)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):
            await asyncio.gather(part("a", 1), part("b", 5), double(3))
    heard.append(await outlast.receive(word))
    outlast.publish("stage", 3)
    if fate == "fail":
        raise Broken("as was said")
    return heard


@outlast.workflow
async def paused_twice() -> list[Any]:
    """A condition over the time and timers beside messages, while somebody pauses."""
    began = outlast.now()

    async def long_enough() -> str:
        await outlast.wait_condition(lambda: outlast.now() - began > timedelta(seconds=100))
        return str(outlast.now() - began)

    waiting = asyncio.create_task(long_enough())
    first = await outlast.receive(word)
    await outlast.sleep(10)
    return [first, await double(3), await outlast.receive(word), await waiting]


@outlast.workflow(timeout=timedelta(minutes=2))
async def runs_out_of_time() -> None:
    """Shield a step, clean up durably, and be cancelled again while cleaning up."""
    shielded = asyncio.create_task(double(1400))
    try:
        await outlast.receive(word)
    except asyncio.CancelledError as why:
        text = await in_thread(str(why))
        try:
            await asyncio.shield(shielded)
        except asyncio.CancelledError:
            await in_thread(f"again, after {text}: {shielded.done()}")
            await shielded
        raise


# Attempts with an end, and outcomes from outside


@outlast.step(schedule_to_close_timeout=timedelta(seconds=5))
async def never_in_time(text: str) -> str:
    raise Broken(text)


@outlast.effect(idempotent=True, schedule_to_close_timeout=timedelta(hours=1))
async def in_good_time(value: str) -> str:
    return await act(value)


@outlast.step(start_to_close_timeout=timedelta(days=2), schedule_to_close_timeout=timedelta(days=3))
def handed_out(name: str) -> str:
    tokens.append(outlast.completion_token())
    outlast.heartbeat(name)
    outlast.complete_later()


tokens: list[str] = []


@outlast.workflow
async def deadlines() -> list[str]:
    """What ends by its time, and what is said from outside; a call and its deadline in one turn with others."""
    said: list[str] = []
    for call in (never_in_time("down"), handed_out("late")):
        try:
            said.append(await call)
        except TimeoutError as error:
            said.append(f"{error} after {type(error.__cause__).__name__}")
    said += await asyncio.gather(in_good_time("pay"), handed_out("one"), double_text("b"))
    try:
        await handed_out("two")
    except RuntimeError as error:
        said.append(f"{error}")
    return said


@outlast.step
async def double_text(text: str) -> str:
    return text * 2


# Growth and change


@outlast.workflow
async def rolls(left: int, heard: list[str]) -> list[str]:
    """Take one word a generation; what else came goes on with it."""
    heard = [*heard, await outlast.receive(word), await again("said")]
    if left:
        outlast.continue_as_new(rolls(left - 1, heard))
    return heard


@outlast.workflow
async def changes() -> list[int]:
    found = [await double(1)]
    if outlast.patched("three-times"):
        found.append(await double(3))
    outlast.deprecate_patch("no-more-halves")
    return [*found, await double(2)]


@outlast.workflow
async def grows() -> int:
    found = 0
    while not outlast.info().continue_suggested:
        found += await double(1)
    return found


# Other runs


@outlast.workflow
async def cousin(fate: str) -> str:
    """Wait for a word, then end as it is told."""
    said = await outlast.receive(word)
    if fate == "fail":
        raise ValueError(said)
    return said


@outlast.workflow
async def kindred() -> list[Any]:
    """A child with a handle, one that fails, and messages to both kinds of runs: a fork knows how each went."""
    child = await outlast.start_child(cousin("return"), id="kin-5", parent_close="cancel")
    said: list[Any] = [await double(1)]
    await child.send(word, "hello")
    failing = await outlast.start_child(cousin("fail"))
    await failing.send(word, "no")
    for each in (child, failing):
        try:
            said.append(await each.result())
        except outlast.WorkflowFailedError as error:
            said.append(repr(error.__cause__))
    await outlast.run_handle("kin-6").send(word, "well met")
    try:
        await outlast.run_handle("nobody").cancel()
    except outlast.RunNotFoundError as error:
        said.append(str(error.run))
    return said


@outlast.workflow
async def relatives() -> list[str]:
    """Children that end in each way or are refused, a cancel that is sent on, messages to others, and waits for their ends."""
    said = [await outlast.receive(word)]
    child = await outlast.start_child(cousin("return"), id="kin-1", parent_close="cancel")
    await child.send(word, "hello")
    said.append(await child.result())
    failing = await outlast.start_child(cousin("fail"))
    await failing.send(word, "no")
    try:
        await failing.result()
    except outlast.WorkflowFailedError as error:
        said.append(repr(error.__cause__))
    try:
        await outlast.run_child(cousin("return"), id="kin-1")
    except outlast.RunConflictError as error:
        said.append(str(error.run))
    other = outlast.run_handle("kin-2", cousin)
    await other.send(word, "well met")
    said.append(await other.result())
    forever = outlast.run_handle("kin-3")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(forever.result(), 5)
    await forever.cancel("nobody waits")
    try:
        await outlast.run_handle("nobody").result()
    except outlast.RunNotFoundError as error:
        said.append(str(error.run))
    try:
        await outlast.run_handle("none").cancel()
    except outlast.RunNotFoundError as error:
        said.append(str(error.run))
    try:
        await asyncio.wait_for(outlast.run_child(cousin("return"), id="kin-4"), 5)
    except TimeoutError:
        said.append("gave up")
    await outlast.start_child(cousin("return"), id="kin-5", parent_close="abandon")
    return said


# One purpose under two keys


@outlast.effect(idempotent=True, same_as=outlast.SameAs("to", role="boss", expires_in=timedelta(hours=1)),
                idempotent_for=timedelta(hours=24), start_to_close_timeout=SOON,
                retry=outlast.RetryPolicy(maximum_attempts=1))  # fmt: skip
async def invite(to: str, text: str) -> str:
    return await act(f"{to} {text}")


@outlast.workflow
async def purposes() -> list[str]:
    """A second call of one purpose, which somebody is asked about, beside calls that ask nobody."""
    said: list[str] = []
    for to, text in (("ann", "come"), ("ann", "come"), ("ann", "do come"), ("bob", "come")):
        try:
            said.append(await invite(to, text))
        except OSError as error:
            said.append(f"{type(error).__name__}: {error.__notes__[0]}")
    return said


# What is undone


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=outlast.RetryPolicy(maximum_attempts=1))  # fmt: skip
async def call_off(result: str) -> str:
    return await act(f"no {result}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, compensate=call_off)
async def reserve(what: str) -> str:
    return await act(what)


@outlast.effect(start_to_close_timeout=SOON, compensate=call_off)
async def prepay(what: str) -> str:
    return await act(what)


@outlast.workflow
async def trip(ends: str) -> list[str]:
    """Parts that stand, that are tried again, that are undone at once, in sagas inside one that is undone as a whole, or not."""
    had: list[str] = []
    async with outlast.saga():
        had.append(await reserve("train"))
        try:
            async with outlast.saga():
                await asyncio.gather(reserve("tent"), reserve("boat"))
                raise OSError("rain")
        except OSError:
            had.append("no camping")
        tries = outlast.RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
        async for part in outlast.save_point(tries):
            async with part:
                had.append(await reserve("hotel"))
                if part.number == 1:
                    raise OSError("a noisy room")
        if ends == "fail":
            try:
                had.append(await prepay("dinner"))
            except outlast.EffectCompensatedError as error:
                had.append(f"{error.step} was undone")
            raise OSError("ill")
    return had


@outlast.effect(
    idempotent=True,
    schedule_to_close_timeout=timedelta(hours=1),
    approval=outlast.Approval(
        "buyer",
        expires_in=timedelta(hours=1),
        use_within=timedelta(days=2),
        quorum=2,
        edits="yes",
        escalate=[outlast.Rung("director", timedelta(hours=2))],
    ),
)
async def buy(what: str, number: int = 1) -> str:
    return await act(f"{number} {what}")


@outlast.workflow
async def buys(what: str) -> list[str]:
    """An effect that two persons have to approve; they may want another number of it."""
    had = [f"{await double(1)}"]
    try:
        had.append(await buy(what, number=3))
    except outlast.ApprovalError as error:
        had.append(f"{type(error).__name__} at {error.operation}")
    return had


@outlast.workflow
async def consults(what: str) -> list[str]:
    """A question, and an approval that rests on what a step has found, of a call that may be changed."""
    number = await outlast.ask(
        {"how many": what}, int, role="owner", expires_in=timedelta(hours=1), four_eyes=True
    )
    call = idempotent(f"{number} {what}")
    grant = await outlast.approval(
        "price",
        covers=[call],
        role="owner",
        expires_in=timedelta(hours=1),
        edits="second",
        preconditions={"price": double(number)},
    )
    return [grant.by, await grant.edited(call)]


CODE = [
    one for one in list(globals().values()) if type(one).__name__ in ("Step", "Effect", "Workflow")
]
