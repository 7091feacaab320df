"""Moves one run: gathers what happened, writes it as one change, delivers it to the machine, carries out what comes out.

One commit of a run is under way at a time, and the machine sees only what was committed. Commands are carried out only when
everything that came before them (late outcomes, messages, due timers) was delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from outlast.clock import Clock
from outlast.errors import DecodeError, NonDeterminismError, OutlastError
from outlast.journal.entry import (
    AlarmRaised,
    ApprovalExpired,
    ApprovalRequested,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    EffectRefused,
    Entry,
    OperationId,
    StampedRow,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
    from_row,
)
from outlast.replay.command import (
    Abandon,
    AwaitDecision,
    Command,
    Finish,
    IntendEffect,
    RequestApproval,
    RunStep,
    SettleEffect,
    StartTimer,
)
from outlast.replay.machine import Machine, Outcome
from outlast.replay.ledger import match_sha256
from outlast.store.change import (
    Applied,
    ApprovalExpire,
    ApprovalPut,
    ApprovalWithdraw,
    Conflict,
    CoverRow,
    Fenced,
    HeadUpdate,
    OperationDrop,
    OperationPut,
    Refused,
    RunChange,
    RunHead,
    RunKey,
    Status,
    WorkerId,
)
from outlast.store.protocol import RunImage, Store
from outlast.worker.bridge import RunLost
from outlast.worker.effect import EffectRun
from outlast.worker.executor import Executor
from outlast.worker.gate import Gate
from outlast.worker.inbox import alarm, proposal_of
from outlast.worker.lease import Lease
from outlast.worker.proposal import Proposal, Rank, change_of, in_order
from outlast.worker.step import run_step
from outlast.worker.writer import Writer
from outlast.workflows.attempt import Attempt
from outlast.workflows.registry import Registry

logger = logging.getLogger("outlast.worker")

SLICE_SECONDS = 0.005
"""Replay gives the event loop back after so long: 50,000 entries must not stop every other run."""

POISON_LAPSES = 10
"""Owners that died in a row without any new entry, after which a run is held to be what kills them."""

_OUTCOMES = (StepCompleted, StepFailed, EffectCompleted, EffectFailed, EffectRefused, EffectCleared)


@dataclass(frozen=True, slots=True)
class Deck:
    """What all runs of a worker share.

    Args:
        idle: How long a run that only waits stays in memory.
    """

    store: Store
    writer: Writer
    lease: Lease
    executor: Executor
    clock: Clock
    registry: Registry
    worker: WorkerId
    build: str
    library: str
    idle: timedelta


class _RefusedByStoreError(OutlastError):
    """The store will never take what the run has to write."""

    code = "refused_by_store"


def _poison(head: RunHead) -> OutlastError:
    return OutlastError(
        f"{head.lapses} workers in a row died while they had this run, and none got any further",
        run=head.run.run_id,
        hint="find out what kills the process; then send the run a message, or terminate it",
    )


class Pilot:
    """One run in this worker's hands.

    Args:
        head: As claimed, at this worker's epoch.
        idle_seconds: How long ago a former owner could last have begun an attempt; None when there was none.
        rows: The journal, where the worker knows it already (a run that was born here).
    """

    def __init__(
        self,
        deck: Deck,
        head: RunHead,
        stopped_ago: timedelta | None,
        rows: tuple[StampedRow, ...] | None = None,
    ) -> None:
        self.executor = deck.executor
        self.clock = deck.clock
        self.run_key: RunKey = head.run
        self._deck = deck
        self._head = head
        self._image = None if rows is None else RunImage(head, rows, (), (), ())
        self._stopped_at = deck.clock.monotonic() - (
            stopped_ago.total_seconds() if stopped_ago else 0.0
        )
        self._machine: Machine
        self._gate: Gate
        self._turn = 0
        self._rows: dict[str, OperationPut] = {}
        self._pending_approvals: set[str] = set()
        self._proposals: list[Proposal] = []
        self._held: list[Command] = []
        self._timers: dict[OperationId, datetime] = {}
        self._deadlines: dict[OperationId, tuple[datetime, str]] = {}
        self._attempts: dict[OperationId, asyncio.Task[None]] = {}
        self._resting: dict[OperationId, datetime] = {}
        self._intended_here: set[OperationId] = set()
        self._outcome: Outcome | None = None
        self._mail = head.mail
        self._mail_seen = 0
        self._wake = asyncio.Event()
        self._stopping = False
        self._aborted = False
        self._idle_over = False
        self._ended = False
        self._lost = False

    # What the worker says

    async def fly(self) -> None:
        """Move the run until it ends, parks, or is lost. Raises nothing that belongs to the run."""
        try:
            if self._head.lapses >= POISON_LAPSES:
                await self._block("poison", _poison(self._head))
                return
            await self._take_up()
            await self._advance()
        except RunLost:
            logger.info("run %s: no longer ours", self.run_key)
        except NonDeterminismError as error:
            logger.error("%s", error)
            await self._block("non-determinism", error, unfit_build=self._deck.build)
        except DecodeError as error:
            logger.error("%s", error)
            await self._block("undecodable", error, unfit_build=self._deck.build)
        except _RefusedByStoreError as error:
            logger.error("%s", error)
            await self._block("refused by the store", error)
        except Exception as error:
            # A bug of ours must not keep the run hidden in a worker that does not move it.
            logger.exception("run %s: moving it broke inside Outlast", self.run_key)
            await self._block("internal error", error, unfit_build=self._deck.build)
        finally:
            await self._leave()

    def mail_came(self) -> None:
        """Look into the inbox."""
        self._mail = True
        self._wake.set()

    def stop(self) -> None:
        """Give the run back as soon as nothing of it is being attempted."""
        self._stopping = True
        self._wake.set()

    def abort_attempts(self) -> None:
        """Cancel what is being attempted: the grace time of a stop is over."""
        self._aborted = True
        for task in self._attempts.values():
            task.cancel()
        self._wake.set()

    def lose(self) -> None:
        """The lease is over: stop without writing."""
        self._lost = True
        self._wake.set()

    @property
    def ended(self) -> bool:
        """Whether the run was brought to its end here."""
        return self._ended

    @property
    def attempting(self) -> list[OperationId]:
        """Operations that are being attempted now."""
        return [one for one in self._attempts if one not in self._resting]

    # What attempts ask (the Bridge protocol)

    def store_now(self) -> datetime:
        """Return the store's time."""
        return self._deck.store.now()

    def row(self, operation: OperationId) -> OperationPut | None:
        """Return the stored row of an open operation."""
        return self._rows.get(operation)

    def attempt(self, operation: OperationId, name: str, number: int, key: str) -> Attempt:
        """Return the description of an attempt."""
        return Attempt(
            tenant=self.run_key.tenant,
            run_id=self.run_key.run_id,
            operation=operation,
            name=name,
            number=number,
            key=key,
        )

    def post(self, proposal: Proposal) -> None:
        """Have it written; nobody waits."""
        self._proposals.append(proposal)
        self._wake.set()

    async def propose(self, proposal: Proposal) -> Applied | Refused:
        """Have it written, and return when it was."""
        proposal.done = asyncio.get_running_loop().create_future()
        self.post(proposal)
        return await proposal.done

    async def rest_until(self, operation: OperationId, due: datetime) -> None:
        """Wait for the store's time; the run may be parked meanwhile."""
        self._resting[operation] = due
        self._wake.set()
        try:
            while (wait := (due - self.store_now()).total_seconds()) > 0:
                await asyncio.sleep(wait)
        finally:
            self._resting.pop(operation, None)

    def check_lease(self) -> None:
        """Return when the worker may act now."""
        if self._lost or not self._deck.lease.valid:
            self.lose()
            raise RunLost

    def idle_seconds(self) -> float:
        """Return how long ago a former owner of the run could last have begun an attempt."""
        return max(0.0, self.clock.monotonic() - self._stopped_at)

    # Taking up

    async def _take_up(self) -> None:
        image = self._image or await self._deck.store.load(self.run_key)
        if image is None or image.head.epoch != self._head.epoch:
            raise RunLost
        self._head = image.head
        self._mail = self._mail or bool(image.messages) or image.head.mail
        self._mail_seen = max((one.number for one in image.messages), default=0)
        self._rows = {row.operation: row for row in image.operations}
        self._pending_approvals = {
            one.put.approval_id for one in image.approvals if one.state == "pending"
        }
        entries = [(from_row(stamped.row), stamped) for stamped in image.rows]
        started = entries[0][0]
        assert isinstance(started, Started)
        self._gate = Gate(started.namespace)
        program = self._deck.registry.workflows[self._head.workflow]
        self._machine = Machine(
            program,
            tenant=self.run_key.tenant,
            run_id=self.run_key.run_id,
            generation=self._head.generation,
        )
        await self._deliver(_turns(entries))
        self._image = None
        if not any(isinstance(entry, Taken) for entry, _ in entries):
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            self.post(Proposal(Rank.ARRIVAL, Taken(python=python, library=self._deck.library)))

    # Moving

    async def _advance(self) -> None:
        while True:
            if self._lost:
                raise RunLost
            self._wake.clear()
            self._sort_commands()
            await self._gather()
            if self._proposals:
                if await self._commit():
                    return
                continue
            if self._stopping:
                if self._deck.executor.acting(self.run_key):
                    if self._aborted:
                        # A thread cannot be stopped, and while it acts nobody else may: keep the run until we die.
                        raise RunLost
                elif not self.attempting:
                    await self._park(Status.READY)
                    return
            elif self._held:
                self._carry_out()
                continue
            if self._outcome is not None and not self._stopping:
                self._propose_end(self._outcome)
                continue
            if self._may_park():
                await self._park(self._resting_status())
                return
            await self._wait()

    def _sort_commands(self) -> None:
        """Note what only waits, and hold what acts until everything that came before was delivered."""
        for command in self._machine.take_commands():
            match command:
                case StartTimer():
                    self._timers[command.operation] = command.due
                case AwaitDecision():
                    self._deadlines[command.operation] = (command.expires_at, command.approval_id)
                    self._pending_approvals.add(command.approval_id)
                case Abandon():
                    self._abandon(command)
                case Finish():
                    self._outcome = command.outcome
                case RunStep() | IntendEffect() | SettleEffect() | RequestApproval():
                    self._held.append(command)
                case _:
                    assert_never(command)

    def _abandon(self, command: Abandon) -> None:
        operation = command.operation
        self._timers.pop(operation, None)
        self._deadlines.pop(operation, None)
        task = self._attempts.pop(operation, None)
        if task is not None:
            task.cancel()
        if operation in self._rows:
            self.post(Proposal(Rank.ROW, row=OperationDrop(operation)))
        if command.approval_id in self._pending_approvals:
            self.post(Proposal(Rank.ROW, approval=ApprovalWithdraw(command.approval_id)))

    async def _gather(self) -> None:
        """Propose what came from outside: messages, due timers, expired requests."""
        if self._mail:
            self._mail = False
            known = {one.consumed for one in self._proposals}
            for stamped in await self._deck.store.mail(self.run_key):
                self._mail_seen = max(self._mail_seen, stamped.number)
                if stamped.message.message_id not in known:
                    self.post(proposal_of(stamped, self._machine, self._head.generation))
        now = self.store_now()
        for operation, due in sorted(self._timers.items(), key=lambda item: item[1]):
            if due <= now:
                del self._timers[operation]
                self.post(Proposal(Rank.ARRIVAL, TimerFired(operation), guard=operation, at=due))
        for operation, (expires_at, approval_id) in list(self._deadlines.items()):
            if expires_at <= now:
                del self._deadlines[operation]
                self.post(
                    Proposal(
                        Rank.REQUEST,
                        ApprovalExpired(operation, approval_id),
                        guard=operation,
                        approval=ApprovalExpire(approval_id),
                    )
                )

    def _carry_out(self) -> None:
        held, self._held = self._held, []
        for command in held:
            operation = command.operation if not isinstance(command, Finish) else None
            if operation is None or not self._machine.is_open(operation):
                continue
            match command:
                case RunStep():
                    step = self._deck.registry.steps.get(command.name)
                    self._begin(operation, run_step(self, command, self._known(step, command.name)))
                case IntendEffect():
                    self._intend(command)
                case SettleEffect():
                    effect = self._deck.registry.effects.get(command.name)
                    fresh = operation in self._intended_here
                    self._intended_here.discard(operation)
                    known = self._known(effect, command.name)
                    self._begin(operation, EffectRun(self, command, known, fresh=fresh).run())
                case RequestApproval():
                    self._request(command)
                case _:
                    raise AssertionError(f"{command} is not held")

    def _known(self, definition: Any, name: str) -> Any:
        if definition is None:
            raise NonDeterminismError(
                f"the workflow calls {name!r}, which this app did not register",
                run=self.run_key.run_id,
                step=name,
                hint="import the module that declares it before outlast.open()",
            )
        return definition

    def _begin(self, operation: OperationId, work: Coroutine[Any, Any, None]) -> None:
        async def attempt() -> None:
            try:
                await work
            except RunLost:
                self.lose()
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("run %s: operation %s broke inside Outlast", self.run_key, operation)
                self.lose()

        def ended(task: asyncio.Task[None]) -> None:
            if self._attempts.get(operation) is task:
                del self._attempts[operation]
            self._wake.set()

        task = asyncio.get_running_loop().create_task(attempt(), name=f"{self.run_key} {operation}")
        self._attempts[operation] = task
        task.add_done_callback(ended)

    def _intend(self, command: IntendEffect) -> None:
        self._known(self._deck.registry.effects.get(command.name), command.name)
        leave = self._gate.ask(command, self._head.epoch)
        self.post(
            Proposal(Rank.INTENT, leave.intent, guard=command.operation, spend=leave.spend)
        )

    def _request(self, command: RequestApproval) -> None:
        now = self.store_now()
        entry = ApprovalRequested(
            operation=command.operation,
            approval_id=command.approval_id,
            role=command.role,
            subject=command.subject,
            subject_sha256=command.subject_sha256,
            covers=command.covers,
            expires_at=now + command.expires_in,
            use_by=now + command.use_within,
        )
        put = ApprovalPut(
            approval_id=entry.approval_id,
            operation=entry.operation,
            role=entry.role,
            subject_sha256=entry.subject_sha256,
            expires_at=entry.expires_at,
            use_by=entry.use_by,
            covers=tuple(CoverRow(one.effect, match_sha256(one)) for one in entry.covers),
            body=msgspec.json.encode(entry),
        )
        self.post(Proposal(Rank.REQUEST, entry, guard=command.operation, approval=put))

    def _propose_end(self, outcome: Outcome) -> None:
        match msgspec.structs.asdict(outcome):
            case {"failure": failure}:
                reason = f"{failure.type}: {failure.message}"[:500]
            case _:
                reason = ""
        status = Status(str(type(outcome).__struct_config__.tag))
        head = HeadUpdate(status=status, reason=reason, release=True)
        self.post(Proposal(Rank.END, outcome, head=head))

    # Writing

    async def _commit(self) -> bool:
        """Write the proposals as one change and deliver it; True when the run has ended."""
        proposals = self._take_proposals()
        if not proposals:
            return False
        change = change_of(proposals, self._head, worker=self._deck.worker, turn=self._turn)
        verdict = await self._deck.writer.submit(change)
        match verdict:
            case Applied():
                await self._applied(change, proposals, verdict)
                self._ended = change.head is not None and change.head.status.closed
                return change.head is not None and change.head.release
            case Refused():
                self._refused(proposals, verdict)
                return False
            case Fenced() | Conflict():
                if isinstance(verdict, Conflict):
                    logger.error("run %s: the head is not where this worker left it", self.run_key)
                raise RunLost
            case _:
                raise AssertionError(verdict)

    def _take_proposals(self) -> list[Proposal]:
        """Return what is to be written, in order: nothing for operations that were given up, one outcome an operation."""
        taken, self._proposals = self._proposals, []
        kept: list[Proposal] = []
        settled: set[OperationId] = set()
        for proposal in taken:
            entry = proposal.entry
            if proposal.guard and not self._machine.is_open(proposal.guard):
                proposal.drop()
                continue
            if isinstance(entry, _OUTCOMES):
                if entry.operation in settled:
                    if not proposal.consumed:
                        proposal.drop()
                        continue
                    detail = {"entry": str(type(entry).__struct_config__.tag)}
                    proposal.entry = alarm("late_outcome", entry.operation, detail)
                    proposal.row = None
                settled.add(entry.operation)
            kept.append(proposal)
        return in_order(kept)

    async def _applied(
        self, change: RunChange, proposals: Sequence[Proposal], verdict: Applied
    ) -> None:
        self._head = msgspec.structs.replace(
            self._head,
            version=change.version + 1,
            next_seq=self._head.next_seq + len(change.entries),
            digest=change.digest,
            changed_at=verdict.at,
        )
        for row in change.operations:
            if isinstance(row, OperationPut):
                self._rows[row.operation] = row
            else:
                self._rows.pop(row.operation, None)
        entries = [
            (one.entry, StampedRow(row, verdict.at))
            for one, row in zip(
                (one for one in proposals if one.entry is not None), change.entries, strict=True
            )
            if one.entry is not None
        ]
        self._intended_here.update(
            # Only in these hands: after a crash, an attempt may have been made since the effect was cleared.
            entry.operation
            for entry, _ in entries
            if isinstance(entry, EffectIntended | EffectCleared)
        )
        await self._deliver(_turns(entries))
        for proposal in proposals:
            proposal.settle(verdict)
        for operation in [one for one in self._attempts if not self._machine.is_open(one)]:
            self._attempts.pop(operation).cancel()

    def _refused(self, proposals: list[Proposal], refused: Refused) -> None:
        """Take the refused part out and put the others back."""
        for proposal in proposals:
            if not self._is_refused(proposal, refused):
                self._proposals.append(proposal)
                continue
            proposal.settle(refused)
            entry = proposal.entry
            if isinstance(entry, EffectIntended):
                refusal = self._gate.refusal(entry, refused.reason, self.run_key.run_id)
                self._proposals.append(
                    Proposal(Rank.OUTCOME, refusal, guard=entry.operation)
                )
            elif isinstance(entry, ApprovalExpired):
                if refused.reason == "not_due":
                    later = self.store_now() + timedelta(milliseconds=50)
                    self._deadlines[entry.operation] = (later, entry.approval_id)
                self._mail = True
            else:
                self._mail = True
        if len(self._proposals) == len(proposals):
            raise _RefusedByStoreError(
                f"the store refuses what the run has to write: {refused.reason} {refused.part}".rstrip(),
                run=self.run_key.run_id,
                hint="see the journal with `outlast runs journal`; a value may be too large for the store",
            )

    @staticmethod
    def _is_refused(proposal: Proposal, refused: Refused) -> bool:
        if proposal.spend is not None:
            return refused.part in {proposal.spend.approval_id, proposal.spend.operation}
        if isinstance(proposal.approval, ApprovalExpire):
            return refused.part == proposal.approval.approval_id
        if refused.reason == "message":
            return bool(proposal.consumed) and refused.part in {"", proposal.consumed}
        return refused.reason == "mail" and proposal.rank is Rank.END

    async def _deliver(self, turns: Sequence[tuple[list[Entry], datetime, int]]) -> None:
        """Deliver turns to the machine, from plain callbacks, in slices."""
        if not turns:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        waiting = iter(turns)

        def deliver_slice() -> None:
            until = self.clock.monotonic() + SLICE_SECONDS
            try:
                for entries, at, turn in waiting:
                    if done.done():
                        return
                    self._machine.deliver(entries, at)
                    self._turn = turn + 1
                    if self.clock.monotonic() > until:
                        loop.call_soon(deliver_slice)
                        return
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                if not done.done():
                    done.set_exception(error)
                return
            if not done.done():
                done.set_result(None)

        loop.call_soon(deliver_slice)
        await done

    # Waiting, parking, leaving

    async def _wait(self) -> None:
        """Wait until something happens, or the next due time."""
        dues = [*self._timers.values(), *(due for due, _ in self._deadlines.values())]
        seconds = self._deck.idle.total_seconds() if self._is_idle() else None
        if dues:
            until = max(0.0, (min(dues) - self.store_now()).total_seconds())
            seconds = until if seconds is None else min(seconds, until)
        waited_from = self.clock.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._idle_over = (
            not self._wake.is_set()
            and self.clock.monotonic() - waited_from >= self._deck.idle.total_seconds() * 0.99
        )

    def _is_idle(self) -> bool:
        return not self.attempting and not self._held and self._outcome is None

    def _may_park(self) -> bool:
        """Whether the run has only waited for a while, and will for a while longer."""
        if not (self._idle_over and self._is_idle()):
            return False
        wake_at = self._wake_at()
        return wake_at is None or wake_at - self.store_now() > self._deck.idle

    def _wake_at(self) -> datetime | None:
        dues = [
            *self._timers.values(),
            *(due for due, _ in self._deadlines.values()),
            *self._resting.values(),
        ]
        return min(dues, default=None)

    def _resting_status(self) -> Status:
        waits = self._timers or self._deadlines or self._resting or self._machine.awaited_signals
        return Status.BLOCKED if self._machine.in_doubt and not waits else Status.WAITING

    async def _park(self, status: Status) -> None:
        doubt = self._machine.in_doubt
        reason = "in doubt" if status is Status.BLOCKED and doubt else ""
        head = HeadUpdate(
            status=status,
            reason=reason,
            wake_at=self._wake_at(),
            release=True,
            note=msgspec.json.encode(self._note()),
        )
        self.post(Proposal(Rank.END, head=head))
        while not await self._commit():
            if self._lost:
                raise RunLost

    def _note(self) -> dict[str, Any]:
        """Return what the run waits for, for people."""
        return {
            "timers": {one: due for one, due in self._timers.items()},
            "approvals": {approval: due for due, approval in self._deadlines.values()},
            "retries": {one: due for one, due in self._resting.items()},
            "signals": self._machine.awaited_signals,
            "in_doubt": self._machine.in_doubt,
        }

    async def _block(self, reason: str, error: Exception, *, unfit_build: str = "") -> None:
        """Leave the run to an operator, or to a worker with other code."""
        for proposal in self._proposals:
            proposal.drop()
        self._proposals.clear()
        head = HeadUpdate(
            status=Status.BLOCKED,
            reason=reason,
            release=True,
            ignore_mail=True,
            mail_seen=self._mail_seen,
            unfit_build=unfit_build,
            note=msgspec.json.encode({"error": str(error)}),
        )
        proposal = Proposal(Rank.END, head=head)
        change = change_of([proposal], self._head, worker=self._deck.worker, turn=self._turn)
        verdict = await self._deck.writer.submit(change)
        if not isinstance(verdict, Applied):
            logger.warning("run %s: could not be marked as blocked: %s", self.run_key, verdict)

    async def _leave(self) -> None:
        """Let go of everything in memory."""
        tasks = list(self._attempts.values())
        for task in tasks:
            task.cancel()
        for proposal in self._proposals:
            proposal.drop()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        machine = getattr(self, "_machine", None)
        if machine is not None:
            await _in_callback(machine.evict)


async def _in_callback(function: Callable[[], None]) -> None:
    """Run `function` outside any task: the machine must not be driven from inside one."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def call() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            done.set_exception(error)
        else:
            done.set_result(None)

    loop.call_soon(call)
    await done


def _turns(
    entries: Sequence[tuple[Entry, StampedRow]],
) -> list[tuple[list[Entry], datetime, int]]:
    """Group entries by their turn."""
    turns: list[tuple[list[Entry], datetime, int]] = []
    for entry, stamped in entries:
        if turns and turns[-1][2] == stamped.row.turn:
            turns[-1][0].append(entry)
        else:
            turns.append(([entry], stamped.at, stamped.row.turn))
    return turns
