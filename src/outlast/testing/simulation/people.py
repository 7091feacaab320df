"""The people of a scenario: they start runs, send, decide, cancel, and say what became of what is in doubt.

They persist: what the store could not take they try again, under the same id where there is one. What they were told was
accepted must have been accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from outlast.client import Client, RunHandle
from outlast.client.update import check_accepted, result_of, update_message
from outlast.errors import (
    DecisionRefusedError,
    DefinitionError,
    QueryError,
    RunCancelledError,
    RunConflictError,
    RunNotFoundError,
    StoreError,
    StoreUnavailableError,
    UpdateFailedError,
    UpdateRejectedError,
)
from outlast.journal.entry import (
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    RunName,
    from_row,
)
from outlast.store.change import PutMessage, RunHead, RunKey
from outlast.testing.simulation.kit import MESSAGES, SHAPED, TOLD, UPDATES, Heard, workflow_of
from outlast.testing.simulation.scenario import Plan, Scenario, Sending
from outlast.testing.simulation.shape import Work, nodes
from outlast.testing.simulation.system import Simulation
from outlast.testing.simulation.world import Done, Handed, World, answer
from outlast.testing.thread import SeededRandom
from outlast.workflows.completion import CompletionToken

T = TypeVar("T")

_AGAIN_SECONDS = 0.5
_LOOK_SECONDS = 0.5
_MEDDLINGS = 20
_NO_HANDLER = "has no handler for update"
_LONGEST_PAUSE_SECONDS = 60.0
_QUESTIONS = 10
FORK = "-fork"
"""At the end of the ids of forks."""
_FORK_SECONDS = 20.0
"""How long a fork may take, which is sent nothing."""
_ORIGIN_SECONDS = 30.0
"""How long after its end an origin may still do what it had begun: a lease, and what is on its way."""
_INSIDE_SECONDS = 20.0
"""How long to wait for a client in a worker's process, which may die meanwhile."""


class _Patient(Client):
    """A client that waits, whoever lives."""

    async def say_when_no_worker(self, head: RunHead) -> None:
        """Say nothing: in a simulation somebody comes in the end."""


class People:
    """Everybody outside.

    Args:
        world: Where an operator looks up what happened.
    """

    def __init__(self, sim: Simulation, scenario: Scenario, world: World) -> None:
        self._sim = sim
        self._scenario = scenario
        self._world = world
        self._tasks: list[asyncio.Task[Any]] = []
        self._lives: list[asyncio.Task[Any]] = []
        self._over = False
        self._over_since: dict[RunName, float] = {}
        """When what was forked was first seen to be over."""
        self._patient = _Patient(sim.outside, random=SeededRandom("patient"), principal="tester")

    def begin(self) -> None:
        """Let everybody do what the scenario says."""
        for number, plan in enumerate(self._scenario.plans):
            self._lives.append(self._spawn(self._live(f"run{number}", plan)))
            self._spawn(self._decide(f"run{number}", plan))
        self._spawn(self._operate())
        self._spawn(self._complete())

    async def done(self) -> None:
        """Return when the last run was started, and ended where that was planned."""
        await asyncio.gather(*self._lives)

    async def end(self) -> None:
        """Decide and settle nothing more; the runs have ended."""
        self._over = True
        await asyncio.gather(*self._tasks)

    def _spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        task = self._sim.spawn(work)
        self._tasks.append(task)
        return task

    # One run's life

    async def _live(self, run_id: str, plan: Plan) -> None:
        await asyncio.sleep(plan.start)
        starts = [self._start(run_id, plan, inside=plan.inside) for _ in range(plan.starters)]
        await asyncio.gather(*starts)
        if plan.stranger:
            self._spawn(self._intrude(run_id, plan))
        if plan.meddler:
            self._spawn(self._meddle(run_id))
            self._spawn(self._help(run_id, plan))
        if plan.pause is not None:
            self._spawn(self._pause(run_id, plan.pause, plan.resume))
        if plan.curious:
            self._spawn(self._ask(run_id))
        if plan.fork is not None:
            self._spawn(self._fork(run_id, plan, plan.fork))
        sending = self._spawn(self._send(run_id, plan))
        for seconds, end in ((plan.cancel, "cancel"), (plan.terminate, "terminate")):
            if seconds is not None:
                await asyncio.sleep(seconds)
                with contextlib.suppress(RunConflictError):
                    await self._persist(
                        lambda end=end: getattr(self._handle(run_id), end)("enough")
                    )
        if plan.restart is not None:
            await asyncio.sleep(plan.restart)
            # What is still on its way to the former generation must not reach the new one in another order.
            await sending
            if await self._start(run_id, plan, again=True):
                self._spawn(self._send(run_id, plan))

    async def _pause(self, run_id: str, after: float, seconds: float) -> None:
        """Pause a run, and resume it, whatever became of it meanwhile."""
        for wait, act in ((after, "pause"), (seconds, "resume")):
            await asyncio.sleep(wait)
            with contextlib.suppress(RunConflictError):
                await self._persist(lambda act=act: getattr(self._handle(run_id), act)("a moment"))

    async def _fork(self, run_id: str, plan: Plan, after: float) -> None:
        """Fork a run, by a request that is made again until it is answered, and cancel the fork when it waits in vain."""
        await asyncio.sleep(after)
        fork = fork_of(run_id)
        position, generation = await self._position(run_id, plan.anew)
        try:
            await self._persist(
                lambda: self._handle(run_id).fork(
                    position,
                    id=fork,
                    reason="to see",
                    effects=plan.effects,
                    generation=generation,
                )
            )
        except StoreError:
            # The clock was set back, and the fork would have entries of times to come.
            jumped = any(one.harm == "back" for one in self._scenario.disturbances)
            self._sim.invariants.check(jumped, 5, f"{run_id} was not forked")
            return
        except DefinitionError:
            # A new child would lack what was sent to the one that is still open.
            talks = plan.effects == "new_key"
            self._sim.invariants.check(talks, 5, f"{run_id} could not be forked")
            return
        self._sim.invariants.check(
            RunKey("default", fork) in self._sim.invariants.runs,
            5,
            f"the fork of {run_id} was accepted, and is not there",
        )
        self._spawn(self._decide(fork, plan))
        await asyncio.sleep(_FORK_SECONDS)
        with contextlib.suppress(RunConflictError):
            await self._persist(lambda: self._handle(fork).cancel("in vain"))

    async def _position(self, run_id: str, anew: float) -> tuple[int | None, int | None]:
        """Return where a fork begins that does not keep this part of the journal, between two turns; None for wherever it can."""
        if not anew:
            return None, None
        known = self._sim.invariants.runs[RunKey("default", run_id)]
        turns = [one.row.turn for one in known.rows]
        begins = [at for at in range(1, len(turns)) if turns[at] != turns[at - 1]] or [1]
        return begins[int((1 - anew) * (len(begins) - 1))], known.generation

    async def _ask(self, run_id: str) -> None:
        """Ask a run what it has said, while it goes on: nothing is unsaid within a generation."""
        said: dict[int, list[list[str]]] = {}
        for _ in range(_QUESTIONS):
            await asyncio.sleep(_LOOK_SECONDS)
            known = self._sim.invariants.runs[RunKey("default", run_id)]
            generation = known.generation
            with contextlib.suppress(QueryError, RunConflictError):
                told = await self._persist(lambda: self._handle(run_id).query(TOLD))
                if generation != known.generation:
                    continue
                former = said.setdefault(generation, told)
                said[generation] = told
                right = former == told[: len(former)]
                self._sim.invariants.check(right, 2, f"{run_id} says {told}, and said {former}")

    async def _intrude(self, run_id: str, plan: Plan) -> None:
        """Start other work under an id that is taken."""
        call = msgspec.json.encode(plan.shape).decode(), f"{run_id}/other"
        with contextlib.suppress(RunConflictError):
            await self._persist(lambda: self._sim.client.start(SHAPED(*call), id=run_id))
            self._sim.invariants.check(False, 5, f"{run_id} was taken for other work")

    async def _meddle(self, run_id: str) -> None:
        """Say that effects failed which are never in doubt, and what steps return that are tried again."""
        said: set[str] = set()
        for _ in range(_MEDDLINGS):
            await asyncio.sleep(_LOOK_SECONDS)
            image = await self._sim.store.load(RunKey("default", run_id))
            for stamped in image.rows if image else ():
                entry = from_row(stamped.row)
                if not isinstance(entry, EffectIntended) or "idempotent" not in entry.name:
                    continue
                if entry.operation not in said:
                    said.add(entry.operation)
                    seen = 1 if image is None else image.head.generation
                    with contextlib.suppress(RunConflictError):
                        await self._persist(
                            lambda at=entry.operation, seen=seen: self._handle(run_id).resolve(
                                at, failed="meddled with", generation=seen
                            )
                        )

    async def _help(self, run_id: str, plan: Plan) -> None:
        """Say what a step returns that has failed, where there is but one."""
        values = {node.n * 2 for _, node in nodes(plan.shape) if isinstance(node, Work)}
        said: set[str] = set()
        for _ in range(_MEDDLINGS if len(values) == 1 else 0):
            await asyncio.sleep(_LOOK_SECONDS)
            image = await self._sim.store.load(RunKey("default", run_id))
            for row in image.operations if image else ():
                if "simulated_work" in row.name and row.operation not in said:
                    said.add(row.operation)
                    seen = 1 if image is None else image.head.generation
                    with contextlib.suppress(RunConflictError):
                        await self._persist(
                            lambda at=row.operation, seen=seen: self._handle(run_id).resolve(
                                at, applied=max(values), generation=seen
                            )
                        )

    async def _start(
        self, run_id: str, plan: Plan, *, inside: bool = False, again: bool = False
    ) -> bool:
        shape = msgspec.json.encode(plan.shape).decode()
        workflow = workflow_of(pinned=plan.pinned)
        call = workflow(shape, f"{run_id}{'/again' if again else ''}")
        if_closed = "restart" if again else "attach"

        timeout = None if plan.timeout is None else timedelta(seconds=plan.timeout)
        run = RunKey("default", run_id)
        before = self._sim.invariants.runs[run].incarnation if again else 0

        async def start(client: Client) -> None:
            # Whoever was not told what became of a restart looks first: one that came to be may have ended meanwhile.
            if not again or self._sim.invariants.runs[run].incarnation == before:
                await client.start(
                    call,
                    id=run_id,
                    if_closed=if_closed,
                    timeout=timeout,
                    durability=plan.durability,
                )

        try:
            if not (inside and await self._inside(start)):
                await self._persist(lambda: start(self._sim.client))
        except RunConflictError:
            return False
        self._sim.invariants.check(
            run in self._sim.invariants.runs,
            5,
            f"the start of {run_id} was accepted, and is not there",
        )
        return True

    async def _inside(self, start: Callable[[Client], Coroutine[Any, Any, None]]) -> bool:
        """Start through the client of a living worker; False when that came to nothing."""
        alive = [one for one in self._sim.workers if not one.process.stopped]
        if not alive:
            return False
        worker = alive[-1]
        task = self._sim.spawn(worker.within(start(worker.client)))
        # What comes of it after that time is nobody's business any more.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({task}, timeout=_INSIDE_SECONDS)
        return bool(done) and task.exception() is None

    async def _send(self, run_id: str, plan: Plan) -> None:
        # What hangs in a frozen process must not reach the next generation of the run.
        inside = plan.inside and plan.restart is None
        for number, sending in enumerate(plan.sendings):
            await asyncio.sleep(sending.pause)
            for _ in range(sending.times):

                async def send(
                    client: Client, sending: Sending = sending, number: int = number
                ) -> None:
                    await _put(client, run_id, sending, f"{number}")

                try:
                    if not (inside and await self._inside(send)):
                        await self._persist(lambda send=send: send(self._sim.client))
                except RunConflictError:
                    return
                self._check_accepted(run_id, f"{'update' if sending.asks else 'signal'}/{number}")
                if sending.asks:
                    self._spawn(self._await_answer(run_id, sending, number))

    async def _await_answer(self, run_id: str, sending: Sending, number: int) -> None:
        """Wait until an accepted update is answered: every sender comes to an end, and a result is the right one.

        One that came before the run had a handler is sent again, under another id, until the run has one or ends.
        """
        update, message_id, pause = UPDATES[sending.signal], f"{number}", 1.0
        run = RunKey("default", run_id)
        while True:
            message = update_message(self._patient, update, sending.value, message_id)
            try:
                result = await self._persist(
                    partial(result_of, self._patient, run, update, message)
                )
            except UpdateRejectedError as error:
                if _NO_HANDLER not in error.message:
                    return
            except (UpdateFailedError, RunCancelledError, RunConflictError):
                return
            else:
                break
            await asyncio.sleep(pause)
            pause, message_id = min(2 * pause, _LONGEST_PAUSE_SECONDS), f"{message_id}+"
            try:
                await self._persist(partial(_put, self._patient, run_id, sending, message_id))
            except RunConflictError:
                return
        self._sim.invariants.check(
            result == sending.value * 2,
            5,
            f"update/{message_id} of {run_id} was answered with {result}",
        )

    def _check_accepted(self, run_id: str, message_id: str) -> None:
        run = self._sim.invariants.runs[RunKey("default", run_id)]
        self._sim.invariants.check(
            any(known == message_id for _, known in run.inbox),
            5,
            f"{message_id} was accepted for {run_id}, and is not there",
        )

    # Decisions

    async def _decide(self, run_id: str, plan: Plan) -> None:
        seen: set[tuple[str, str]] = set()
        while not self._over:
            await asyncio.sleep(_LOOK_SECONDS)
            views = await self._persist(lambda: self._sim.client.approvals.list(run_id=run_id))
            for view in views:
                name = (view.approval_id, view.subject_sha256)
                if name not in seen and plan.deciding.answer != "ignore":
                    seen.add(name)
                    self._spawn(self._answer(run_id, plan, *name))

    async def _answer(self, run_id: str, plan: Plan, approval_id: str, sha256: str) -> None:
        approvals = self._sim.client.approvals
        act = approvals.approve if plan.deciding.answer == "approve" else approvals.deny
        await asyncio.sleep(plan.deciding.after)
        acts = [(act, "0" * 64)] if plan.deciding.wrong_first else []
        acts += [(act, sha256)] * plan.deciding.times
        if plan.deciding.contrary:
            acts.append((approvals.deny if act == approvals.approve else approvals.approve, sha256))
        for decide, one in acts:
            try:
                await self._persist(
                    lambda one=one, decide=decide: decide(run_id, approval_id, seen_sha256=one)
                )
            except (DecisionRefusedError, RunConflictError, RunNotFoundError):
                continue
            request = self._sim.invariants.runs[RunKey("default", run_id)].approvals.get(
                approval_id
            )
            self._sim.invariants.check(
                one == sha256 and (request is None or request.state in ("approved", "denied")),
                5,
                f"a decision on {approval_id} of {run_id} was accepted, and is not there",
            )

    # Completions

    async def _complete(self) -> None:
        """Answer what steps have handed out."""
        seen = 0
        chance = self._sim.source("completions")
        while not self._over:
            await asyncio.sleep(_LOOK_SECONDS)
            for one in self._world.tokens[seen:]:
                seen += 1
                after = chance.choice([0.0, chance.uniform(0, 3), chance.uniform(0, 12)])
                self._spawn(self._work(one, after, chance.random()))

    async def _work(self, handed: Handed, after: float, chance: float) -> None:
        """Do what a step has handed out, and say how far it is, where somebody listens; it may be too much for whoever has it."""
        if handed.done is None:
            await asyncio.sleep(after)
        elif not await self._beat(handed, after, self._sim.source(f"{handed}/{after}")):
            return
        await self._say(handed.token, handed.value, chance)

    async def _beat(self, handed: Handed, seconds: float, chance: random.Random) -> bool:
        """Say how far it is, until it is done, or nobody listens any more; False for somebody who falls silent then, or before."""
        silent = chance.uniform(0, 12) if chance.random() < 0.4 else float("inf")
        named, done = CompletionToken.read(handed.token), handed.done or 0
        began = self._sim.clock.monotonic()
        while (passed := self._sim.clock.monotonic() - began) < min(seconds, silent):
            done += chance.choice([0, 1, 1])
            details = chance.choice([Heard(handed.value, done), Heard(handed.value, done), None])
            try:
                await self._persist(
                    lambda details=details: self._sim.client.heartbeat(handed.token, details)
                )
            except RunConflictError:
                return chance.random() < 0.5
            self._check_heard(named, details)
            await asyncio.sleep(min(chance.uniform(0.1, 1.4), max(0.0, seconds - passed)))
        return seconds <= silent

    def _check_heard(self, named: CompletionToken, details: Heard | None) -> None:
        said = b"" if details is None else msgspec.json.encode(details)
        self._sim.invariants.check(
            (named.run, named.operation, said) in self._sim.invariants.bodies.beats,
            5,
            f"a beat of {named.operation} of {named.run} was accepted, and is not there: {details}",
        )

    async def _say(self, token: str, value: int, chance: float) -> None:
        """Say what came of a step; sometimes more than once, and sometimes nonsense first, which must change nothing."""
        said: list[Any] = [value, value] if chance < 0.2 else [value]
        if chance > 0.8:
            said.insert(0, "nonsense")
        for one in said:
            with contextlib.suppress(RunConflictError):
                await self._persist(lambda one=one: self._sim.client.complete(token, one))

    # Doubts

    async def _operate(self) -> None:
        seen: set[tuple[str, int, int]] = set()
        released: set[tuple[str, int]] = set()
        while not self._over:
            await asyncio.sleep(1)
            for run in [*self._sim.invariants.runs]:
                await self._settle(run, seen)
                if not self._scenario.recalled:
                    await self._release(run, released)

    async def _release(self, run: RunKey, released: set[tuple[str, int]]) -> None:
        """Let workers of any build go on with a run whose own build has gone, once for each generation."""
        head = await self._sim.store.head(run)
        if head is None or head.reason != "pinned" or (run.run_id, head.generation) in released:
            return
        released.add((run.run_id, head.generation))
        with contextlib.suppress(RunConflictError):
            await self._persist(
                lambda: self._handle(run.run_id).accept(any_build=True, reason="it has gone")
            )

    async def _settle(self, run: RunKey, seen: set[tuple[str, int, int]]) -> None:
        """Look up what happened, and say so, once for each doubt."""
        doubts: dict[str, int] = {}
        intents: dict[str, EffectIntended] = {}
        head = await self._sim.store.head(run)
        if head is None or head.status.closed:
            return
        for stamped in await self._sim.store.journal(run, generation=head.generation):
            match from_row(stamped.row):
                case EffectIntended() as intent:
                    intents[intent.operation] = intent
                case EffectInDoubt(operation):
                    doubts[operation] = stamped.row.seq
                case EffectCompleted(operation) | EffectFailed(operation):
                    doubts.pop(operation, None)
                case EffectCleared(operation):
                    doubts.pop(operation, None)
                case _:
                    pass
        for operation, seq in doubts.items():
            if (run.run_id, head.generation, seq) in seen:
                continue
            purpose = purpose_of(intents[operation])
            was_done = self._world.was_done(purpose, Done(intents[operation].key, run.run_id))
            if not was_done and self._may_be_done_yet(run):
                continue
            seen.add((run.run_id, head.generation, seq))
            said: dict[str, Any] = (
                {"applied": answer(purpose)} if was_done else {"not_applied": True}
            )
            with contextlib.suppress(RunConflictError):
                await self._persist(
                    lambda operation=operation, said=said: self._handle(run.run_id).resolve(
                        operation, **said, generation=head.generation
                    )
                )

    def _may_be_done_yet(self, run: RunKey) -> bool:
        """Whether the origin of a fork may still do what the fork is in doubt about."""
        forked = self._sim.invariants.runs[run].forked
        origin = None if forked is None else forked.origin
        if origin is None:
            return False
        former = self._sim.invariants.runs[RunKey(run.tenant, origin.run_id)]
        now = self._sim.clock.monotonic()
        if former.generation == origin.generation and not former.closed:
            return True
        return now < self._over_since.setdefault(origin, now) + _ORIGIN_SECONDS

    def _handle(self, run_id: str) -> RunHandle[Any]:
        return self._sim.client.handle(run_id, SHAPED)

    async def _persist(self, act: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await act()
            except StoreUnavailableError:
                await asyncio.sleep(_AGAIN_SECONDS)


async def _put(client: Client, run_id: str, sending: Sending, message_id: str) -> None:
    """Send a message, or put an update into the inbox; nobody waits for its answer yet."""
    if not sending.asks:
        signal = MESSAGES[sending.signal]
        await client.handle(run_id).send(signal, sending.value, id=message_id)
        return
    run = RunKey("default", run_id)
    message = update_message(client, UPDATES[sending.signal], sending.value, message_id)
    check_accepted(await client.commit(PutMessage(run, message)), run)


def fork_of(run_id: str) -> str:
    """Return the id of a run's fork."""
    return f"{run_id}{FORK}"


def purpose_of(intent: EffectIntended) -> str:
    """Return what an intended effect is for, as the world books it."""
    arguments = msgspec.json.decode(intent.effective, type=dict[str, Any])
    extra = arguments["extra"]
    return f"{arguments['purpose']}+{extra}" if extra else arguments["purpose"]
