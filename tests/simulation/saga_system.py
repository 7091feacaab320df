"""Whole systems from seeds whose runs are sagas: workers that die, a store on a bad network, receivers that lose answers.

A seed draws a workflow, what its receivers do, when workers die and when somebody cancels. Played to its end, the receivers' books
are compared with the journal and with the code: what an aborted saga did was undone once, newest first, and nothing else was.
"""

# ruff: noqa: S311 - a seed must repeat

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import outlast
from outlast.client import RunHandle
from outlast.effects.retry import ONCE, RetryPolicy
from outlast.journal.entry import (
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    Entry,
    SagaAborted,
    SagaEnded,
    from_row,
)
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step, Workflow

Shape = list[Any]
RUN = RunKey("default", "r")
QUICK = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=4))
TIMEOUT, SETTLE = timedelta(seconds=2), timedelta(seconds=1)
LEASE = timedelta(seconds=5)
LONGEST_SECONDS = 4000.0
BAD = Faults(latency=0.2, lost_answer=0.03, lost_request=0.03, unavailable=0.03, lost_hint=0.2)


class World:
    """The receivers of one system, and what the code of its run has come to."""

    def __init__(self, seed: int) -> None:
        self.receiver = Receiver()
        self.fates = random.Random(f"{seed}/fates")
        self.left: dict[str, str] = {}
        """How the block of each saga ended, by its path."""

    def lose(self) -> str:
        """Return what becomes of a request."""
        return self.fates.choices(["", "lost", "dropped", "slow"], [6, 2, 2, 1])[0]


class Stage:
    """Where the bodies below find the world that they act on. One system is played at a time."""

    world: World


stage = Stage()


# What workflows call. Built without decorators, so that no app of another test finds them.


async def act_once(name: str) -> str:
    """Ask a receiver that knows keys."""
    return await _request(name, stage.world.receiver.apply_once)


async def act(name: str) -> str:
    """Ask a receiver that does not know keys."""
    return await _request(name, stage.world.receiver.apply)


async def take_back(result: str) -> str:
    """Ask a receiver that knows keys to undo what gave this result."""
    return await _request(result, stage.world.receiver.apply_once)


async def _request(name: str, change: Any) -> str:
    fate = stage.world.lose()
    if fate == "slow":
        await asyncio.sleep(1.5)
    if fate == "lost":
        raise ConnectionError("the request was lost")
    said: str = change(outlast.idempotency_key(), name)
    if fate == "dropped":
        raise ConnectionError("the answer was lost")
    return said


def find(name: str) -> outlast.Applied[str] | outlast.NotApplied:
    """Ask what became of it."""
    return stage.world.receiver.find(outlast.idempotency_key())


async def fail() -> None:
    """Fail for good."""
    raise LookupError("nothing left")


def _effect(name: str, function: Any, declared: str, compensate: Any = None) -> Any:
    rules = EffectOptions(
        idempotent=declared == "idempotent",
        probe=find if declared == "probed" else None,
        settle=SETTLE,
        compensate=compensate,
    )
    retry = ONCE if declared == "never" else QUICK
    return Effect(function, name, AttemptOptions(retry, TIMEOUT), rules)


BODIES = {"idempotent": act_once, "probed": act, "never": act}
UNDOES = {
    **{declared: _effect(f"undo_{declared}", body, declared) for declared, body in BODIES.items()},
    "result": _effect("undo_result", take_back, "idempotent"),
}
ACTS = {
    (declared, undo): _effect(f"act_{declared}_{undo}", body, declared, UNDOES.get(undo))
    for declared, body in BODIES.items()
    for undo in ("idempotent", "probed", "never", "result", "nothing")
}
FAIL = Step(fail, "fail", AttemptOptions(ONCE))

_around: ContextVar[tuple[str, ...]] = ContextVar("around", default=())


async def carry_out(shape: Shape, path: str) -> None:  # noqa: C901 - one arm a kind
    """Carry out a part; each call of an effect says in its argument which sagas are around it."""
    kind, *parts = shape
    match kind:
        case "act":
            await ACTS[parts[0], parts[1]](json.dumps([path, *_around.get()]))
        case "fail":
            await FAIL()
        case "nap":
            await outlast.sleep(parts[0])
        case "seq":
            for number, part in enumerate(parts):
                await carry_out(part, f"{path}.{number}")
        case "group":
            async with asyncio.TaskGroup() as group:
                for number, part in enumerate(parts):
                    group.create_task(carry_out(part, f"{path}.{number}"))
        case "gather":
            runs = (carry_out(part, f"{path}.{number}") for number, part in enumerate(parts))
            await asyncio.gather(*runs)
        case "catch":
            with contextlib.suppress(Exception):
                await carry_out(parts[0], f"{path}.0")
        case "limit":
            async with asyncio.timeout(parts[0]):
                await carry_out(parts[1], f"{path}.0")
        case _:
            await _in_saga(parts[0], path)


async def _in_saga(part: Shape, path: str) -> None:
    token = _around.set((*_around.get(), path))
    try:
        async with outlast.saga():
            try:
                await carry_out(part, f"{path}.0")
            except (Exception, asyncio.CancelledError):
                stage.world.left[path] = "raised"
                raise
            stage.world.left[path] = "returned"
    finally:
        _around.reset(token)


async def shaped(shape: str) -> None:
    """Carry out a shape."""
    await carry_out(json.loads(shape), "0")


SHAPED: Any = Workflow(shaped, "shaped_saga")
CODE = [SHAPED, FAIL, *UNDOES.values(), *ACTS.values()]


# What a seed draws


def draw(chance: random.Random, depth: int = 3) -> Shape:
    """Return a part of a workflow."""
    kinds = ["act"] * 6 + ["fail", "nap"]
    if depth:
        kinds += (
            ["seq"] * 3 + ["saga"] * 4 + ["group", "group", "gather", "catch", "catch", "limit"]
        )
    match chance.choice(kinds):
        case "act":
            return ["act", *chance.choice(sorted(ACTS))]
        case "fail":
            return ["fail"]
        case "nap":
            return ["nap", chance.randint(1, 9)]
        case "limit":
            return ["limit", chance.randint(1, 9), draw(chance, depth - 1)]
        case ("saga" | "catch") as kind:
            return [kind, draw(chance, depth - 1)]
        case kind:
            return [kind, *(draw(chance, depth - 1) for _ in range(chance.randint(2, 3)))]


def whole(chance: random.Random) -> Shape:
    """Return a workflow: a saga of several parts, of which something fails more often than not."""
    parts = [draw(chance) for _ in range(chance.randint(2, 3))]
    return ["saga", ["seq", *parts, chance.choice([["fail"], ["nap", 1]])]]


# A system, played


class BrokenPromiseError(AssertionError):
    """A seed shows what must not be."""


class System:
    """One run, its workers, an operator who tells the truth, and somebody who disturbs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(f"{seed}/system")
        self.shape = whole(self.chance)
        self.world = stage.world = World(seed)
        self.sim = Simulation(
            CODE,
            seed=seed,
            options=WorkerOptions(
                library="simulated",
                lease=LEASE,
                poll=timedelta(seconds=1),
                idle=timedelta(seconds=self.chance.choice([0.2, 30])),
            ),
        )

    def play(self) -> Books:
        """Play it to its end."""
        return self.sim.run(self._play)

    async def _play(self, sim: Simulation) -> Books:
        for _ in range(2):
            await self._start_worker()
        handle = await sim.client.start(SHAPED(json.dumps(self.shape)), id="r")
        beside = [sim.spawn(self._disturb(handle)), sim.spawn(self._operate(handle))]
        head = await sim.until(
            "r", lambda one: one.status.closed or sim.clock.monotonic() > LONGEST_SECONDS
        )
        for task in beside:
            task.cancel()
        rows = await sim.store.journal(RUN)
        return Books(head.status, [from_row(one.row) for one in rows], self.world)

    async def _start_worker(self) -> None:
        """Start a worker, whose network goes bad once it has announced itself."""
        worker = await self.sim.start_worker(faults=Faults(latency=BAD.latency))
        worker.store.faults = BAD

    async def _disturb(self, handle: RunHandle[Any]) -> None:
        """Kill workers, and start others; cancel perhaps, and again while it undoes."""
        if self.chance.random() < 0.4:
            self.sim.spawn(self._cancel(handle))
        for _ in range(self.chance.randint(0, 4)):
            await asyncio.sleep(self.chance.uniform(0, 12))
            living = [one for one in self.sim.workers if not one.process.dead]
            self.chance.choice(living).kill()
            await self._start_worker()

    async def _cancel(self, handle: RunHandle[Any]) -> None:
        await asyncio.sleep(self.chance.uniform(0, 8))
        for _ in range(3):
            if (await handle.status()).status.closed:
                return
            with contextlib.suppress(outlast.RunConflictError):
                await handle.cancel()
            await asyncio.sleep(self.chance.uniform(0, 2))

    async def _operate(self, handle: RunHandle[Any]) -> None:
        """Say of each doubt what is true, or have it undone."""
        while True:
            await asyncio.sleep(3)
            if (await handle.status()).status is not Status.BLOCKED:
                continue
            for one in (await handle.detail()).operations:
                if one.state == "in doubt":
                    await self._say(handle, one)

    async def _say(self, handle: RunHandle[Any], doubt: Any) -> None:
        found = self.world.receiver.find(doubt.key)
        may_undo = doubt.name.startswith("act_") and not doubt.name.endswith("_nothing")
        if may_undo and self.chance.random() < 0.3:
            result = {"result": doubt.name} if doubt.needs_result else {}
            await handle.resolve(doubt.operation, compensate=True, **result)
        elif isinstance(found, outlast.Applied):
            await handle.resolve(doubt.operation, applied=found.value)
        else:
            await handle.resolve(doubt.operation, not_applied=True)


class Books:
    """What is left of a run, and what its receivers say."""

    def __init__(self, status: Status, entries: list[Entry], world: World) -> None:
        self.status, self.entries, self.world = status, entries, world
        self.intents = {one.operation: one for one in self.of(EffectIntended)}
        ends = (EffectCompleted, EffectFailed, EffectCompensating)
        self.ends = {one.operation: one for one in self.of(*ends)}
        self.undoings = [one for one in self.intents.values() if one.compensates]

    def of(self, *kinds: type[Any]) -> list[Any]:
        """Return the entries of some kinds."""
        return [one for one in self.entries if isinstance(one, kinds)]

    def check(self) -> None:
        """Every promise about sagas holds."""
        _holds(self.status.closed, f"the run does not end: {self.status}")
        self._check_receivers()
        self._check_undone()
        self._check_order()
        self._check_end()

    def _check_receivers(self) -> None:
        """Each key changed the world once, where its operation is recorded as done, and never otherwise."""
        changes = self.world.receiver.changes
        _holds(max(changes.values(), default=1) == 1, "something happened twice under one key")
        for operation, intent in self.intents.items():
            end = self.ends.get(operation)
            if isinstance(end, EffectCompleted):
                _holds(changes[intent.key] == 1, f"{operation} is recorded, and never happened")
        keys = Counter(one.key for one in self.intents.values())
        _holds(max(keys.values(), default=1) == 1, "two operations have one key")
        _holds(set(changes) <= set(keys), "something happened without an intent")

    def _check_undone(self) -> None:
        """What happened in an aborted saga was undone once, and nothing else was."""
        undone = Counter(one.compensates for one in self.undoings)
        for operation, intent in self.intents.items():
            if intent.compensates:
                continue
            name = json.loads(bytes(intent.effective))["name"]
            _, *around = json.loads(name)
            aborted = any(self.world.left.get(one) == "raised" for one in around)
            end = self.ends[operation]
            happened = isinstance(end, EffectCompleted) or getattr(end, "unknown", False)
            meant = isinstance(end, EffectCompensating) or (
                aborted and happened and bool(intent.compensation)
            )
            _holds(
                undone[operation] == meant,
                f"{operation} was undone {undone[operation]} times, and is to be {int(meant)} times",
            )

    def _check_order(self) -> None:
        """Each saga undoes newest first, and not before all in it has an end."""
        places = {id(one): at for at, one in enumerate(self.entries)}
        by_saga: dict[str, list[EffectIntended]] = {}
        for one in self.undoings:
            path = one.operation.rpartition(":")[0]
            if path.endswith("u"):
                by_saga.setdefault(path, []).append(one)
        for ones in by_saga.values():
            undone = [places[id(self.intents[one.compensates])] for one in ones]
            _holds(undone == sorted(undone, reverse=True), "not undone newest first")
            first = min(places[id(one)] for one in ones)
            ends = [places[id(self.ends[one.compensates])] for one in ones]
            _holds(max(ends) < first, "undone before it was known what became of all")

    def _check_end(self) -> None:
        """The status says whether something was undone; every aborted saga came to its end."""
        expected = {"compensated"} if self.undoings else {"failed", "cancelled"}
        _holds(self.status.value in {"completed", *expected}, f"it is said to be {self.status}")
        aborted = {one.operation for one in self.of(SagaAborted)}
        ended = {one.operation for one in self.of(SagaEnded)}
        _holds(aborted <= ended or not self.status.closed, "a saga was aborted and never ended")


def _holds(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def look_at(seeds: range) -> None:
    """Play seeds; the error of the first that breaks a promise names it.

    Raises:
        BrokenPromiseError: With seed and shape.
    """
    for seed in seeds:
        system = System(seed)
        try:
            system.play().check()
        except Exception as error:
            raise BrokenPromiseError(
                f"seed {seed}: {type(error).__name__}: {error}; {system.shape}"
            ) from error
