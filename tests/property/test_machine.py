"""Laws of the replay machine: a live run, its replay from any prefix and its resumption after eviction are one computation."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from searching import examples

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import NonDeterminismError, OutlastError
from outlast.journal.asking import Edited, Rung, Terms
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    CancelRequested,
    Completed,
    Cover,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Forked,
    LeftOut,
    MessageReceived,
    PauseRequested,
    Published,
    ResumeRequested,
    RunName,
    RunTimedOut,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
)
from outlast.journal.failure import capture
from outlast.journal.prefix import kept
from outlast.replay.command import (
    Abandon,
    AwaitDecision,
    Finish,
    IntendEffect,
    PublishValue,
    RequestApproval,
    RunStep,
    SettleEffect,
    StartTimer,
)
from outlast.replay.machine import Machine
from outlast.replay.operation import EffectOperation
from outlast.replay.stand import stand_of
from outlast.worker.request import recorded
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step

Shape = tuple[Any, ...]
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
MOST_TURNS = 80
SEEN = outlast.Query("seen", None, str)
SIGNALS = {name: outlast.Signal(name, int) for name in ("a", "b")}

quick = examples(1.2)


# The functions that shapes call. Built without decorators, so that no app of another test finds them.


async def work(n: int) -> int:
    return n


async def pay(n: int) -> int:
    return n


async def pay_more(n: int, note: str = "") -> int:
    return n


def step(name: str) -> Step[..., Any]:
    return Step(work, name, AttemptOptions())


def effect(name: str, function: Any = pay, *, repeats: bool = False) -> Effect[..., Any]:
    rules = EffectOptions(idempotent=True, repeats=repeats)
    return Effect(function, name, AttemptOptions(RetryPolicy()), rules)


KIT: dict[str, Any] = {
    "step": step("work"),
    "broken": step("broken"),
    "pay": effect("pay"),
    "tick": effect("tick", repeats=True),
    "guarded": effect("guarded", repeats=True),
    "asked": effect("asked", repeats=True),
}
HOUR = timedelta(hours=1)
TERMS = Terms("boss", HOUR, edits="yes", quorum=2, escalate=(Rung("chief", HOUR),))


# A workflow that does what a shape says


class Interpreter:
    """Runs a shape as workflow code, and notes what it saw."""

    def __init__(self, kit: dict[str, Any]):
        self.kit = kit
        self.trace: list[Any] = []
        self.results: list[int] = []
        self.received: list[tuple[str, int]] = []
        self.progress = 0
        self.lock = asyncio.Lock()

    async def whole(self, shape: Shape) -> Any:
        outlast.on_query(SEEN, lambda _: json.dumps(self.trace, default=str))
        return await self.run(shape)

    async def run(self, shape: Shape) -> Any:
        kind, *parts = shape
        self.trace.append(kind)
        try:
            value = await getattr(self, f"do_{kind}")(*parts)
        except BaseException as error:
            self.trace.append((kind, type(error).__name__))
            raise
        self.progress += 1
        self.trace.append((kind, value))
        return value

    async def leaf(self, name: str, n: int) -> Any:
        value = await self.kit[name](n)
        self.results.append(value)
        return value

    async def do_step(self, n):
        return await self.leaf("step", n)

    async def do_broken(self, n):
        return await self.leaf("broken", n)

    async def do_pay(self, n):
        return await self.leaf("pay", n)

    async def do_tick(self, n):
        return await self.leaf("tick", n)

    async def do_guarded(self, n):
        return await self.leaf("guarded", n)

    async def do_asked(self, n):
        return await self.leaf("asked", n)

    async def do_consult(self, n):
        call = self.kit["guarded"](n)
        grant = await outlast.approval(
            {"n": n},
            covers=[call],
            role="boss",
            expires_in=HOUR,
            quorum=2,
            edits="second",
            escalate=[Rung("chief", HOUR)],
        )
        await grant.edited(call)
        return [len(grant.votes), len(grant.edits)]

    async def do_publish(self, n):
        outlast.publish("ab"[n % 2], n)

    async def do_sleep(self, seconds):
        await outlast.sleep(seconds)

    async def do_now(self):
        return outlast.now().isoformat()

    async def do_random(self):
        return [outlast.random().random(), str(outlast.uuid4())]

    async def do_name(self):
        return [outlast.info().run_id, outlast.info().generation]

    async def do_receive(self, name, seconds):
        timeout = None if seconds is None else timedelta(seconds=seconds)
        value = await outlast.receive(SIGNALS[name], timeout=timeout)
        self.received.append((name, value))
        return value

    async def do_condition(self, more, seconds):
        goal = self.progress + more
        timeout = timedelta(seconds=seconds)
        await outlast.wait_condition(lambda: self.progress >= goal, timeout=timeout)

    async def do_clock(self, seconds):
        due = outlast.now() + timedelta(seconds=seconds)
        await outlast.wait_condition(lambda: outlast.now() >= due, timeout=timedelta(seconds=99))

    async def do_approve(self, n, pattern):
        guarded = self.kit["guarded"]
        cover = guarded.where(n=n) if pattern else guarded(n)
        grant = await outlast.approval(
            {"n": n}, covers=[cover], role="boss", expires_in=timedelta(hours=1)
        )
        return grant.by

    async def do_seq(self, *shapes):
        return [await self.run(shape) for shape in shapes]

    async def do_gather(self, keep, *shapes):
        values = await asyncio.gather(*map(self.run, shapes), return_exceptions=keep)
        return [
            type(value).__name__ if isinstance(value, BaseException) else value for value in values
        ]

    async def do_group(self, *shapes):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.run(shape)) for shape in shapes]
        return [task.result() for task in tasks]

    async def do_calls(self, *numbers):
        return await asyncio.gather(*(self.kit["step"](n) for n in numbers))

    async def do_timeout(self, seconds, shape):
        async with asyncio.timeout(seconds):
            return await self.run(shape)

    async def do_wait_for(self, seconds, shape):
        return await asyncio.wait_for(self.run(shape), seconds)

    async def do_catch(self, shape):
        with suppress(Exception):
            return await self.run(shape)

    async def do_swallow(self, shape):
        with suppress(BaseException):
            return await self.run(shape)

    async def do_try(self, shape, cleanup):
        try:
            return await self.run(shape)
        finally:
            await self.run(cleanup)

    async def do_with(self, shape, cleanup):
        @asynccontextmanager
        async def resource():
            try:
                yield
            finally:
                await self.run(cleanup)

        async with resource():
            return await self.run(shape)

    async def do_stream(self, shape, cleanup):
        async def items():
            try:
                for _ in range(2):
                    yield await self.run(shape)
            finally:
                await self.run(cleanup)

        return [item async for item in items()]

    async def do_loop(self, count, shape):
        for _ in range(count):
            await self.run(shape)

    async def do_spawn(self, shape):
        asyncio.create_task(self.run(shape)).add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )

    async def do_cancelled(self, shape, seconds):
        task = asyncio.create_task(self.run(shape))
        await outlast.sleep(seconds)
        task.cancel()
        with suppress(asyncio.CancelledError):
            return await task

    async def do_lock(self, shape):
        async with self.lock:
            return await self.run(shape)


class Shaped:
    """The workflow of a shape, as the machine sees it."""

    name = "shaped"

    def __init__(self, shape: Shape, kit: dict[str, Any] = KIT):
        self.shape = shape
        self.kit = kit
        self.interpreter = Interpreter(kit)

    def start(self, arguments: bytes):
        self.interpreter = Interpreter(self.kit)
        return self.interpreter.whole(self.shape)

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, default=str).encode()


# A driver: what a worker does, without one

Journal = list[tuple[list[Any], datetime]]


class Live:
    """A run that is answered in a random order; its journal grows by commits of several turns.

    `evicting` takes the run out of memory after every commit. `cut_short` lets it be cancelled and run out of time at random.
    """

    def __init__(self, shape: Shape, seed: int, *, evicting: bool = False, cut_short: bool = True):
        self.random = random.Random(seed)
        self.shape = shape
        self.evicting = evicting
        self.cut_short = cut_short
        self.program = Shaped(shape)
        self.machine = fresh(self.program)
        self.journal: Journal = []
        self.outstanding: dict[str, Any] = {}
        self.snapshots: list[tuple[int, dict[str, Any], Any]] = []
        self.now = EPOCH
        self.serial = 0
        self.finish: Any = None
        self.cancels = 0
        self.timed_out = False
        started = Started("shaped", Raw(b"{}"), b"0123456789abcdef", "run-1")
        self.commit([[started], [Taken("3.11", "0")]])

    def value(self) -> Raw:
        self.serial += 1
        return Raw(b"%d" % self.serial)

    def commit(self, turns: list[list[Any]]) -> None:
        self.now += timedelta(seconds=self.random.choice([0, 0, 1, 3]))
        for turn in turns:
            self.journal.append((turn, self.now))
            self.machine.deliver(turn, self.now)
        note(self.outstanding, self.machine, self.machine.take_commands())
        self.finish = self.outstanding.get("")
        self.snapshots.append(
            (len(self.journal), dict(self.outstanding), list(self.program.interpreter.trace))
        )
        if self.evicting:
            evict_silently(self.machine)
            self.program = Shaped(self.shape)
            self.machine = fresh(self.program)
            replay(self.machine, self.journal)
            self.machine.take_commands()

    def run(self) -> None:
        while self.finish is None and len(self.journal) < MOST_TURNS:
            turns = self.turns()
            if turns:
                self.commit(turns)
            elif self.cancels < 3:
                self.cancels += 1
                self.commit([[CancelRequested()]])
            else:
                return
        left = [one for one in self.outstanding.values() if isinstance(one, PublishValue)]
        if self.finish is not None and left:
            self.commit([[self.answer(one)] for one in left])

    def turns(self) -> list[list[Any]]:
        """Return what one commit holds: intents, outcomes, arrivals, requests, in this order."""
        ready = [one for one in self.outstanding.values() if not isinstance(one, StartTimer)]
        self.random.shuffle(ready)
        some = ready[: self.random.choice([1, 1, 2, 3])]
        answers = [self.answer(one) for one in some]
        ranked = sorted(
            [one for one in answers if one],
            key=lambda entry: (
                not isinstance(entry, EffectIntended),
                isinstance(entry, ApprovalRequested | ApprovalExpired),
            ),
        )
        intents = [[entry] for entry in ranked if isinstance(entry, EffectIntended | EffectRefused)]
        outcomes = [
            [entry] for entry in ranked if not isinstance(entry, EffectIntended | EffectRefused)
        ]
        intents.sort(key=lambda turn: isinstance(turn[0], EffectRefused))
        arrivals = self.arrivals(idle=not answers)
        return intents + outcomes + arrivals

    def arrivals(self, *, idle: bool) -> list[list[Any]]:
        arrivals: list[list[Any]] = []
        if self.random.random() < (0.8 if idle else 0.2) and self.serial < 60:
            arrivals.append([self.message() for _ in range(self.random.choice([1, 2, 3]))])
        timers = [one for one in self.outstanding.values() if isinstance(one, StartTimer)]
        if timers and (idle or self.random.random() < 0.3):
            timers.sort(key=lambda one: one.due)
            self.now = max(self.now, timers[0].due)
            arrivals += [[TimerFired(one.operation)] for one in timers if one.due <= self.now]
        if self.cut_short and self.random.random() < 0.01:
            arrivals.append([CancelRequested()])
        if self.random.random() < 0.05:
            # What the pilot obeys is nothing to the machine: it may stand anywhere.
            arrivals.append([self.random.choice([PauseRequested(), ResumeRequested()])])
        if self.cut_short and self.random.random() < 0.01 and not self.timed_out:
            self.timed_out = True
            arrivals.append([RunTimedOut()])
        return arrivals

    def message(self) -> MessageReceived:
        value = self.value()
        return MessageReceived(f"m{self.serial}", self.random.choice("ab"), value)

    def answer(self, command: Any) -> Any:  # noqa: C901
        chance = self.random.random()
        match command:
            case RunStep(operation, name):
                if name == "broken":
                    return StepFailed(operation, name, capture(ValueError("broken")))
                return StepCompleted(operation, name, self.value())
            case IntendEffect(operation, name) if name == "asked" and not command.asked:
                return self.ask(command)
            case IntendEffect(operation, name):
                if chance < 0.1:
                    return EffectRefused(operation, name, capture(OutlastError("refused")))
                raw = Raw(command.arguments)
                effective = Raw(command.effective) if command.effective else raw
                is_other = command.effective not in (b"", command.arguments)
                return EffectIntended(
                    operation, name, "key", raw, effective, command.action_sha256,
                    asked=command.asked, requested_sha256="other" if is_other else "",
                )  # fmt: skip
            case SettleEffect(operation, name):
                if self.machine.in_doubt.get(operation):
                    if chance < 0.5:
                        return EffectCleared(operation, name)
                elif chance < 0.2:
                    return EffectInDoubt(operation, name, "lost")
                if chance < 0.7:
                    return EffectCompleted(operation, name, self.value())
                return EffectFailed(operation, name, capture(ValueError("not paid")))
            case PublishValue(operation, name, value):
                return Published(operation, name, value)
            case RequestApproval():
                return recorded(command, self.now, ())
            case AwaitDecision():
                return self.decision(command, chance)
            case _:
                return None

    def ask(self, command: IntendEffect) -> ApprovalRequested:
        """Return what the gate asks for an effect."""
        found = self.machine.find(command.operation)
        assert isinstance(found, EffectOperation)
        count = found.asking.count
        asked = RequestApproval(
            command.operation,
            f"3~{command.operation}" + (f"#{count + 1}" if count else ""),
            TERMS,
            Raw(b'{"covers":[{"action_sha256":"","arguments":{}}],"subject":null}'),
            "hash",
            (Cover(command.name, command.action_sha256),),
            requested=Raw(command.arguments),
            effective=Raw(command.effective or command.arguments),
            source="declared",
        )
        return recorded(asked, self.now, ())

    def decision(self, command: AwaitDecision, chance: float) -> Any:
        operation, approval_id = command.operation, command.approval_id
        if chance < 0.2:
            return ApprovalExpired(operation, approval_id)
        found: Any = self.machine.find(operation)
        terms = found.asking.current.terms
        if chance < 0.4 and terms.quorum > 1 and not found.asking.votes:
            return ApprovalVoted(operation, approval_id, "bob", self.now)
        if chance < 0.5 and terms.edits != "no":
            self.serial += 1
            value = self.random.choice([b'{"n":%d}' % self.serial, b'{"n":"?"}', b'{"m":1}'])
            edits = (Edited(0, Raw(value)),)
            return ApprovalEdited(operation, approval_id, "eve", self.now, edits)
        return ApprovalDecided(operation, approval_id, chance < 0.8, "ann", "", "hash", self.now)


def fresh(program: Shaped, run_id: str = "run-1", generation: int = 3) -> Machine:
    return Machine(program, tenant="default", run_id=run_id, generation=generation)


def evict_silently(machine: Machine) -> None:
    """Evict, and see that no clean-up begins or gives up an operation."""
    agenda, reached = machine._agenda, []
    agenda.open = agenda.abandon = agenda.command = lambda *what: reached.append(what)
    machine.evict()
    assert reached == []
    assert machine.take_commands() == []


def replay(machine: Machine, journal: Journal) -> None:
    for turn, at in journal:
        machine.deliver(turn, at)


def note(outstanding: dict[str, Any], machine: Machine, commands: list[Any]) -> None:
    """Update what is to be done, as a worker keeps it. An effect in doubt waits for an operator, and its command stays."""
    for command in commands:
        match command:
            case Finish():
                outstanding[""] = command
            case Abandon(operation):
                outstanding.pop(operation, None)
            case _:
                outstanding[command.operation] = command
    for operation in list(outstanding):
        if operation and not machine.is_open(operation):
            del outstanding[operation]


def finished(machine: Machine) -> Any:
    """Return the outcome of a run without the stacks of its failures, which name the frames of whoever ran it."""
    outcome = machine.outcome
    if outcome is None or isinstance(outcome, Completed):
        return outcome
    return type(outcome).__name__, outcome.failure.type, outcome.failure.message


def live(shape: Shape, seed: int, *, evicting: bool = False, cut_short: bool = True) -> Live:
    run = Live(shape, seed, evicting=evicting, cut_short=cut_short)
    run.run()
    return run


# Shapes

seconds = st.integers(1, 5)
few = st.integers(1, 3)
signal = st.sampled_from(["a", "b"])

leaves = st.one_of(
    st.tuples(st.sampled_from(["step", "step", "broken", "pay", "tick", "guarded"]), few),
    st.tuples(st.sampled_from(["step", "pay", "tick", "tick", "tick"]), few),
    st.tuples(st.just("sleep"), st.integers(0, 5)),
    st.tuples(st.just("publish"), few),
    st.tuples(st.sampled_from(["now", "random", "name"])),
    st.tuples(st.just("receive"), signal, st.none() | seconds),
    st.tuples(st.just("condition"), few, seconds),
    st.tuples(st.just("clock"), seconds),
    st.tuples(st.just("approve"), few, st.booleans()),
    st.tuples(st.sampled_from(["asked", "consult"]), few),
    st.tuples(st.just("calls"), few, few),
)


def grow(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    several = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        several.map(lambda parts: ("seq", *parts)),
        st.tuples(st.booleans(), several).map(lambda both: ("gather", both[0], *both[1])),
        several.map(lambda parts: ("group", *parts)),
        st.tuples(st.sampled_from(["timeout", "wait_for"]), seconds, inner),
        st.tuples(st.sampled_from(["catch", "spawn", "lock", "swallow"]), inner),
        st.tuples(st.sampled_from(["try", "with", "stream"]), inner, inner),
        st.tuples(st.just("loop"), few, inner),
        st.tuples(st.just("cancelled"), inner, seconds),
    )


parts = st.recursive(leaves, grow, max_leaves=8)


def whole(inner: list[Shape], together: bool) -> Shape:
    """Return a workflow that outlives the failure of its parts."""
    return ("gather", True, *inner) if together else ("seq", *(("catch", one) for one in inner))


shapes = st.builds(whole, st.lists(parts, min_size=2, max_size=7), st.booleans())
seeds = st.integers(0, 2**32)


# Laws


@quick
@given(shapes, seeds)
def test_replay_of_any_prefix_is_the_live_run(shape, seed):
    """After any commit, a replay has seen the same, and waits for the same, as the live run had and did at that point."""
    run = live(shape, seed)
    for length, outstanding, trace in run.snapshots:
        program = Shaped(shape)
        machine = fresh(program)
        replay(machine, run.journal[:length])
        again: dict[str, Any] = {}
        note(again, machine, machine.take_commands())
        doubtful = machine.in_doubt
        expected = {key: one for key, one in outstanding.items() if key not in doubtful}
        assert program.interpreter.trace == trace
        assert set(again) == set(expected)
        assert {key: one for key, one in again.items() if key} == {
            key: one for key, one in expected.items() if key
        }
        machine.evict()


@quick
@given(shapes, seeds)
def test_eviction_after_every_commit_changes_nothing(shape, seed):
    """A run that leaves memory after every commit writes the same journal and comes to the same end."""
    usual, parked = live(shape, seed), live(shape, seed, evicting=True)
    assert parked.journal == usual.journal
    assert finished(parked.machine) == finished(usual.machine)
    assert (parked.finish is None) == (usual.finish is None)
    assert parked.machine.pinned == 0


@quick
@given(shapes, seeds)
def test_replay_of_everything_ends_the_same(shape, seed):
    """The whole journal, delivered at once, gives the same outcome, and the recorded end is accepted."""
    run = live(shape, seed)
    machine = fresh(Shaped(shape))
    replay(machine, run.journal)
    assert finished(machine) == finished(run.machine)
    if run.finish is not None:
        assert any(isinstance(one, Finish) for one in machine.take_commands())
        machine.deliver([run.finish.outcome], run.now)
        assert machine.closed is run.finish.outcome
        assert machine.take_commands() == []


@quick
@given(shapes, seeds)
def test_outcomes_and_messages_come_in_journal_order(shape, seed):
    """Whoever awaits an operation sees outcomes in the order of the journal; messages of a name come in their order."""
    interpreter = live(shape, seed).program.interpreter
    assert interpreter.results == sorted(interpreter.results)
    for name in "ab":
        values = [value for one, value in interpreter.received if one == name]
        assert values == sorted(values)


@quick
@given(shapes, seeds)
def test_an_operation_has_one_id_and_one_intent(shape, seed):
    """No id is given twice, no effect is intended twice, nothing is commanded after the end."""
    run = live(shape, seed)
    entries = [entry for turn, _ in run.journal for entry in turn]
    counts = Counter(
        (type(entry).__name__, getattr(entry, "approval_id", entry.operation))
        for entry in entries
        if not isinstance(
            entry,
            MessageReceived
            | Started
            | Taken
            | CancelRequested
            | PauseRequested
            | ResumeRequested
            | RunTimedOut
            | EffectInDoubt
            | EffectCleared,
        )
    )
    assert all(count == 1 for count in counts.values())
    if run.finish is not None:
        assert set(run.outstanding) == {""}


def forked(journal: Journal, length: int) -> Journal:
    """Return what a fork keeps of the first turns, with its own first entry and the one that says what it is."""
    turns = journal[:length]
    entries = kept([entry for turn, _ in turns for entry in turn])
    entries[0] = replace(entries[0], namespace="fork-1", known_as=RunName("run-1", 3))
    left = iter(entries)
    told = [([next(left) for _ in turn], at) for turn, at in turns]
    name = RunName("fork-1", 1)
    fork = Forked(name, RunName("run-1", 3), len(entries), "ann", "to see", "refuse")
    return [*told, ([fork], turns[-1][1])]


def waiting(machine: Machine) -> dict[str, Any]:
    """Return what a worker would do, as `note` keeps it."""
    found: dict[str, Any] = {}
    note(found, machine, machine.take_commands())
    return found


def anew(origin: Machine, command: Any) -> type[Any]:
    """Return what a fork asks for again, in place of what its origin waited for."""
    found = origin.find(command.operation) if not isinstance(command, Finish) else None
    if isinstance(command, AwaitDecision) or getattr(getattr(found, "asking", None), "edit", None):
        return IntendEffect if isinstance(found, EffectOperation) else RequestApproval
    return IntendEffect if isinstance(command, SettleEffect) else type(command)


@quick
@given(shapes, seeds)
def test_a_fork_stands_where_its_origin_stood(shape, seed):
    """From every turn on, its code has seen the same, and waits for the same; what was asked for and not settled is asked anew."""
    run = live(shape, seed)
    for length in range(1, len(run.journal) + 1):
        programs = Shaped(shape), Shaped(shape)
        origin, fork = fresh(programs[0]), fresh(programs[1], "fork-1", 1)
        replay(origin, run.journal[:length])
        replay(fork, forked(run.journal, length)[:-1])
        assert programs[1].interpreter.trace == programs[0].interpreter.trace
        assert stand_of(fork, {}).given_up == stand_of(origin, {}).given_up
        doubtful = dict.fromkeys(origin.in_doubt, IntendEffect)
        expected = {key: anew(origin, one) for key, one in waiting(origin).items()}
        found = waiting(fork)
        assert {key: type(one) for key, one in found.items()} == {**expected, **doubtful}
        assert fork.in_doubt == {}
        origin.evict()
        fork.evict()


nameless = shapes.filter(lambda shape: "name" not in str(shape))
"""A fork's code is told its own name from the fork on, and may do what it likes with that."""


@quick
@given(nameless, seeds, st.data())
def test_a_fork_that_is_answered_alike_ends_alike(shape, seed, data):
    """What it asks for anew is granted, then everything comes as it came to the origin: the same is seen, and the end is the same."""
    run = live(shape, seed)
    length = data.draw(st.integers(2, len(run.journal)), label="turns kept")
    program = Shaped(shape)
    machine = fresh(program, "fork-1", 1)
    journal = forked(run.journal, length)
    kept_entries = [entry for turn, _ in journal for entry in turn]
    before = [entry for turn, _ in run.journal[:length] for entry in turn]
    again = [
        [former]
        for former, entry in zip(before, kept_entries, strict=False)
        if isinstance(entry, LeftOut)
    ]
    at = journal[-1][1]
    replay(machine, [*journal, *((turn, at) for turn in again), *run.journal[length:]])
    assert program.interpreter.trace == run.program.interpreter.trace
    assert finished(machine) == finished(run.machine)
    machine.evict()


independent = st.recursive(
    st.one_of(
        st.tuples(st.just("step"), few), st.tuples(st.just("sleep"), seconds), st.just(("now",))
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: ("seq", *parts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: ("group", *parts)),
        st.tuples(st.just("try"), inner, inner),
    ),
    max_leaves=6,
)


def operations_below(path: str, shape: Shape) -> set[Any]:
    run = live(shape, 0, cut_short=False)
    assert run.finish is not None
    return {
        (type(entry).__name__, entry.operation)
        for turn, _ in run.journal
        for entry in turn
        if getattr(entry, "operation", "").startswith((f"{path}:", f"{path}."))
    }


@quick
@given(independent, independent, independent, st.booleans())
@example(
    ("try", ("step", 1), ("step", 1)),
    ("now",),
    ("try", ("seq", ("step", 1), ("sleep", 1), ("step", 1)), ("step", 1)),
    False,
)
def test_a_call_inserted_in_one_branch_shifts_no_other(inserted, branch, other, first):
    """Whatever is inserted into one branch of a gather, the other branch's operations keep their ids."""
    changed = ("seq", inserted, branch) if first else ("seq", branch, inserted)
    before = operations_below("r.2", ("gather", False, branch, other))
    after = operations_below("r.2", ("gather", False, changed, other))
    assert before == after


class Renamed(Exception):
    """Never raised: a type that nothing expects."""


CHANGES: dict[str, tuple[type[Any], dict[str, Any], str, str]] = {
    "a renamed step": (StepCompleted, {"step": step("labour")}, "step work", "step labour"),
    "another kind": (StepCompleted, {"step": effect("work")}, "step work", "effect work"),
    "a renamed effect": (
        EffectIntended,
        {"tick": effect("tock", repeats=True)},
        "effect tick",
        "effect tock",
    ),
    "other arguments": (
        EffectIntended,
        {"tick": lambda n: KIT["tick"](n + 100)},
        '{"n":',
        '{"n":10',
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@quick
@given(shape=shapes, seed=seeds)
@example(shape=("seq", ("step", 1), ("tick", 2)), seed=1)
@example(shape=("gather", False, ("tick", 1), ("step", 2)), seed=5)
def test_changed_code_is_noticed(change, shape, seed):
    """When the journal answers what the changed code asks differently, replay stops, and its error shows both sides."""
    kind, changed, recorded, asked = CHANGES[change]
    name = recorded.split()[-1] if " " in recorded else "tick"
    run = live(shape, seed)
    entries = [entry for turn, _ in run.journal for entry in turn]
    answered = {one.operation for one in entries if isinstance(one, kind) and one.name == name}
    machine = fresh(Shaped(shape, {**KIT, **changed}))
    try:
        replay(machine, run.journal)
    except NonDeterminismError as error:
        assert answered or change != "other arguments"
        assert recorded in error.message or "open:" in error.message or "nothing" in error.message
        assert asked in error.message or "nothing" in error.message
        assert error.hint
    else:
        assert not answered & seen_open(run), "the change went unnoticed"
    finally:
        machine.evict()


def seen_open(run: Live) -> set[str]:
    """Return the operations whose outcome reached an operation that was still open."""
    program = Shaped(run.shape)
    machine = fresh(program)
    reached: set[str] = set()
    for turn, at in run.journal:
        reached |= {
            operation
            for entry in turn
            if machine.is_open(operation := getattr(entry, "operation", ""))
        }
        machine.deliver(turn, at)
    return reached


@quick
@given(shapes, seeds)
@example(("consult", 1), 7)
def test_a_new_parameter_with_a_default_is_no_change(shape, seed):
    """A parameter with a default, added to effects that the journal holds, changes neither commands' ids nor the end."""
    run = live(shape, seed)
    more = {
        "pay": effect("pay", pay_more),
        "tick": effect("tick", pay_more, repeats=True),
        "guarded": effect("guarded", pay_more, repeats=True),
    }
    program = Shaped(shape, {**KIT, **more})
    machine = fresh(program)
    replay(machine, run.journal)
    assert program.interpreter.trace == run.program.interpreter.trace
    assert finished(machine) == finished(run.machine)
    machine.evict()
