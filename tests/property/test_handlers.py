"""Laws of handlers, on the machine alone: whatever comes, in whatever batches, each message is handled in order and once, every update
is answered once, and a live run, its replay from any prefix and its resumption after each eviction are one computation."""

# ruff: noqa: D102, D103, D205, D209

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import Raw
from searching import examples

import outlast
from outlast.journal.entry import (
    CancelRequested,
    Completed,
    MessageReceived,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
    UpdateAnswered,
    UpdateReceived,
)
from outlast.journal.failure import capture
from outlast.replay.command import Abandon, AnswerUpdate, Finish, RunStep, StartTimer
from outlast.replay.machine import Machine
from outlast.replay.stand import note_commands, stand_of
from outlast.workflows.definition import AttemptOptions, Step

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
MOST_COMMITS = 60
SIGNALS = {name: outlast.Signal(f"law-{name}", int) for name in "abc"}
UPDATES = {name: outlast.Update(f"law-{name}", int, int) for name in "abc"}

quick = examples(1.2)


async def _work(n: int) -> int:
    return n


async def _broken(n: int) -> int:
    return n


work = Step(_work, "work", AttemptOptions())
broken = Step(_broken, "broken", AttemptOptions(raises=(ValueError,)))


class Scene:
    """The workflow of a plan: what its body does, one after another, and how each name is handled."""

    name = "scene"

    def __init__(self, plan: list[tuple[Any, ...]]):
        self.plan = plan
        self.begin()

    def begin(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.judged: list[tuple[str, int]] = []
        self.trace: list[Any] = []
        self.total = 0

    def start(self, arguments: bytes):
        self.begin()
        return self.body()

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    async def body(self) -> int:
        for kind, *rest in self.plan:
            self.trace.append(kind)
            await getattr(self, f"do_{kind}")(*rest)
        return self.total

    async def do_signal(self, name, how):
        if name not in self.named():
            outlast.on_signal(SIGNALS[name], self.handler(f"signal {name}", how))
            self.trace.append(f"signal {name}")

    async def do_update(self, name, how, choosy):
        word = f"update {name}"
        if word in self.trace:
            return

        def check(n: int) -> None:
            self.judged.append((word, n))
            if (n + self.total) % 3 == 0:
                raise ValueError(f"not {n} at {self.total}")

        validator = check if choosy else None
        outlast.on_update(UPDATES[name], self.handler(word, how), validator=validator)
        self.trace.append(word)

    def named(self) -> set[str]:
        return {one.split()[-1] for one in self.trace if one.startswith(("signal ", "heard "))}

    async def do_step(self, n):
        self.total += await work(n)

    async def do_nap(self, seconds):
        await outlast.sleep(seconds)

    async def do_hear(self, name, seconds):
        if f"signal {name}" in self.trace:
            return
        self.trace.append(f"heard {name}")
        with suppress(TimeoutError):
            self.total += await outlast.receive(SIGNALS[name], timeout=timedelta(seconds=seconds))

    async def do_until(self, more, seconds):
        goal = len(self.begun) + more
        with suppress(TimeoutError):
            await outlast.wait_condition(
                lambda: len(self.begun) >= goal, timeout=timedelta(seconds=seconds)
            )

    async def do_tidy(self, n):
        try:
            await outlast.sleep(60)
        except asyncio.CancelledError:
            self.total += await work(n)
            raise

    async def do_fail(self):
        raise KeyError("the body")

    def handler(self, word: str, how: str) -> Any:
        def plain(n: int) -> int:
            self.begun.append((word, n))
            self.total += n
            return self.total

        async def long(n: int) -> int:
            plain(n)
            self.trace.append((word, n, "begins"))
            try:
                return await getattr(self, f"how_{how}")(n)
            except BaseException as error:
                self.trace.append((word, n, type(error).__name__))
                raise

        return plain if how == "plain" else long

    async def how_step(self, n):
        return await work(n) + await work(self.total)

    async def how_many(self, n):
        tasks = [asyncio.create_task(self.how_step(part)) for part in range(n % 3)]
        return sum(await asyncio.gather(*tasks))

    async def how_nap(self, n):
        await outlast.sleep(n % 4)
        return int(outlast.random().random() * 1000)

    async def how_tidy(self, n):
        try:
            await outlast.sleep(n % 4)
            return n
        finally:
            self.total += await work(n)

    async def how_wait(self, n):
        goal = len(self.begun) + 1
        with suppress(TimeoutError):
            await outlast.wait_condition(
                lambda: len(self.begun) >= goal, timeout=timedelta(seconds=n % 9)
            )
        return len(self.begun)

    async def how_fail(self, n):
        if n % 5 == 0:
            await broken(n)
        return await work(n)


def fresh(scene: Scene) -> Machine:
    return Machine(scene, tenant="default", run_id="run-1")


class Live:
    """A run of a scene that is answered in a random order, by commits of several turns.

    `evicting` takes it out of memory after every commit.
    """

    def __init__(self, plan: list[Any], seed: int, *, evicting: bool = False):
        self.random = random.Random(seed)
        self.plan = plan
        self.evicting = evicting
        self.scene = Scene(plan)
        self.machine = fresh(self.scene)
        self.journal: list[tuple[list[Any], datetime]] = []
        self.outstanding: dict[str, Any] = {}
        self.answers: Counter[str] = Counter()
        self.finish: Any = None
        self.now = EPOCH
        self.serial = 0
        self.stands: list[Any] = []
        self.commit([[Started("scene", Raw(b"{}"), b"0123456789abcdef", "run-1")]])
        self.commit([[Taken("3.11", "0")]])

    def commit(self, turns: list[list[Any]]) -> None:
        self.now += timedelta(seconds=self.random.choice([0, 0, 1, 3]))
        for turn in turns:
            self.journal.append((turn, self.now))
            self.machine.deliver(turn, self.now)
        for command in self.machine.take_commands():
            match command:
                case Finish():
                    self.finish = command
                case Abandon(operation):
                    self.outstanding.pop(operation, None)
                case _:
                    self.outstanding[command.operation] = command
        for operation in list(self.outstanding):
            if not self.machine.is_open(operation):
                del self.outstanding[operation]
        self.stands.append((len(self.journal), snapshot(self.machine, self.scene)))
        if self.evicting:
            self.machine.evict()
            self.scene = Scene(self.plan)
            self.machine = fresh(self.scene)
            for turn, at in self.journal:
                self.machine.deliver(turn, at)
            self.machine.take_commands()

    def run(self) -> None:
        """Go on until the run ends; what does not end by itself is cancelled in the end."""
        for count in range(MOST_COMMITS * 3):
            if self.finish is not None:
                break
            cancels = [[CancelRequested()]] if count > MOST_COMMITS and count % 5 == 0 else []
            self.commit(self.turns() + cancels)
        assert self.finish is not None
        self.end()

    def turns(self) -> list[list[Any]]:
        ready = [one for one in self.outstanding.values() if not isinstance(one, StartTimer)]
        self.random.shuffle(ready)
        chosen = ready[: self.random.choice([0, 1, 1, 2, 4])]
        outcomes = [[self.outcome(one)] for one in chosen if isinstance(one, RunStep)]
        answers = [[self.answer(one)] for one in chosen if isinstance(one, AnswerUpdate)]
        return [*outcomes, *self.arrivals(), *answers]

    def arrivals(self) -> list[list[Any]]:
        arrivals: list[list[Any]] = []
        if self.random.random() < 0.5 and self.serial < 40:
            arrivals.append([self.message() for _ in range(self.random.choice([1, 1, 2, 5]))])
        timers = [one for one in self.outstanding.values() if isinstance(one, StartTimer)]
        if timers and self.random.random() < 0.6:
            timers.sort(key=lambda one: one.due)
            self.now = max(self.now, timers[0].due)
            arrivals += [[TimerFired(one.operation)] for one in timers if one.due <= self.now]
        if self.random.random() < 0.05:
            arrivals.append([CancelRequested()])
        self.random.shuffle(arrivals)
        return arrivals

    def message(self) -> MessageReceived | UpdateReceived:
        self.serial += 1
        name = f"law-{self.random.choice('abc')}"
        value = Raw(b"%d" % self.serial)
        if self.random.random() < 0.5:
            return MessageReceived(f"s{self.serial}", name, value)
        return UpdateReceived(f"u{self.serial}", name, value)

    def outcome(self, command: RunStep) -> StepCompleted | StepFailed:
        if command.name == "broken":
            return StepFailed(command.operation, "broken", capture(ValueError("broken")))
        return StepCompleted(
            command.operation, command.name, Raw(b"%d" % self.random.randint(0, 9))
        )

    def answer(self, command: AnswerUpdate) -> UpdateAnswered:
        self.answers[command.answer.message_id] += 1
        return command.answer

    def end(self) -> None:
        """Write what the run's owner writes at last: perhaps more messages, the answers that are left, the end."""
        if self.random.random() < 0.5:
            self.commit([[self.message() for _ in range(2)]])
        left = [one for one in self.outstanding.values() if isinstance(one, AnswerUpdate)]
        self.commit([*([self.answer(one)] for one in left), [self.finish.outcome]])
        assert self.machine.closed is not None

    def received(self, kind: type[Any]) -> list[Any]:
        return [entry for turn, _ in self.journal for entry in turn if isinstance(entry, kind)]


def snapshot(machine: Machine, scene: Scene) -> Any:
    """Return where the machine stands: without commands, which are taken at different times, but with what code has seen."""
    stand = stand_of(machine, {})
    return stand, list(scene.trace), list(scene.begun), list(scene.judged), scene.total


names = st.sampled_from("abc")
hows = st.sampled_from(["plain", "plain", "step", "many", "nap", "tidy", "wait", "fail"])
acts = st.one_of(
    st.tuples(st.just("signal"), names, hows),
    st.tuples(st.just("update"), names, hows, st.booleans()),
    st.tuples(st.just("step"), st.integers(1, 3)),
    st.tuples(st.just("nap"), st.integers(1, 5)),
    st.tuples(st.just("hear"), names, st.integers(1, 5)),
    st.tuples(st.just("until"), st.integers(1, 4), st.integers(1, 30)),
    st.tuples(st.just("tidy"), st.integers(1, 3)),
)
plans = st.tuples(
    st.lists(acts, min_size=1, max_size=8), st.sampled_from([[], [], [("fail",)]])
).map(lambda parts: parts[0] + parts[1])
seeds = st.integers(0, 2**32)


def play(plan: list[Any], seed: int, *, evicting: bool = False) -> Live:
    live = Live(plan, seed, evicting=evicting)
    live.run()
    return live


@quick
@given(plans, seeds)
def test_each_message_is_handled_once_and_in_order(plan, seed):
    """The handler of a name sees the messages of that name in the order of the journal, without gaps but for those it came too late for,
    and for updates that were rejected before it was named."""
    live = play(plan, seed)
    early = {
        one.message_id
        for one in live.received(UpdateAnswered)
        if one.failure is not None and "has no handler for" in one.failure.message
    }
    for kind, word in ((MessageReceived, "signal"), (UpdateReceived, "update")):
        for name in "abc":
            sent = [
                json.loads(bytes(one.value))
                for one in live.received(kind)
                if one.name == f"law-{name}" and one.message_id not in early
            ]
            seen = [n for which, n in live.scene.begun if which == f"{word} {name}"]
            judged = [n for which, n in live.scene.judged if which == f"{word} {name}"]
            assert judged in ([], sent[: len(judged)])
            if judged:  # what was judged and not begun was rejected
                assert [n for n in judged if n in set(seen)] == seen
            else:
                assert seen == sent[: len(seen)]
            event(f"{word}s handled: {min(len(seen), 3)}")


@quick
@given(plans, seeds)
def test_every_update_is_answered_once(plan, seed):
    """Whatever becomes of the run; what was rejected was never begun, and what has a value was."""
    live = play(plan, seed)
    sent = {one.message_id: json.loads(bytes(one.value)) for one in live.received(UpdateReceived)}
    answers = {one.message_id: one for one in live.received(UpdateAnswered)}
    assert live.answers == Counter(sent.keys())
    assert answers.keys() == sent.keys()
    begun = {n for word, n in live.scene.begun if word.startswith("update")}
    for message_id, answer in answers.items():
        event("rejected" if answer.rejected else "failed" if answer.failure else "done")
        assert (sent[message_id] in begun) is not answer.rejected


@quick
@given(plans, seeds)
def test_a_replay_from_any_prefix_stands_where_the_run_stood(plan, seed):
    """Code has seen the same, waits in the same places, and asks for the same."""
    live = play(plan, seed)
    commands: dict[Any, Any] = {}
    scene = Scene(plan)
    machine = fresh(scene)
    stands = dict(live.stands)
    for count, (turn, at) in enumerate(live.journal, 1):
        machine.deliver(turn, at)
        note_commands(commands, machine)
        if count in stands:
            assert snapshot(machine, scene) == stands[count]
            other_scene = Scene(plan)
            other = fresh(other_scene)
            for earlier, when in live.journal[:count]:
                other.deliver(earlier, when)
            again = stand_of(other, note_commands({}, other))
            assert stand_of(machine, commands) == again
            other.evict()
            assert other.take_commands() == []
    machine.evict()


@quick
@given(plans, seeds)
def test_a_run_that_is_evicted_after_every_commit_is_the_same_run(plan, seed):
    """Journal and end are equal to those of the run that stays in memory."""
    stays, leaves = play(plan, seed), play(plan, seed, evicting=True)
    assert plainly(leaves) == plainly(stays)
    event(type(stays.finish.outcome).__name__)


def plainly(live: Live) -> list[Any]:
    """Return a journal without the stacks of failures, which name the frames of whoever ran the code."""
    return [
        (type(entry).__name__, *(plain(getattr(entry, name)) for name in entry.__struct_fields__))
        for turn, _ in live.journal
        for entry in turn
    ]


def plain(value: Any) -> Any:
    if isinstance(value, Raw):
        return bytes(value)
    return (value.type, value.message) if hasattr(value, "stack") else value


def test_the_laws_meet_every_kind_of_end():
    """Among a few hundred runs there are values, failures, rejections and cancels, and every kind of outcome."""
    words, outcomes = Counter(), Counter()
    for seed in range(150):
        chooser = random.Random(seed)
        plan = [
            ("update", "a", chooser.choice(["plain", "step", "tidy", "wait", "fail"]), True),
            ("signal", "a", chooser.choice(["plain", "fail", "nap"])),
            ("update", "b", chooser.choice(["plain", "many", "nap", "fail"]), False),
            ("until", 5, 60),
            *chooser.choice([[], [], [("fail",)], [("tidy", 1)]]),
        ]
        live = play(plan, seed)
        outcomes[type(live.finish.outcome)] += 1
        for answer in live.received(UpdateAnswered):
            words[
                "rejected" if answer.rejected
                else "cancelled" if answer.cancelled
                else "failed" if answer.failure
                else "done"
            ] += 1  # fmt: skip
    assert set(words) == {"rejected", "cancelled", "failed", "done"}, words
    assert len(outcomes) == 3, outcomes
    assert outcomes[Completed]
