"""Cases of several sections about attempts: their time, their signs of life, and what each option of a declaration changes."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from cases_bench import LocalApp

import outlast
from outlast.app import SystemThreads
from outlast.journal.entry import EffectInDoubt, EffectIntended
from outlast.policy import ForeignTool
from outlast.store.change import RunKey
from outlast.testing import Receiver, Simulation
from outlast.worker.executor import Executor, Returned
from outlast.worker.pulse import Pulse
from outlast.worker.stall import LoopWatch
from outlast.worker.worker import WorkerOptions
from outlast.workflows.attempt import Attempt
from outlast.workflows.heartbeat import Beats

SECOND = timedelta(seconds=1)
TIMEOUT = {"start_to_close_timeout": 5 * SECOND}
bodies: Counter[str] = Counter()
told: list[Any] = []
receiver = Receiver()
sims: list[Simulation] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    bodies.clear()
    told.clear()
    receiver.forget()


def clock() -> float:
    return sims[-1].clock.monotonic() - 1000


# 1: a slow tool


@outlast.step(
    heartbeat_timeout=SECOND, retry=outlast.RetryPolicy(initial_interval=SECOND, maximum_attempts=2)
)
async def slow_tool(beats: bool) -> int:
    bodies["slow_tool"] += 1
    number = outlast.attempt().number
    for _ in range(30):
        if beats or number == 2:
            outlast.heartbeat()
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            if beats:
                raise
    return number


@outlast.workflow
async def use_slow_tool(beats: bool) -> int:
    return await slow_tool(beats)


@pytest.mark.parametrize("beats", [True, False])
def test_case_001_a_slow_tool_that_beats_is_let_alone(
    beats: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nine seconds of work with a beat each 0.3 s are one attempt; without beats it is over after one second, and its end dropped."""

    async def scenario(sim: Simulation) -> int:
        options = WorkerOptions(library="simulated", lease=SECOND)
        await sim.start_worker(options=options)
        await sim.start_worker(options=options)
        handle = await sim.client.start(use_slow_tool(beats), id="r")
        await sim.closed("r")
        await asyncio.sleep(10)
        return await handle.result()

    with caplog.at_level(logging.WARNING, "outlast"):
        assert Simulation([slow_tool, use_slow_tool]).run(scenario) == (1 if beats else 2)
    assert bodies["slow_tool"] == (1 if beats else 2)
    assert bool([one for one in caplog.records if "heartbeat" in one.getMessage()]) is not beats


# 10: an attempt beside its retry


@outlast.step(
    start_to_close_timeout=timedelta(seconds=0.2),
    retry=outlast.RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2),
)
def told_at_its_beat() -> int:
    number = outlast.attempt().number
    try:
        while number == 1:
            outlast.heartbeat()
            time.sleep(0.005)
    except asyncio.CancelledError as error:
        told.append(f"{error}")
        raise
    return number


@outlast.workflow
async def use_told() -> int:
    return await told_at_its_beat()


def test_case_010_a_thread_that_timed_out_ends_at_its_next_beat(
    file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, goes by itself, and leaves nothing to be dropped; the second attempt's result stands."""

    async def main() -> int:
        async with LocalApp(file_url, [told_at_its_beat, use_told]) as app:
            return await app.run(use_told(), id="r")

    assert asyncio.run(main()) == 2
    assert told == ["the attempt was not done within 0:00:00.200000"]
    assert not [one for one in caplog.records if "the result is dropped" in one.getMessage()]


# 25: recovery between two attempts


@outlast.step(retry=outlast.RetryPolicy(initial_interval=10 * SECOND))
async def page_by_page() -> list[Any]:
    told.append((outlast.attempt().number, outlast.heartbeat_details(int)))
    if outlast.attempt().number == 1:
        for page in range(5):
            outlast.heartbeat(page)
        raise OSError("down")
    return list(told[-1])


@outlast.workflow
async def use_pages() -> list[Any]:
    return await page_by_page()


@pytest.mark.parametrize("after", [3, 9, 11])
def test_case_025_a_kill_between_attempts_loses_no_details(after: float) -> None:
    """Count, due time and the last details of the failed attempt are one row, and the next worker has all of it."""

    async def scenario(sim: Simulation) -> list[Any]:
        options = WorkerOptions(library="simulated", lease=SECOND, idle=timedelta(hours=1))
        first = await sim.start_worker(options=options)
        handle = await sim.client.start(use_pages(), id="r")
        while not told:
            await asyncio.sleep(0.1)
        await asyncio.sleep(after)
        first.kill()
        await sim.start_worker(options=options)
        await sim.closed("r")
        return await handle.result()

    assert Simulation([page_by_page, use_pages]).run(scenario) == [2, 4]
    assert told[0] == (1, None)


# 124: long times

LONG = timedelta(days=60)


@outlast.step(
    schedule_to_close_timeout=LONG,
    heartbeat_timeout=timedelta(days=50),
    start_to_close_timeout=LONG,
)
async def very_long(how: str) -> str:
    bodies[how] += 1
    if how == "handed out":
        outlast.complete_later()
    if how == "runs":
        await asyncio.sleep(timedelta(days=49).total_seconds())
        return "done"
    if how == "silent":
        await asyncio.sleep(timedelta(days=59).total_seconds())
    raise OSError("down")


@outlast.workflow
async def use_very_long(how: str) -> str:
    try:
        return await very_long(how)
    except TimeoutError:
        return "over"


@pytest.mark.parametrize(
    ("how", "days", "result"),
    [
        ("handed out", 60, "over"),
        ("runs", 49, "done"),
        ("fails", 60, "over"),
        ("silent", 60, "over"),
    ],
)
def test_case_124_times_of_attempts_are_no_counts_of_32_bits(
    how: str, days: int, result: str
) -> None:
    """A deadline, a silence and a wait for somebody outside last as long as they say, beyond 24.9 and 49.8 days."""

    async def scenario(sim: Simulation) -> tuple[str, timedelta]:
        options = WorkerOptions(library="simulated", lease=timedelta(days=90), idle=LONG)
        await sim.start_worker(options=options)
        since = sim.clock.now()
        handle = await sim.client.start(use_very_long(how), id="r")
        await asyncio.sleep(60)
        for moment in (24.9, 49, 49.8, 50, 60):
            status = await handle.status()
            assert status.status.closed is (moment > days), moment
            minute_before = since + timedelta(days=moment) - timedelta(minutes=1)
            sim.clock.advance(minute_before - sim.clock.now())
            await asyncio.sleep(120)
        head = await sim.closed("r")
        return await handle.result(), head.changed_at - since

    said, took = Simulation([very_long, use_very_long], longest=timedelta(days=90)).run(scenario)
    assert said == result
    assert timedelta(days=days) - timedelta(minutes=2) <= took <= timedelta(days=days, minutes=2)
    if how != "fails":
        # What is silent, be it here or outside, is attempted once more after fifty days.
        assert bodies[how] == (2 if how in {"silent", "handed out"} else 1)


# 125: every option counts


class OddError(Exception):
    """An author's own."""


def find(amount: int, note: str) -> Any:
    return receiver.find(outlast.idempotency_key())


def cannot_say(amount: int, note: str) -> Any:
    return outlast.Unknown("who knows")


async def never_says(amount: int, note: str) -> Any:
    await asyncio.sleep(10_000)


@outlast.effect(idempotent=True, **TIMEOUT)
async def take_back(amount: int) -> None: ...


Body = Callable[..., Any]
Seen = dict[str, Any]


def observe(kind: str, does: str, options: dict[str, Any], seconds: float) -> Seen:
    """Return what can be seen of an operation in its first seconds.

    Args:
        does: What each attempt does: `fail`, `hang`, `lose` (an error that proves nothing), `work`.

    Returns: `began`: when attempts began; `result`: what the workflow got of its calls; `keys` and `actions` of intents; `doubt`: when
        it came in doubt; `name`: under which it is journaled; `probes`: how often the receiver was asked.
    """
    began: list[int] = []
    sim: Simulation

    async def body(amount: int, note: str) -> int:
        began.append(round(sim.clock.monotonic() - 1000))
        if does == "hang":
            await asyncio.sleep(10_000)
        if does == "fail":
            raise OddError("no")
        if does == "lose":
            raise ConnectionError("lost")
        if kind == "effect":
            receiver.apply_once(outlast.idempotency_key(), amount)
        return amount

    declared: Any = (outlast.step if kind == "step" else outlast.effect)(**options)(body)

    async def calls() -> list[str]:
        said: list[str] = []
        for note in ("one", "one", "two"):
            try:
                said.append(f"{await declared(5, note)}")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                said.append(type(error).__name__)
                if does != "work":
                    break
        return said

    workflow = outlast.workflow(calls)

    async def scenario(sim: Simulation) -> Seen:
        await sim.start_worker(options=WorkerOptions(library="simulated"))
        handle = await sim.client.start(workflow(), id="r")
        await asyncio.sleep(seconds)
        entries = await handle.journal()
        intents = [one.entry for one in entries if isinstance(one.entry, EffectIntended)]
        doubts = [one.at for one in entries if isinstance(one.entry, EffectInDoubt)]
        status = await handle.status()
        return {
            "began": began,
            "result": await handle.result() if status.status.closed else None,
            "keys": len({one.key for one in intents}),
            "actions": [one.action_sha256 for one in intents],
            "doubt": [round((at - entries[0].at).total_seconds()) for at in doubts],
            "undo": [one.compensation for one in intents],
            "names": {one.row.name for one in await rows_of(sim) if one.row.operation},
            "probes": receiver.probes.total(),
        }

    async def rows_of(sim: Simulation) -> Any:
        return await sim.store.journal(RunKey("default", "r"))

    sim = Simulation([declared, workflow])
    return sim.run(scenario)


TWICE = outlast.RetryPolicy(maximum_attempts=2)
PROBED = {**TIMEOUT, "probe": find}
OPTIONS: dict[tuple[str, str], tuple[str, dict[str, Any], Any, str, Any, Any]] = {
    # (kind, option): what attempts do, the other options, the option's value, what is looked at, without it, with it
    ("step", "name"): ("work", {}, "other", "names", {"body"}, {"other"}),
    ("step", "retry"): ("fail", {}, TWICE, "began", [0, 1, 3, 7, 15], [0, 1]),
    ("step", "start_to_close_timeout"): ("hang", {}, 5 * SECOND, "began", [0], [0, 6, 13]),
    ("step", "heartbeat_timeout"): ("hang", {}, 5 * SECOND, "began", [0], [0, 6, 13]),
    ("step", "schedule_to_close_timeout"): (
        "fail", {}, 5 * SECOND, "began", [0, 1, 3, 7, 15], [0, 1, 3],
    ),
    ("step", "raises"): (
        "fail", {"retry": TWICE}, (OddError,), "result", ["StepFailedError"], ["OddError"],
    ),
    ("step", "queue"): ("hang", {}, "nobody serves it", "began", [0], []),
    ("step", "schedule_to_start_timeout"): (
        "hang", {"queue": "nobody serves it"}, 5 * SECOND, "result", None, ["TimeoutError"],
    ),
    ("effect", "name"): ("work", {"idempotent": True}, "other", "names", {"body"}, {"other"}),
    ("effect", "idempotent"): ("lose", TIMEOUT, True, "began", [0], [0, 1, 3, 7, 15]),
    ("effect", "probe"): ("lose", TIMEOUT, find, "probes", 0, 2),
    ("effect", "retry"): (
        "lose", {"idempotent": True}, TWICE, "began", [0, 1, 3, 7, 15], [0, 1],
    ),
    ("effect", "start_to_close_timeout"): (
        "hang", {"idempotent": True}, 5 * SECOND, "began", [0], [0, 6, 13],
    ),
    ("effect", "settle"): ("lose", TIMEOUT, 9 * SECOND, "doubt", [7], [14]),
    ("effect", "raises"): (
        "fail", {"idempotent": True, "retry": TWICE}, (OddError,), "result",
        ["StepFailedError"], ["OddError"],
    ),
    ("effect", "not_applied"): ("lose", TIMEOUT, (ConnectionError,), "doubt", [7], []),
    ("effect", "repeats"): (
        "work", {"idempotent": True}, True, "result", ["5", "RepeatedEffectError", "5"],
        ["5", "5", "5"],
    ),
    ("effect", "key_on"): (
        "work", {"idempotent": True}, ("amount",), "result", ["5", "RepeatedEffectError", "5"],
        ["5", "RepeatedEffectError", "RepeatedEffectError"],
    ),
    ("effect", "version"): ("work", {"idempotent": True}, "2", "actions", None, None),
    ("effect", "schedule_to_close_timeout"): (
        "lose", PROBED, 12 * SECOND, "result", None, ["TimeoutError"],
    ),
    ("effect", "heartbeat_timeout"): (
        "hang", {"idempotent": True}, 5 * SECOND, "began", [0], [0, 6, 13],
    ),
    ("effect", "compensate"): ("work", {"idempotent": True, **TIMEOUT}, take_back, "undo", ["", ""], ["take_back", "take_back"]),
    ("effect", "probe_retry"): ("lose", {"probe": cannot_say, **TIMEOUT}, TWICE, "doubt", [15], [8]),
    ("effect", "probe_timeout"): (
        "lose", {"probe": never_says, "probe_retry": TWICE, **TIMEOUT}, SECOND, "doubt", [18], [10],
    ),
    ("effect", "same_as"): (
        "work", {"idempotent": True}, outlast.SameAs("amount"), "result", ["5", "RepeatedEffectError", "5"],
        ["5", "RepeatedEffectError", "SamePurposeError"],
    ),
    ("effect", "approval"): (
        "work", {"idempotent": True}, outlast.Approval("boss", expires_in=3 * SECOND), "result",
        ["5", "RepeatedEffectError", "5"], ["ApprovalExpiredError"] * 3,
    ),
    ("effect", "tool"): (
        "work", {"idempotent": True}, ForeignTool("files", "save", {"name": "save"}), "result",
        ["5", "RepeatedEffectError", "5"], None,
    ),
    # The attempt after the one at 3 s could act until after the receiver has forgotten the key; in doubt when that one cannot.
    ("effect", "idempotent_for"): (
        "lose", {"idempotent": True, **TIMEOUT}, 12 * SECOND, "doubt", [], [10],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "option"), OPTIONS, ids=[" ".join(one) for one in OPTIONS])
def test_case_125_each_option_changes_what_can_be_observed(kind: str, option: str) -> None:
    """In twenty seconds of a run: when attempts begin, what the workflow gets, which calls are one, what an approval binds to."""
    does, others, value, part, without, with_it = OPTIONS[kind, option]
    plain = observe(kind, does, others, 20)[part]
    receiver.forget()
    changed = observe(kind, does, {**others, option: value}, 20)[part]
    if option == "version":
        assert plain
        assert not set(plain) & set(changed)
        return
    assert plain == without
    assert changed == with_it


def test_case_125_no_option_is_missing_from_the_table() -> None:
    """Whoever adds one shows what it changes."""
    declared = {
        (kind, name)
        for kind, decorator in (("step", outlast.step), ("effect", outlast.effect))
        for name in inspect.signature(decorator).parameters
        if name != "function"
    }
    assert declared == OPTIONS.keys()


# 127: beats, callbacks and locks


def test_case_127_twenty_threads_beat_while_the_listener_takes_their_lock() -> None:
    """No lock of ours is held while anybody else's code runs, so that there is none to wait for each other with."""
    lock = threading.Lock()
    heard: list[bytes] = []

    def hear() -> None:
        with lock:
            heard.append(beats.latest)

    beats = Beats(time.monotonic, heard=hear)
    together = threading.Barrier(21)

    def body(number: int) -> None:
        together.wait(30)
        for count in range(200):
            beats.beat(b"%d" % (number * 1000 + count))

    threads = [threading.Thread(target=body, args=(number,)) for number in range(20)]
    for one in threads:
        one.start()
    together.wait(30)
    for _ in range(200):
        with lock:
            heard.reverse()
    for one in threads:
        one.join(30)
    assert not any(one.is_alive() for one in threads)
    assert len(heard) == 20 * 200


def test_case_127_twenty_threads_of_one_body_beat_under_a_lock_of_their_own() -> None:
    """An author's own code runs while details are encoded; it may take whatever the caller of heartbeat() holds elsewhere."""
    lock = threading.RLock()

    class Guarded(dict[str, int]):
        """Details that take a lock whenever they are read."""

        def items(self) -> Any:
            with lock:
                return super().items()

    def help_out(number: int) -> None:
        for count in range(50):
            with lock:
                outlast.heartbeat(dict(Guarded(number=number, count=count)))

    @outlast.step(heartbeat_timeout=timedelta(seconds=30))
    def body() -> int:
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(help_out, number))
            for number in range(20)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
        return sum(one.is_alive() for one in threads)

    async def scenario(executor: Executor) -> Any:
        carried: list[bytes] = []

        async def carry(details: bytes) -> None:
            with lock:
                carried.append(details)

        attempt = Attempt("default", "r", "r:1", "body", 1)
        loop = asyncio.get_running_loop()
        pulse = Pulse(carry, timedelta(seconds=0.001), loop.time, b"")
        ending = await executor.attempt(body, b"{}", attempt, beats=pulse.beats)
        pulse.close()
        assert carried
        return ending

    assert asyncio.run(scenario(Executor(SystemThreads()))) == Returned(b"0")


# 139: whoever blocks the loop is named


class _Named(logging.Handler):
    """Opens the gate when a step is named."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one record."""
        if "keeps the event loop from turning" in record.getMessage():
            self.gate.set()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that opens when a step is named in the log."""
    found = threading.Event()
    handler = _Named(found)
    logging.getLogger("outlast.worker").addHandler(handler)
    yield found
    logging.getLogger("outlast.worker").removeHandler(handler)


gates: list[threading.Event] = []


def wait_at_the_gate() -> bool:
    return gates[-1].wait(30)


@outlast.step
async def blocking(how: str) -> bool:
    if how == "in a task of its own":

        async def child() -> bool:
            return wait_at_the_gate()

        return await asyncio.create_task(child())
    return wait_at_the_gate()


@outlast.step
async def innocent() -> bool:
    await asyncio.sleep(0)
    return True


@outlast.workflow
async def use_blocking(how: str) -> bool:
    return all(await asyncio.gather(innocent(), blocking(how), innocent()))


@pytest.mark.parametrize("how", ["itself", "in a task of its own"])
def test_case_139_the_step_that_blocks_the_loop_is_named(
    how: str, file_url: str, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """While it blocks: run, step, operation, file and line of its own code, and what it has called."""
    if how != "itself" and not hasattr(asyncio.Task, "get_context"):
        pytest.skip("before Python 3.12 nobody can tell whose task it is")
    gates.append(gate)

    async def main() -> bool:
        async with LocalApp(file_url, [blocking, innocent, use_blocking]) as app:
            return await app.run(use_blocking(how), id="run-9")

    assert asyncio.run(main()) is True
    (said,) = [one.getMessage() for one in caplog.records if "from turning" in one.getMessage()]
    lines, first = inspect.getsourcelines(wait_at_the_gate)
    assert said.startswith("run run-9: blocking (r:2) keeps the event loop from turning")
    assert f"it stands at {__file__}:{first + len(lines) - 1} (wait_at_the_gate)" in said
    assert "threading.py" in said
    assert "plain `def`" in said


class _Thread:
    """A thread whose ticks are made by hand."""

    def __init__(self) -> None:
        self.ticks: list[Callable[[], None]] = []
        self.stopped = 0

    def every(self, seconds: float, tick: Callable[[], None], *, name: str) -> Callable[[], None]:
        """Keep the tick."""
        self.ticks.append(tick)

        def stop() -> None:
            self.stopped += 1

        return stop


def test_case_139_nobody_is_named_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Not while the loop turns, not a second time, not for code that is no step's; and nothing ticks when there is no body."""
    thread = _Thread()
    watch = LoopWatch(thread)  # type: ignore[arg-type]

    def named(ticks: int) -> list[str]:
        caplog.clear()
        for _ in range(ticks):
            thread.ticks[-1]()
        return [one.getMessage().split()[2] for one in caplog.records]

    async def body(*, turns: bool) -> list[str]:
        if not turns:
            return named(9)
        said: list[str] = []
        for _ in range(20):
            said += named(1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return said

    async def watched(name: str, *, turns: bool) -> list[str]:
        task = asyncio.create_task(body(turns=turns))
        watch.begins(task, Attempt("default", "r", "r:1", name, 1), body)
        try:
            return await task
        finally:
            watch.ends(task)

    async def main() -> None:
        assert thread.ticks == []
        assert await watched("busy", turns=True) == []
        assert await watched("busy", turns=False) == ["busy"]
        assert await watched("busy", turns=False) == []
        assert await watched("other", turns=False) == ["other"]
        assert named(9) == []
        for _ in range(60):
            named(1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert (len(thread.ticks), thread.stopped) == (1, 1)
        await watched("again", turns=True)
        assert len(thread.ticks) == 2
        watch.end()

    asyncio.run(main())
