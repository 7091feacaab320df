"""Laws of sagas: whatever a workflow is made of, what an aborted saga did is undone once, newest first, and nothing else is."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from searching import examples

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import OutlastError
from outlast.journal.entry import (
    Cancelled,
    CancelRequested,
    Completed,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Failed,
    RunTimedOut,
    SagaAborted,
    SagaEnded,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
)
from outlast.journal.failure import capture
from outlast.replay.command import (
    Abandon,
    Finish,
    IntendEffect,
    NoteSaga,
    RunStep,
    SettleEffect,
    StartTimer,
)
from outlast.replay.machine import Machine
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step

Shape = tuple[Any, ...]
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
MOST_COMMITS = 400
quick = examples()


# What shapes call. Built without decorators, so that no app of another test finds them.


async def work() -> int:
    return 0


async def undo_it(name: str) -> str:
    return ""


async def take_back(result: str) -> str:
    return ""


async def do_it(name: str) -> str:
    return name


SOON = AttemptOptions(RetryPolicy(), start_to_close_timeout=timedelta(seconds=9))
UNDO = Effect(undo_it, "undo", SOON, EffectOptions(idempotent=True))
TAKE_BACK = Effect(take_back, "take back", SOON, EffectOptions(idempotent=True))
DO = Effect(do_it, "do", SOON, EffectOptions(idempotent=True, compensate=UNDO))
GET = Effect(do_it, "get", SOON, EffectOptions(idempotent=True, compensate=TAKE_BACK))
TELL = Effect(do_it, "tell", SOON, EffectOptions(idempotent=True))
WORK, BROKEN = Step(work, "work", AttemptOptions()), Step(work, "broken", AttemptOptions())
EFFECTS = {"do": DO, "get": GET, "tell": TELL}
THRICE = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3)

Around = tuple[int, ...]
_around: ContextVar[Around] = ContextVar("around", default=())


class Interpreter:
    """Runs a shape as workflow code, and notes which sagas were around each call, and how each of them ended."""

    def __init__(self) -> None:
        self.left: dict[int, str] = {}
        """How the block of each saga ended."""
        self.trace: list[Any] = []
        self.strays: list[asyncio.Task[Any]] = []

    async def whole(self, shape: Shape) -> None:
        self.left.clear()
        await self.run(shape, "0")

    async def run(self, shape: Shape, path: str) -> None:
        kind, *parts = shape
        self.trace.append((kind, path))
        try:
            await getattr(self, f"do_{kind}")(path, *parts)
        except BaseException as error:
            self.trace.append((kind, path, type(error).__name__))
            raise

    async def do_effect(self, path: str, name: str, label: int) -> None:
        """Call an effect; its argument tells the sagas around it that its block is still in."""
        around = [one for one in _around.get() if one not in self.left]
        # Equal arguments in one place of two tries only, so that every call can be told from every other.
        await EFFECTS[name](f"{path}/{label}/{json.dumps(around)}")

    async def do_work(self, path: str) -> None:
        await WORK()

    async def do_broken(self, path: str) -> None:
        await BROKEN()

    async def do_fall(self, path: str) -> None:
        raise RuntimeError("it fell")

    async def do_nap(self, path: str, seconds: int) -> None:
        await outlast.sleep(seconds)

    async def do_seq(self, path: str, *shapes: Shape) -> None:
        for number, shape in enumerate(shapes):
            await self.run(shape, f"{path}.{number}")

    async def do_gather(self, path: str, keep: bool, *shapes: Shape) -> None:
        runs = [self.run(shape, f"{path}.{number}") for number, shape in enumerate(shapes)]
        await asyncio.gather(*runs, return_exceptions=keep)

    async def do_group(self, path: str, *shapes: Shape) -> None:
        async with asyncio.TaskGroup() as group:
            for number, shape in enumerate(shapes):
                group.create_task(self.run(shape, f"{path}.{number}"))

    async def do_saga(self, path: str, shape: Shape) -> None:
        number = len(self.trace)
        token = _around.set((*_around.get(), number))
        try:
            async with outlast.saga():
                try:
                    await self.run(shape, f"{path}.0")
                except BaseException:
                    self.left[number] = "raised"
                    raise
                self.left[number] = "returned"
        finally:
            with suppress(ValueError):
                _around.reset(token)

    async def do_again(self, path: str, shape: Shape) -> None:
        async for part in outlast.save_point(THRICE):
            number = len(self.trace)
            token = _around.set((*_around.get(), number))
            try:
                async with part:
                    try:
                        await self.run(shape, f"{path}.{part.number}")
                    except BaseException:
                        self.left[number] = "raised"
                        raise
                    self.left[number] = "returned"
            finally:
                with suppress(ValueError):
                    _around.reset(token)

    async def do_catch(self, path: str, shape: Shape) -> None:
        with suppress(Exception):
            await self.run(shape, f"{path}.0")

    async def do_swallow(self, path: str, shape: Shape) -> None:
        with suppress(BaseException):
            await self.run(shape, f"{path}.0")

    async def do_limit(self, path: str, seconds: int, shape: Shape) -> None:
        async with asyncio.timeout(seconds):
            await self.run(shape, f"{path}.0")

    async def do_stray(self, path: str, shape: Shape) -> None:
        task = asyncio.create_task(self.run(shape, f"{path}.0"))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.strays.append(task)


class Shaped:
    """The workflow of a shape, as the machine sees it."""

    name = "shaped"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.interpreter = Interpreter()

    def start(self, arguments: bytes) -> Any:
        self.interpreter = Interpreter()
        return self.interpreter.whole(self.shape)

    def encode(self, value: Any) -> bytes:
        return b"null"


# A driver: what a worker and a receiver do, without one


class Live:
    """A run whose commands are answered in a random order, and whose receiver keeps books.

    `evicting` takes it out of memory after every commit; `cut_short` lets it be cancelled, or run out of time.
    """

    def __init__(self, shape: Shape, seed: int, *, evicting: bool = False) -> None:
        self.random = random.Random(seed)
        self.shape, self.evicting = shape, evicting
        self.program = Shaped(shape)
        self.machine = self.fresh()
        self.journal: list[tuple[list[Any], datetime]] = []
        self.outstanding: dict[str, Any] = {}
        self.notes: list[NoteSaga] = []
        self.now = EPOCH
        self.finish: Any = None
        self.happened: Counter[str] = Counter()
        """How often each call changed the world, by its operation."""
        self.commit([Started("shaped", Raw(b"{}"), b"0123456789abcdef", "run-1")])
        self.commit([Taken("3.11", "0")])

    def fresh(self) -> Machine:
        return Machine(self.program, tenant="default", run_id="run-1")

    def commit(self, *turns: list[Any]) -> None:
        marks = [[one.entry for one in self.notes]] if self.notes else []
        self.notes = []
        for turn in [*marks, *turns]:
            self.journal.append((turn, self.now))
            self.machine.deliver(turn, self.now)
        self.note()
        if self.evicting:
            agenda, reached = self.machine._agenda, []
            agenda.open = agenda.abandon = agenda.command = lambda *what: reached.append(what)
            self.machine.evict()
            assert reached == []
            assert self.machine.pinned == 0
            self.program = Shaped(self.shape)
            self.machine = self.fresh()
            for turn, at in self.journal:
                self.machine.deliver(turn, at)
            known = self.outstanding, self.notes
            self.outstanding, self.notes = {}, []
            self.note()
            assert self.notes == known[1]
            # In the order in which they were given, which is the driver's.
            doubtful = self.machine.in_doubt
            assert {*self.outstanding, *doubtful} == {*known[0], *doubtful}
            self.outstanding, self.notes = known

    def note(self) -> None:
        for command in self.machine.take_commands():
            match command:
                case Finish():
                    self.finish = command
                case NoteSaga():
                    self.notes.append(command)
                case Abandon(operation):
                    self.outstanding.pop(operation, None)
                case _:
                    self.outstanding[command.operation] = command
        for operation in list(self.outstanding):
            if not self.machine.is_open(operation):
                del self.outstanding[operation]

    def run(self) -> Live:
        for _ in range(MOST_COMMITS):
            if self.finish is not None:
                self.commit([self.finish.outcome])
                return self
            self.now += timedelta(seconds=self.random.choice([0, 0, 1]))
            self.commit(*self.turns())
        raise AssertionError(f"the run does not end: {list(self.outstanding)}")

    def turns(self) -> list[list[Any]]:
        ready = [one for one in self.outstanding.values() if not isinstance(one, StartTimer)]
        self.random.shuffle(ready)
        entries = [self.answer(one) for one in ready[: self.random.choice([1, 1, 2, 3])]]
        entries.sort(key=lambda one: not isinstance(one, EffectIntended))
        turns = [[entry] for entry in entries]
        timers = [one for one in self.outstanding.values() if isinstance(one, StartTimer)]
        if timers and (not entries or self.random.random() < 0.3):
            timers.sort(key=lambda one: one.due)
            self.now = max(self.now, timers[0].due)
            turns += [[TimerFired(one.operation)] for one in timers if one.due <= self.now]
        if self.random.random() < 0.02:
            turns.append([self.random.choice([CancelRequested(), RunTimedOut()])])
        return turns

    def answer(self, command: Any) -> Any:
        chance = self.random.random()
        match command:
            case RunStep(operation, "broken"):
                return StepFailed(operation, "broken", capture(ValueError("broken")))
            case RunStep(operation, name):
                return StepCompleted(operation, name, Raw(b"0"))
            case IntendEffect(operation, name):
                if chance < 0.1 and not command.compensates:
                    return EffectRefused(operation, name, capture(OutlastError("refused")))
                raw = Raw(command.arguments)
                key = f"{name} {command.arguments.decode()} #{command.number}"
                return EffectIntended(
                    *(operation, name, key, raw, raw, command.action_sha256, command.number),
                    compensation=command.compensation,
                    needs_result=command.needs_result,
                    saga=command.saga,
                    compensates=command.compensates,
                )
            case SettleEffect(operation):
                undoes = bool(command.intent.compensates)
                if operation in self.machine.in_doubt:
                    return self.said(command, chance, undoes=undoes)
                return self.attempted(command, chance, undoes=undoes)
            case _:
                raise AssertionError(command)

    def attempted(self, command: SettleEffect, chance: float, *, undoes: bool) -> Any:
        """Return what comes of the attempts at an effect."""
        operation, name, intent = command.operation, command.name, command.intent
        error = capture(ValueError("no"))
        if chance < 0.2:
            self.happened[operation] += chance < 0.1
            return EffectInDoubt(operation, name, "lost")
        if chance < 0.35 and undoes:
            return EffectInDoubt(operation, name, "given up", failure=error)
        if chance < 0.3 and not undoes:
            return EffectFailed(operation, name, error)
        if chance < 0.35 and not intent.needs_result:
            self.happened[operation] += chance < 0.32
            return EffectFailed(operation, name, error, unknown=True)
        self.happened[operation] += 1
        return EffectCompleted(operation, name, self.value(command))

    def said(self, command: SettleEffect, chance: float, *, undoes: bool) -> Any:
        """Return what an operator says of a doubt, and tells no lie."""
        operation, name, intent = command.operation, command.name, command.intent
        if chance < 0.25 and intent.compensation:
            return EffectCompensating(operation, name, self.value(command), "ann")
        if self.happened[operation]:
            return EffectCompleted(operation, name, self.value(command))
        if chance < 0.5:
            error = capture(ValueError("left" if undoes else "no"))
            return EffectFailed(operation, name, error, "operator", "ann")
        return EffectCleared(operation, name)

    def value(self, command: SettleEffect) -> Raw:
        return Raw(json.dumps(f"result of {command.operation}").encode())

    # What the laws look at

    @property
    def entries(self) -> list[Any]:
        return [entry for turn, _ in self.journal for entry in turn]

    @property
    def intents(self) -> dict[str, EffectIntended]:
        return {one.operation: one for one in self.entries if isinstance(one, EffectIntended)}

    @property
    def ends(self) -> dict[str, Any]:
        kinds = EffectCompleted | EffectFailed | EffectCompensating
        return {one.operation: one for one in self.entries if isinstance(one, kinds)}

    @property
    def undoings(self) -> list[EffectIntended]:
        return [one for one in self.intents.values() if one.compensates]


def live(shape: Shape, seed: int, *, evicting: bool = False) -> Live:
    return Live(shape, seed, evicting=evicting).run()


# Shapes

few = st.integers(1, 3)
effects = st.tuples(st.just("effect"), st.sampled_from(["do", "do", "get", "tell"]), few)
leaves = st.one_of(
    effects,
    effects,
    st.sampled_from([("work",), ("broken",), ("fall",)]),
    st.tuples(st.just("nap"), few),
)
ending = st.sampled_from([("fall",), ("broken",), ("work",)])
"""Of most sagas a failure: what is undone is what these laws are about."""


def grow(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    several = st.lists(inner, min_size=2, max_size=4)
    return st.one_of(
        several.map(lambda parts: ("seq", *parts)),
        st.builds(lambda parts, end: ("saga", ("seq", *parts, end)), several, ending),
        st.tuples(st.booleans(), several).map(lambda both: ("gather", both[0], *both[1])),
        several.map(lambda parts: ("group", *parts)),
        st.tuples(st.sampled_from(["saga", "saga", "again", "catch", "swallow", "stray"]), inner),
        st.tuples(st.just("limit"), few, inner),
    )


parts = st.recursive(leaves, grow, max_leaves=10)
shapes = st.builds(
    lambda inner, end: ("saga", ("seq", *inner, end)),
    st.lists(parts, min_size=1, max_size=4),
    ending,
)
wholes = shapes | st.lists(shapes, min_size=2, max_size=3).map(lambda some: ("gather", True, *some))
seeds = st.integers(0, 2**32)


def test_a_search_meets_every_kind_of_end() -> None:
    """What the laws speak of happens often, or they would say nothing."""
    met: Counter[str] = Counter()

    @examples(2)
    @given(wholes, seeds)
    def search(shape: Shape, seed: int) -> None:
        run = live(shape, seed)
        outcome = run.machine.outcome
        met[getattr(outcome, "compensation", "") or type(outcome).__name__] += 1
        met["nested"] += sum(isinstance(one, SagaAborted) for one in run.entries) > 1
        met["kept"] += any(getattr(one, "outcome", "") == "kept" for one in run.entries)
        met["by an operator"] += any(isinstance(one, EffectCompensating) for one in run.entries)

    search()
    assert set(met) >= {
        *("compensated", "partly compensated", "Completed", "Failed"),
        *("nested", "kept", "by an operator"),
    }
    assert min(met.values()) >= 1, met


# Laws


@quick
@given(wholes, seeds)
@example(
    ("seq", ("catch", ("saga", ("gather", False, ("effect", "do", 1), ("fall",)))), ("nap", 3)), 1
)
def test_what_an_aborted_saga_did_is_undone_once_and_nothing_else_is(shape, seed):
    """By what the receiver and the code say: which sagas were around each call, and which of them raised."""
    run = live(shape, seed)
    left, ends = run.program.interpreter.left, run.ends
    undoings = Counter(one.compensates for one in run.undoings)
    assert set(undoings.values()) <= {1}
    for operation, intent in run.intents.items():
        if intent.compensates:
            continue
        name: str = json.loads(bytes(intent.effective))["name"]
        around: list[int] = json.loads(name.rpartition("/")[2])
        end = ends[operation]
        may_have_happened = isinstance(end, EffectCompleted) or getattr(end, "unknown", False)
        by_operator = isinstance(end, EffectCompensating)
        aborted = any(left.get(one) == "raised" for one in around)
        meant = by_operator or (aborted and may_have_happened and bool(intent.compensation))
        assert undoings[operation] == meant, (operation, around, left)


@quick
@given(wholes, seeds)
def test_what_is_undone_is_undone_newest_first_when_all_is_known(shape, seed):
    """In the order of the intents, backwards; and not before everything in the saga has an end."""
    run = live(shape, seed)
    places = {
        one.operation: at for at, one in enumerate(run.entries) if isinstance(one, EffectIntended)
    }
    settled = {
        one.operation: at
        for at, one in enumerate(run.entries)
        if isinstance(one, EffectCompleted | EffectFailed | EffectCompensating)
    }
    by_saga: dict[str, list[EffectIntended]] = {}
    for one in run.undoings:
        path = one.operation.rpartition(":")[0]
        if path.endswith("u"):
            by_saga.setdefault(path, []).append(one)
    for ones in by_saga.values():
        undone = [places[one.compensates] for one in ones]
        assert undone == sorted(undone, reverse=True)
        # One at a time: each has its end before the next one begins.
        for one, other in zip(ones, ones[1:], strict=False):
            assert settled[one.operation] < places[other.operation]
        for one in ones:
            assert settled[one.compensates] < places[ones[0].operation]


@quick
@given(wholes, seeds)
def test_a_compensation_is_given_what_it_undoes(shape, seed):
    """The arguments, or the result, of the very call that it undoes."""
    run = live(shape, seed)
    for one in run.undoings:
        undone = run.intents[one.compensates]
        given = json.loads(bytes(one.effective))
        assert one.name == undone.compensation
        if undone.needs_result:
            assert given == {"result": f"result of {undone.operation}"}
        else:
            assert given == {"name": json.loads(bytes(undone.effective))["name"]}


@quick
@given(wholes, seeds)
def test_every_key_has_one_purpose(shape, seed):
    """A call that was undone, and the one that undoes it, never lend their keys to another call."""
    run = live(shape, seed)
    users: dict[str, list[str]] = {}
    for one in run.intents.values():
        users.setdefault(one.key, []).append(one.operation)
    for operations in users.values():
        # Only one that is known, or may be, not to have happened has given its key on.
        for operation in operations[:-1]:
            end = run.ends[operation]
            assert isinstance(end, EffectFailed), (operation, operations)
            assert not run.intents[operation].compensates
            undone = {one.compensates for one in run.undoings}
            assert not (end.unknown and operation in undone)


@quick
@given(wholes, seeds)
def test_the_end_of_a_run_says_what_was_undone(shape, seed):
    """`compensated` when all that was to be undone was; `partly compensated` when an operator has left some of it."""
    run = live(shape, seed)
    outcome = run.machine.outcome
    ends = run.ends
    undone = [isinstance(ends[one.operation], EffectCompleted) for one in run.undoings]
    expected = "" if not undone else "compensated" if all(undone) else "partly compensated"
    if isinstance(outcome, Failed | Cancelled):
        assert outcome.compensation == expected
    else:
        assert isinstance(outcome, Completed)


@quick
@given(wholes, seeds)
def test_what_is_recorded_of_sagas_adds_up(shape, seed):
    """An aborted one comes to its end, once; what a compensation undoes was aborted, or spoken for by an operator."""
    run = live(shape, seed)
    aborted = Counter(one.operation for one in run.entries if isinstance(one, SagaAborted))
    ended = Counter(one.operation for one in run.entries if isinstance(one, SagaEnded))
    assert max([*aborted.values(), *ended.values(), 1]) == 1
    assert set(aborted) <= set(ended)
    places = {
        (type(one), one.operation): at
        for at, one in enumerate(run.entries)
        if isinstance(one, SagaAborted | SagaEnded | EffectIntended)
    }
    for operation in aborted:
        first, last = places[SagaAborted, operation], places[SagaEnded, operation]
        inside = [
            places[EffectIntended, one.operation]
            for one in run.undoings
            if one.operation.startswith(f"{operation}u:")
        ]
        assert all(first < one < last for one in inside)


@quick
@given(wholes, seeds)
def test_eviction_after_every_commit_changes_nothing(shape, seed):
    """Also in the middle of an undoing: the same journal, the same end, and no compensation because a run leaves memory."""
    usual, parked = live(shape, seed), live(shape, seed, evicting=True)
    assert _plain(parked.entries) == _plain(usual.entries)


def _plain(entries: list[Any]) -> list[Any]:
    """Return entries without the stacks of their failures, which name the frames of whoever ran the code."""
    return [
        (type(one), one.failure.type, one.failure.message)
        if getattr(one, "failure", None) is not None
        else one
        for one in entries
    ]


@pytest.mark.parametrize("seed", range(8))
def test_a_replay_of_any_prefix_stands_where_the_run_stood(seed: int) -> None:
    """It waits for the same, and has the same to note."""
    inner = ("saga", ("gather", False, ("effect", "do", 1), ("seq", ("nap", 1), ("broken",))))
    run = live(("saga", ("seq", ("effect", "get", 1), ("catch", inner), inner)), seed)
    for length in range(2, len(run.journal)):
        machine = Machine(Shaped(run.shape), tenant="default", run_id="run-1")
        for turn, at in run.journal[:length]:
            machine.deliver(turn, at)
        once = [type(one) for one in machine.take_commands()]
        assert once.count(Finish) <= 1
        assert machine.take_commands() == []
        machine.evict()
