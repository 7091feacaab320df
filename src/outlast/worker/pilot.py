"""Moves one run: gathers what happened, writes it as one change, delivers it to the machine, carries out what comes out.

One commit of a run is under way at a time, and the machine sees only what was committed; in the durability modes `async` and `exit`
it sees some of it before, with the same position and time (`worker.buffer`). Commands are carried out only when everything that came
before them (late outcomes, messages, due timers) was delivered. Once the run is given back, nothing of
it is attempted here any more.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, assert_never

import msgspec

from outlast.effects.standing import Alarms
from outlast.errors import (
    DecodeError,
    DefinitionError,
    NonDeterminismError,
    OutlastError,
    StoreUnavailableError,
)
from outlast.journal.entry import (
    NO_OPERATION,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    Cancelled,
    Completed,
    ContinuedAsNew,
    ContinueSuggested,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    EffectRefused,
    Entry,
    Failed,
    OperationId,
    Patched,
    RunTimedOut,
    SagaEnded,
    StampedRow,
    Started,
    StepCompleted,
    Taken,
    UpdateReceived,
    from_row,
)
from outlast.journal.prefix import began_at
from outlast.replay.command import (
    Abandon,
    AnswerUpdate,
    AwaitDecision,
    AwaitRun,
    Command,
    Finish,
    IntendEffect,
    MarkPatch,
    NoteSaga,
    PublishValue,
    RequestApproval,
    RunStep,
    SendMessage,
    SettleEffect,
    StartChild,
    StartTimer,
    WatchRun,
)
from outlast.replay.context import EffectRequest
from outlast.replay.delivery import Delivery
from outlast.replay.machine import Machine, Outcome
from outlast.replay.operation import (
    ApprovalOperation,
    ChildOperation,
    EffectOperation,
    StepOperation,
)
from outlast.store.change import (
    SAGA,
    Applied,
    ApprovalPut,
    ApprovalWithdraw,
    HeadUpdate,
    MessageKind,
    OperationDrop,
    OperationPut,
    Refused,
    RunChange,
    RunHead,
    RunKey,
    Status,
)
from outlast.store.condition import HISTORY
from outlast.store.protocol import RunImage
from outlast.worker.accept import acceptances, after
from outlast.worker.alarm import alarm
from outlast.worker.answer import answering, asked_of_the_origin
from outlast.worker.bridge import RunLost
from outlast.worker.clearance import Clearance
from outlast.worker.crew import LOOK_AGAIN_SECONDS, Crew
from outlast.worker.deadline import Deadline
from outlast.worker.deck import Deck
from outlast.worker.deposit import LateAttempt
from outlast.worker.effect import EffectRun, Past
from outlast.worker.executor import LateEnd, Returned
from outlast.worker.forgotten import Forgotten, forgotten_of
from outlast.worker.gate import Answer, Ask, Doubtful, Found, Gate, Leave, Settled
from outlast.worker.growth import Growth
from outlast.worker.hold import Hold, unbegun
from outlast.worker.inbox import proposal_of
from outlast.worker.intake import LOOK_AT_BACKLOG_SECONDS, Intake
from outlast.worker.kin import Kin
from outlast.worker.late import contradiction
from outlast.worker.log import log_alarm, log_doubt, log_end, log_known, log_long, log_parked
from outlast.worker.outbox import giving_up
from outlast.worker.parked import NOTED, Parked, told_in
from outlast.worker.permit import Finder
from outlast.worker.pin import PinnedRunError, check_build
from outlast.worker.proposal import (
    ASK_AGAIN,
    STUCK,
    Proposal,
    Rank,
    Unstuck,
    in_order,
    is_refused,
    sift,
    unstuck_of,
)
from outlast.worker.remote import PoisonedTaskError, RemoteSteps
from outlast.worker.request import asking, ending, publishing
from outlast.worker.rest import Completion, Rest
from outlast.worker.rollover import Began, is_for_the_next, rolling_over
from outlast.worker.scribe import Scribe
from outlast.worker.series import expired, log_failed
from outlast.worker.step import run_step
from outlast.worker.stride import Stride
from outlast.worker.text import plain
from outlast.worker.trouble import RefusedByStoreError, poisoned, refused_by_store, too_late
from outlast.worker.wait import Waits
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Effect, Step

T = TypeVar("T")

logger = logging.getLogger("outlast.worker")

POISON_LAPSES = 10
"""Owners that died in a row without any new entry, after which a run is held to be what kills them."""

_CROWDED = 2
"""How often the end of a run is refused or put off because of new messages, before the run takes no more of them."""

_STORE_RETRY_SECONDS = 0.5

_DECISIONS = (ApprovalDecided, ApprovalEdited, ApprovalExpired)
"""What closes a request; its operation may be open still."""

_Acting = (
    RunStep
    | IntendEffect
    | SettleEffect
    | RequestApproval
    | PublishValue
    | StartChild
    | SendMessage
    | WatchRun
)


class Pilot:
    """One run in this worker's hands.

    Args:
        head: As claimed, at this worker's epoch.
        stopped_ago: How long ago a former owner could last have begun an attempt; None when there was none.
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
        self._wake = asyncio.Event()
        self._scribe = Scribe(head, deck.worker, deck.writer.submit, self._wake.set)
        self._image = None if rows is None else RunImage(head, rows, (), (), ())
        self._stopped_at = deck.clock.monotonic() - (
            stopped_ago.total_seconds() if stopped_ago else 0.0
        )
        self._machine: Machine
        self._started: Started
        self._delivery: Delivery | None = None
        self._gate: Gate
        self.clearance: Clearance
        self._kin: Kin
        self._remote: RemoteSteps
        self._rows: dict[str, OperationPut] = {}
        self._pending_approvals: set[str] = set()
        self._proposals: list[Proposal] = []
        self._held: list[_Acting] = []
        self._waits = Waits()
        self._alarms = Alarms()
        self._forgotten = Forgotten()
        self._told = told_in(head.note)
        self._growth = Growth(deck.history)
        self._intake = Intake(self._growth)
        self._marks: list[Proposal] = []
        self._intended_here: set[OperationId] = set()
        self._unwritten: dict[OperationId, tuple[LateAttempt, Returned]] = {}
        """What attempts of effects have returned, and the journal does not hold yet."""
        self._outcome: Outcome | None = None
        self._crowded = 0
        self._mail = head.mail
        self._mail_seen: int | None = None
        self.hold = Hold(self._wake.set)
        self._crew = Crew(head.run, self._waits, self.store_now, self._wake.set, self.hold)
        self._stride = Stride(self, self._crew, self._scribe, deck.writer)
        self._given: list[Command] = []
        """Commands of which the stride has left the carrying out to us."""
        self._met: BaseException | None = None
        """What a stride has met."""
        self._waiting = False
        self._idle_since: float | None = None
        self._stopping = False
        self._aborted = False
        self._ended = False
        self._lost = False

    # What the worker says

    async def fly(self) -> None:
        """Move the run until it ends, parks, or is lost. Raises nothing that belongs to the run."""
        try:
            await self._move()
        except RunLost:
            self._lost = True
            logger.info("run %s: no longer ours", self.run_key)
        finally:
            await self._leave()

    async def _move(self) -> None:
        try:
            if self._head.lapses >= POISON_LAPSES:
                await self._block("poison", poisoned(self._head))
                return
            await self._take_up()
            await self._advance()
        except PinnedRunError as error:
            await self._block("pinned", error, unfit_build=self._deck.build)
        except NonDeterminismError as error:
            await self._block("non-determinism", error, unfit_build=self._deck.build)
        except DecodeError as error:
            await self._block("undecodable", error, unfit_build=self._deck.build)
        except RefusedByStoreError as error:
            await self._block("refused by the store", error)
        except PoisonedTaskError as error:
            await self._block("poison", error)
        except Exception as error:
            # A bug of ours must not keep the run hidden in a worker that does not move it.
            logger.exception("run %s: moving it broke inside Outlast", self.run_key)
            await self._block("internal error", error, unfit_build=self._deck.build)

    def mail_came(self) -> None:
        """Look into the inbox; at leisure where messages were left in it, which are told of again and again."""
        self._mail = True
        if not self._intake.holds_back:
            self._wake.set()

    def stop(self) -> None:
        """Give the run back as soon as nothing of it is being attempted."""
        self._stopping = True
        self._wake.set()

    def abort_attempts(self) -> None:
        """Cancel what is being attempted: the grace time of a stop is over."""
        self._aborted = True
        self._crew.cancel()
        self._wake.set()

    def lose(self) -> None:
        """The lease is over: stop without writing."""
        self._lost = True
        self._wake.set()

    @property
    def _head(self) -> RunHead:
        return self._scribe.head

    @property
    def epoch(self) -> int:
        """The lease epoch under which it holds the run."""
        return self._head.epoch

    @property
    def ended(self) -> bool:
        """Whether the run was brought to its end here."""
        return self._ended

    @property
    def lost(self) -> bool:
        """Whether the run was let go without being given back."""
        return self._lost

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
            generation=self._head.generation,
            ahead=self._scribe.is_ahead,
        )

    def post(self, proposal: Proposal) -> None:
        """Have it written; nobody waits."""
        self._proposals.append(proposal)
        # An answer that came before this is written comes first.
        self._mail = self._mail or proposal.yields
        self._wake.set()

    async def propose(self, proposal: Proposal) -> Applied | Refused:
        """Have it written, and return when it was."""
        proposal.done = asyncio.get_running_loop().create_future()
        self.post(proposal)
        return await proposal.done

    async def written(self) -> None:
        """Return when everything that the run has seen until now is written."""
        await self.propose(Proposal(Rank.ROW))

    async def rest(self, operation: OperationId, rest: Rest) -> None:
        """Wait for the store's time; the run may be parked meanwhile."""
        await self._crew.rest(operation, rest)

    async def look(self, operation: OperationId) -> OperationPut | None:
        """Read the row of an open operation anew."""
        row = await self._read(lambda: self._deck.store.operation(self.run_key, operation))
        if row is not None and operation in self._rows:
            self._rows[operation] = row
        return self._rows.get(operation)

    async def await_completion(self, operation: OperationId, wait: Completion) -> None:
        """Wait for an outcome from outside; the run may be parked meanwhile."""
        await self._crew.await_completion(operation, wait)

    def deadline(
        self, operation: OperationId, scheduled_at: datetime | None, limit: timedelta | None
    ) -> Deadline | None:
        """Return the deadline of an operation, which is remembered when the run is parked."""
        return self._waits.deadline(operation, scheduled_at, limit, self.store_now())

    async def stand_by(self, operation: OperationId, seconds: float) -> None:
        """Wait without acting; a stop need not wait for that."""
        await self._crew.stand_by(operation, seconds)

    def is_open(self, operation: OperationId) -> bool:
        """Whether the operation has no outcome in the journal."""
        return self._machine.is_open(operation)

    def acting(self, operation: OperationId) -> AbstractContextManager[None]:
        """Let nothing interrupt the attempt of an effect that is made within this."""
        return self._crew.act(operation)

    def late(self, attempt: Attempt) -> LateEnd:
        """Return what is to be called with the end of an effect's attempt for which nobody waited."""
        return self._deck.deposits.of(self._late_attempt(attempt))

    def returned(self, attempt: Attempt, end: Returned, proposal: Proposal) -> None:
        """Have the outcome of an effect written; should the run be lost before that, it is put into its inbox."""
        self._unwritten[OperationId(attempt.operation)] = self._late_attempt(attempt), end
        self.post(proposal)

    def _late_attempt(self, attempt: Attempt) -> LateAttempt:
        operation = OperationId(attempt.operation)
        effect = self._machine.find(operation)
        doubt = effect.doubt if isinstance(effect, EffectOperation) else None
        return LateAttempt(
            self.run_key,
            self._head.generation,
            operation,
            attempt.name,
            attempt.number,
            self._deck.worker,
            doubt,
        )

    async def deposited(self) -> None:
        """Return when what former lives of this worker know of attempts of the run is in its inbox."""
        await self._deck.deposits.settled(self.run_key)

    def check_lease(self) -> None:
        """Return when the worker may act now."""
        if self._lost or not self._deck.lease.valid:
            raise RunLost

    def idle_seconds(self) -> float:
        """Return how long ago a former owner of the run could last have begun an attempt."""
        return max(0.0, self.clock.monotonic() - self._stopped_at)

    # What a stride asks (the Ground protocol)

    @property
    def is_waiting(self) -> bool:
        """Whether the pilot waits, has nothing to write, and would do nothing else with the outcome of a step than to write it."""
        if not self._waiting or self._wake.is_set() or self._mail or self._stopping or self._lost:
            return False
        is_free = not (self.hold.closed or self._proposals or self._marks or self._held)
        is_short = self._growth.is_short or not (self._growth.is_long or self._growth.is_full)
        is_plain = self._scribe.is_sync and not self._intake.holds_back
        return is_free and is_short and is_plain and self._outcome is None

    def wake(self) -> None:
        """Look at the run again."""
        self._wake.set()

    def step_of(self, command: RunStep) -> Step[..., Any] | None:
        """Return the step that is to be attempted here; None where it needs a second look."""
        if not self._machine.is_open(command.operation):
            return None
        try:
            self._check_called(command.operation)
            step = self._step(command.name)
        except NonDeterminismError:
            return None
        return step if step.is_simple and not self._remote.knows(command.operation) else None

    def turn(self, entries: list[tuple[Entry, StampedRow]]) -> list[Command]:
        """Deliver entries to the machine, from a plain callback; return what the workflow asks for then."""
        assert self._delivery is not None
        self._idle_since = None
        self._delivery.deliver_now(entries)
        for entry, stamped in entries:
            self._note_written(entry, stamped.at)
            self._growth.add(entry, len(stamped.row.body))
        self._crew.abandon_closed(self._machine.is_open)
        return self._machine.take_commands()

    def hand_over(self, commands: list[Command], error: BaseException | None = None) -> None:
        """Take over commands, or an error that ends the flight."""
        self._given += commands
        self._met = self._met or error
        self._wake.set()

    # Taking up

    async def _take_up(self) -> None:
        self._stride.enter()
        image = self._image or await self._read(lambda: self._deck.store.load(self.run_key))
        if image is None or image.head.epoch != self._head.epoch:
            raise RunLost
        if image.head.owner != self._deck.worker:
            raise RunLost
        self._scribe.head = image.head
        self._machine, delivery = self._new_machine()
        image = await self._accept(image)
        self._waits.recall(image.head.note)
        self._mail = self._mail or bool(image.messages) or image.head.mail
        self._mail_seen = max((one.number for one in image.messages), default=0)
        self._rows = {row.operation: row for row in image.operations}
        self._pending_approvals = {
            one.put.approval_id for one in image.approvals if one.state == "pending"
        }
        entries = [(from_row(stamped.row), stamped) for stamped in image.rows]
        started = entries[0][0] if entries else None
        if not isinstance(started, Started):
            raise DecodeError(
                "the run's journal does not begin with its start",
                run=self.run_key.run_id,
                hint="the store was changed by hand or is damaged",
            )
        check_build((entry for entry, _ in entries), self._deck.build, self.run_key.run_id)
        began = began_at((entry, stamped.at) for entry, stamped in entries)
        self._began = Began(started, began, self._head.generation)
        self._forgotten = await self._read(lambda: forgotten_of(self._deck.store, image.head))
        self._gate = Gate(started, self.run_key.run_id, self._head.generation)
        finder = Finder(
            self,
            self._deck,
            started,
            self._head.workflow,
            self._head.generation,
            self._gate.would_ask,
            self._read,
        )
        self.clearance = Clearance(self, self._deck, finder)
        self._scribe.begin(started.durability, delivery)
        self._elsewhere = asked_of_the_origin([entry for entry, _ in entries])
        if not any(isinstance(entry, RunTimedOut) for entry, _ in entries):
            self._waits.add_deadline(started, began, self.store_now())
        self._delivery = delivery
        # A run that was born here is there for the first time. Any other that is, begins with the entry that says so.
        await delivery.deliver(entries, heard=self._image is not None)
        self._remote = RemoteSteps(
            self, self._step, self._machine, self._waits, self._crew.begin, image.tasks
        )
        self._remote.drop_orphans()
        parent = self._machine.parent
        self._kin = Kin(started, self.run_key.run_id, parent.run_id if parent else "")
        for entry, stamped in entries:
            self._gate.note(entry)
            self.clearance.note(entry)
            self._kin.note(entry)
            self._alarms.add(entry, stamped.at)
            self._forgotten.note(entry, stamped.at)
            self.hold.note(entry)
            self._growth.add(entry, len(stamped.row.body))
        logger.info(
            "run %s: taken up, %d entries of workflow %s",
            self.run_key,
            len(entries),
            self._head.workflow,
        )
        self._image = None
        for saga in self._machine.would_undo:
            # A fork has it from its origin.
            if saga not in self._rows:
                self.post(Proposal(Rank.ROW, row=OperationPut(saga, SAGA, "")))
        if not any(isinstance(entry, Taken) for entry, _ in entries):
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            is_pinned = self._deck.registry.workflows[self._head.workflow].pin
            build = self._deck.build if is_pinned else ""
            taken = Taken(python=python, library=self._deck.library, build=build)
            self.post(Proposal(Rank.ARRIVAL, taken))

    async def _accept(self, image: RunImage) -> RunImage:
        """Write what an operator has accepted before anything is delivered: replay must know of it."""
        said = acceptances(image, self._machine)
        if not said:
            return image
        change, _, verdict = await self._scribe.write(said)
        if isinstance(verdict, Refused):
            # It is taken in later, as any other message is, and what is wrong with it told then.
            return image
        return after(image, change, verdict.at)

    def _new_machine(self) -> tuple[Machine, Delivery]:
        fresh = partial(
            Machine,
            self._deck.registry.workflows[self._head.workflow],
            tenant=self.run_key.tenant,
            run_id=self.run_key.run_id,
            generation=self._head.generation,
        )
        machine, make = fresh(), self._deck.check
        check = None if make is None else make(machine, fresh, self.run_key.run_id)
        return machine, Delivery(machine, self.clock, check)

    async def _read(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Read from the store, however long it is away."""
        while True:
            if self._lost:
                raise RunLost
            try:
                return await ask()
            except StoreUnavailableError as error:
                logger.warning(
                    "run %s: the store cannot be read, trying again: %s", self.run_key, error
                )
                await asyncio.sleep(_STORE_RETRY_SECONDS)

    # Moving

    async def _advance(self) -> None:
        while True:
            self._proposals += await self._stride.landed()
            self._check_flight()
            self._wake.clear()
            await self._scribe.look()
            self._sort_commands()
            await self._gather()
            if self._mail and self._yields:
                continue
            if self._outcome is not None and not self._crew.acts_in_vain(self._machine.is_open):
                self._propose_end()
            if self._proposals:
                self._publish()
                if await self._commit():
                    return
            elif await self._act_or_wait():
                return

    def _check_flight(self) -> None:
        """Return when the run can go on here."""
        if self._met is not None:
            raise self._met
        if self._lost or self._crew.lost:
            raise RunLost
        if self._crew.broken is not None:
            raise self._crew.broken
        if self._remote.poisoned is not None and not self._proposals:
            raise self._remote.poisoned

    @property
    def _yields(self) -> bool:
        """Whether an answer that came by now comes before something that is to be written."""
        return not self._is_rolling_over and any(one.yields for one in self._proposals)

    @property
    def _is_rolling_over(self) -> bool:
        """Whether only the end of the generation is to be written: what is unread then is for the next one."""
        return self._outcome is not None and isinstance(self._machine.outcome, ContinuedAsNew)

    def _propose_end(self) -> None:
        """Propose the end of the run, or of this generation of it.

        The end of a run does not stand beside an update, whose answer the machine has yet to give. When messages come faster than
        the end can be written, the run first takes no more of them.
        """
        outcome = self._machine.outcome
        assert outcome is not None
        if isinstance(outcome, ContinuedAsNew):
            self._proposals = [one for one in self._proposals if not is_for_the_next(one)]
            paused = self.hold.paused_by
            self.post(
                rolling_over(
                    self._machine, outcome, self._began, self.run_key, paused, self._elsewhere
                )
            )
        elif any(one.head for one in self._proposals):
            return
        elif self._crowded == _CROWDED:
            self._crowded += 1
            self._mail = True
            self.post(Proposal(Rank.END, head=HeadUpdate(status=Status.RUNNING, ending=True)))
        elif any(isinstance(one.entry, UpdateReceived) for one in self._proposals):
            self._crowded += 1
        else:
            self.post(ending(outcome))

    async def _act_or_wait(self) -> bool:
        """Do what there is to do when nothing is to be written; True when the run was given back."""
        if self._stopping:
            if self._may_give_back():
                await self._park(Status.PAUSED if self.hold.closed else Status.READY)
                return True
        elif self.hold.closed:
            if not (self._crew.attempting or self._deck.executor.acting(self.run_key)):
                await self._park(Status.PAUSED)
                return True
            self._publish()
        elif self._growth.is_full and self._machine.outcome is None:
            if await self._stop_growing():
                return True
        elif self._has_ended_saga and not any(_writes_first(one) for one in self._held):
            return await self._commit()
        elif self._held:
            self._carry_out()
            return False
        elif self._may_park():
            await self._park(self._resting_status())
            return True
        await self._wait()
        return False

    @property
    def _has_ended_saga(self) -> bool:
        """Whether a saga has ended whose row says that the run is inside it: until that is written, nobody may terminate the run."""
        return any(one.row is not None for one in self._marks)

    def _may_give_back(self) -> bool:
        if self._deck.executor.acting(self.run_key):
            if self._aborted:
                # A thread cannot be stopped, and while it acts nobody else may: keep the run until we die.
                raise RunLost
            return False
        return not self._crew.acting

    def _sort_commands(self) -> None:
        """Note what only waits, and hold what acts until everything that came before was delivered."""
        given, self._given = self._given, []
        for command in (*given, *self._machine.take_commands()):
            match command:
                case StartTimer():
                    self._waits.add_timer(command, self.store_now())
                case AwaitDecision():
                    self._waits.add_request(
                        command.operation, command.expires_at, command.approval_id
                    )
                    self._pending_approvals.add(command.approval_id)
                case AwaitRun():
                    self._waits.add_run(command.operation, command.run_id)
                case Abandon():
                    self._abandon(command)
                case AnswerUpdate():
                    self.post(answering(command, self._elsewhere))
                case NoteSaga(entry):
                    is_open = isinstance(entry, SagaEnded) and entry.operation in self._rows
                    drop = OperationDrop(entry.operation) if is_open else None
                    self._marks.append(Proposal(Rank.MARK, entry, row=drop))
                case MarkPatch():
                    marker = Patched(command.name, command.deprecated)
                    self._marks.append(Proposal(Rank.MARK, marker))
                case Finish():
                    self._outcome = command.outcome
                    self._warn_of_overtaken()
                case (
                    RunStep() | IntendEffect() | SettleEffect() | RequestApproval() | PublishValue()
                ):
                    self._held.append(command)
                case StartChild() | SendMessage() | WatchRun():
                    self._held.append(command)
                case _:
                    assert_never(command)

    def _warn_of_overtaken(self) -> None:
        if isinstance(self._outcome, Completed | ContinuedAsNew) and self._machine.overtaken:
            logger.warning(
                "run %s: its code returned or went on as new while %d of its messages were being handled; they were handled to their "
                "end, but the result, or the arguments of the next generation, know nothing of what they did after that; let the "
                "workflow first `await outlast.wait_condition(outlast.all_handlers_finished)`",
                self.run_key,
                self._machine.overtaken,
            )

    def _abandon(self, command: Abandon) -> None:
        operation = command.operation
        self._waits.forget(operation)
        self.clearance.forget(operation)
        self._crew.abandon(operation)
        self._remote.abandon(operation)
        if operation in self._rows:
            self.post(giving_up(self._rows[operation], self._head))
        if command.approval_id in self._pending_approvals:
            self.post(Proposal(Rank.ROW, approval=ApprovalWithdraw(command.approval_id)))

    async def _gather(self) -> None:
        """Propose what came from outside: messages, due timers, expired requests."""
        if not self._machine.begun:
            # What comes with the run's first claim is a turn after it, and its body was started before anything else came.
            return
        if self._growth.is_long and not self._growth.is_full and self._outcome is None:
            self.post(Proposal(Rank.ARRIVAL, self._growth.suggest()))
        if self._mail and not self._is_rolling_over:
            self._mail = False
            await self._read_mail()
        if self._machine.outcome is not None:
            self._waits.forget_deadline()
        now = self.store_now()
        until = self.hold.latest_due(now)
        if self.hold.closed:
            # It was proposed before the pause was read, and is not written: the change was refused, say.
            self._proposals = self._waits.take_back(self._proposals, until)
        for proposal in (
            self._waits.take_due(now, until) if until and not self._growth.is_full else ()
        ):
            self.post(proposal)
        if self._remote.doubtful:
            self._remote.look_again(await self._read(lambda: self._deck.store.tasks(self.run_key)))

    async def _read_mail(self) -> None:
        """Propose what the messages in the inbox mean to the run."""
        known = {one.consumed for one in self._proposals} | self._scribe.consumed
        latest = max((one.at for one in self._proposals if one.consumed and one.at), default=None)
        mail = await self._read(lambda: self._deck.store.mail(self.run_key))
        self._mail_seen = max([self._mail_seen or 0, *(one.number for one in mail)])
        unknown = [one for one in mail if one.message.message_id not in known]
        closing = self._outcome is not None
        generation = self._head.generation
        for stamped in self._intake.take(unknown, self._machine, closing=closing):
            kind = stamped.message.kind
            if not (closing or self.hold.admits(kind)):
                continue
            proposal = self._remote.proposal_of(stamped, generation) or proposal_of(
                stamped, self._machine, generation
            )
            self._remote.settle(proposal)
            if (beside := contradiction(proposal, stamped.message, self._machine)) is not None:
                self.post(beside)
            self._note_cleared(proposal)
            if proposal.at is not None:
                # Messages keep their order of arrival, whatever the wall clock did meanwhile.
                latest = proposal.at = max(proposal.at, latest or proposal.at)
            self.post(proposal)
            if kind is MessageKind.PAUSE:
                self.hold.expect(self._proposals)
        self.hold.expect(self._proposals)

    def _note_cleared(self, proposal: Proposal) -> None:
        """Let the row of an effect say no more that it is in doubt, and of no attempt since, when somebody clears the doubt.

        A compensation that had given up has all its attempts anew.
        """
        entry = proposal.entry
        if isinstance(entry, EffectCleared) and (row := self._rows.get(entry.operation)):
            found = self._machine.find(entry.operation)
            is_stuck = isinstance(found, EffectOperation) and found.is_stuck
            proposal.row = msgspec.structs.replace(
                row, in_doubt=False, begun_at=None, failures=0 if is_stuck else row.failures
            )

    def _beside(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Let the rows go that stand for what an operator has had undone, in the change that says that it is."""
        dropped = {one.row.operation for one in proposals if isinstance(one.row, OperationDrop)}
        beside: list[Proposal] = []
        for entry in (one.entry for one in proposals):
            is_end = isinstance(entry, EffectCompleted | EffectFailed | EffectRefused)
            if not is_end or not entry.operation.endswith("c"):
                continue
            undone = OperationId(entry.operation[:-1])
            row = self._rows.get(undone)
            if row is not None and row.kind == SAGA and undone not in dropped:
                beside.append(Proposal(Rank.ROW, row=OperationDrop(undone)))
        return beside

    async def _stop_growing(self) -> bool:
        """Let what is under way end, and begin nothing; True when the run was blocked: its journal is at its limit."""
        held = self._held
        # What is intended comes to its outcome, or into doubt; and what was done is undone.
        self._held = [one for one in held if _goes_on(one)]
        self._carry_out()
        self._held = [one for one in held if not _goes_on(one)]
        if self._proposals:
            return False
        if self._machine.unsettled and self._may_park():
            await self._park(Status.WAITING)
            return True
        is_acting = self._crew.acting or self._deck.executor.acting(self.run_key)
        if is_acting or self._machine.unsettled:
            await self._wait()
            return False
        error = self._growth.error(self.run_key.run_id)
        logger.error("run %s is blocked (%s): %s", self.run_key, HISTORY, error)
        await self._park(Status.BLOCKED, HISTORY, plain(error), room=self._growth.room())
        return True

    def _carry_out(self) -> None:
        held, self._held = self._held, []
        # Beside anything else, a step takes the way on which what was asked for before it is written before it returns.
        is_common = all(isinstance(one, RunStep) for one in held)
        for command in held:
            operation = command.operation
            if not self._machine.is_open(operation):
                continue
            self._check_called(operation)
            match command:
                case RunStep():
                    step = self._step(command.name)
                    is_begun = self._remote.begin(command, step)
                    if not (is_begun or (is_common and self._stride.begin(command, step))):
                        self._crew.begin(operation, run_step(self, command, step))
                case IntendEffect():
                    self._intend(command)
                case SettleEffect():
                    effect = self._deck.registry.effects.get(command.name)
                    lost = self._gate.attempted_before(command.intent)
                    fresh = operation in self._intended_here and lost is None
                    self._intended_here.discard(operation)
                    known = self._known(effect, command.name)
                    past = Past(fresh=fresh, lost=lost, forgotten=self._forgotten.of(operation))
                    settling = EffectRun(self, command, known, past)
                    self._crew.begin(operation, settling.run())
                case RequestApproval():
                    self._ask(command)
                case PublishValue():
                    self.post(publishing(command))
                case StartChild() | SendMessage() | WatchRun():
                    self._proposals += self._kin.ask(command, self._head)

    def _publish(self) -> None:
        """Let what was published ride with what is written next, the end of the run or a pause say."""
        held, self._held = self._held, []
        for command in held:
            if isinstance(command, PublishValue):
                self.post(publishing(command))
            else:
                self._held.append(command)

    def _check_called(self, operation: OperationId) -> None:
        """Return unless the workflow called one thing, and another would be run that the same code has made under its name."""
        found = self._machine.find(operation)
        if isinstance(found, StepOperation | EffectOperation | ChildOperation):
            try:
                self._deck.registry.check(found.request.definition)
            except DefinitionError as error:
                raise NonDeterminismError(
                    error.message, run=self.run_key.run_id, step=found.request.name, hint=error.hint
                ) from error

    def _step(self, name: str) -> Step[..., Any]:
        return self._known(self._deck.registry.steps.get(name), name)

    def _known(self, definition: Any, name: str) -> Any:
        if definition is None:
            raise NonDeterminismError(
                f"the workflow calls {name!r}, which this app did not register",
                run=self.run_key.run_id,
                step=name,
                hint="import the module that declares it before outlast.open()",
            )
        return definition

    def _intend(self, command: IntendEffect) -> None:
        effect = self._known(self._deck.registry.effects.get(command.name), command.name)
        answer = self._answer_at_once(command, effect)
        called = self._machine.find(command.operation)
        assert isinstance(called, EffectOperation)
        request = called.request
        if answer is None and (found := self.clearance.quick(command, request, effect)):
            answer = self._gate.ask(command, self._head.epoch, found)
        if answer is None:
            self._crew.begin(command.operation, self._find_out(command, request, effect))
        else:
            self._take(command, answer)

    def _answer_at_once(self, command: IntendEffect, effect: Effect[..., Any]) -> Answer | None:
        """Return what becomes of an effect about which nothing has to be found out."""
        epoch = self._head.epoch
        late = self._refused_for_time(command, effect)
        return (
            self._gate.settled(command, epoch)
            if late is None
            else self._gate.refused(late, command, epoch)
        )

    async def _find_out(
        self, command: IntendEffect, request: EffectRequest, effect: Effect[..., Any]
    ) -> None:
        """Have an effect intended as soon as everybody was asked who may say no, or refused; at the end of its time, too."""
        found: Found | OutlastError | None = None
        limit = effect.options.schedule_to_close_timeout
        deadline = self.deadline(command.operation, command.scheduled_at, limit)
        left = None if deadline is None else deadline.left(self.store_now()).total_seconds()
        time = asyncio.timeout(left)
        with self._crew.ask(command.operation):
            try:
                async with time:
                    if (pause := self.clearance.pause(command.operation)) > 0:
                        await asyncio.sleep(pause)
                    found = await self.clearance.find(command, request, effect)
            except TimeoutError:
                if not time.expired():
                    raise
        answer = None if self._begins_nothing else self._answer_at_once(command, effect)
        if self._begins_nothing or (answer is None and found is None):
            # What was found is old when the run goes on.
            self._held.append(command)
            self._wake.set()
            return
        if answer is None:
            assert found is not None
            epoch = self._head.epoch
            answer = (
                self._gate.refuse(found, command, epoch)
                if isinstance(found, OutlastError)
                else self._gate.ask(command, epoch, found)
            )
        self._take(command, answer)

    @property
    def _begins_nothing(self) -> bool:
        return self.hold.closed or self._growth.is_full

    def _take(self, command: IntendEffect, answer: Answer) -> None:
        """Have the gate's answer written."""
        guard = command.operation
        match answer:
            case Leave(intent, spends, permit):
                row = self._saga_of(intent)
                self.clearance.proposed(command, permit)
                intending = Proposal(Rank.INTENT, intent, guard=guard, spends=spends, row=row)
                intending.permit = permit
                self.post(intending)
            case Ask(request, sticky):
                self.clearance.forget(guard)
                self._ask(request, None if sticky is None else unstuck_of(sticky, command))
            case Settled(intent, outcome):
                log_known(self.run_key, outcome)
                row = self._saga_of(intent)
                self.post(Proposal(Rank.INTENT, intent, guard=guard, row=row))
                self.post(Proposal(Rank.OUTCOME, outcome, guard=guard))
            case Doubtful(intent, doubt):
                log_doubt(self.run_key, doubt, intent)
                saga = self._saga_of(intent)
                self.post(Proposal(Rank.INTENT, intent, guard=guard, row=saga))
                row = OperationPut(guard, "effect", command.name, in_doubt=True)
                self.post(Proposal(Rank.OUTCOME, doubt, guard=guard, row=row))
            case EffectRefused() as refusal:
                self.post(Proposal(Rank.OUTCOME, refusal, guard=guard))

    def _ask(self, command: RequestApproval, unstuck: Unstuck | None = None) -> None:
        """Have a request written.

        Args:
            unstuck: What becomes of one that is answered by a decision which does not stick any more when it is written.
        """
        started = self._began.started
        requesters = tuple(dict.fromkeys((started.principal, *started.requesters)))
        for proposal in asking(command, self.store_now(), requesters):
            proposal.unstuck = unstuck
            self.post(proposal)
        if unstuck is not None:
            return
        barred = frozenset(command.barred)
        if command.terms.four_eyes:
            barred |= frozenset(command.requesters or requesters)
        role = command.terms.rung(command.rung).role
        self._deck.holders.look(self.run_key, self._head.workflow, role, barred)

    def _saga_of(self, intent: EffectIntended) -> OperationPut | None:
        """Return the row that says that the run is inside a saga which may have something to undo, where it is not there yet."""
        if not (intent.saga and intent.compensation) or intent.saga in self._rows:
            return None
        return OperationPut(intent.saga, SAGA, "")

    def _refused_for_time(self, command: IntendEffect, effect: Any) -> EffectRefused | None:
        limit = effect.options.schedule_to_close_timeout
        deadline = self.deadline(command.operation, command.scheduled_at, limit)
        if deadline is None or not deadline.is_over(self.store_now()):
            return None
        entry = EffectRefused(command.operation, command.name, expired(effect, 0))
        if not command.compensates:
            log_failed(self.run_key, entry)
        return entry

    # Writing

    async def _commit(self) -> bool:
        """Write the proposals as one change and deliver it; True when the run was given back or has ended."""
        sifted = sift(self._proposals, self._machine.is_open)
        self._proposals = sifted.later
        beside = self._beside(sifted.now)
        proposals = in_order([*sifted.now, *beside, *(too_late(one) for one in sifted.extra)])
        if not (proposals or self._has_ended_saga):
            return False
        proposals = [*self._marks, *proposals]
        self._marks = []
        if self._scribe.may_see(proposals):
            await self._see(proposals)
            sifted.drop()
            return False
        change, entries, verdict = await self._scribe.write(proposals)
        if isinstance(verdict, Refused):
            self.refused(proposals, verdict)
            self._proposals += sifted.needless
            return False
        await self._applied(change, proposals, entries, verdict)
        sifted.drop()
        self._ended = change.head is not None and change.head.status.closed
        return change.head is not None and change.head.release

    async def _see(self, proposals: list[Proposal]) -> None:
        """Let the run go on with what will be written later."""
        for proposal in proposals:
            if proposal.row is not None:
                self._rows.pop(proposal.row.operation, None)
        await self._deliver(self._scribe.see(proposals, self.store_now()))
        self._crew.abandon_closed(self._machine.is_open)

    async def _applied(
        self,
        change: RunChange,
        proposals: Sequence[Proposal],
        entries: list[tuple[Entry, StampedRow]],
        verdict: Applied,
    ) -> None:
        if verdict.outbox or change.outbox:
            self._deck.relay.wake(self.run_key)
        for row in change.operations:
            if isinstance(row, OperationPut):
                self._rows[row.operation] = row
            else:
                self._rows.pop(row.operation, None)
        self._pending_approvals.update(
            one.approval_id for one in change.approvals if isinstance(one, ApprovalPut)
        )
        self._remote.written(change, self._head.generation, verdict.at)
        self._intended_here.update(
            # Only in these hands: after a crash, an attempt may have been made since the effect was cleared.
            entry.operation
            for entry, _ in entries
            if isinstance(entry, EffectIntended | EffectCleared)
        )
        await self._deliver(entries)
        for proposal in proposals:
            proposal.settle(verdict)
        self._crew.abandon_closed(self._machine.is_open)

    async def _deliver(self, entries: list[tuple[Entry, StampedRow]]) -> None:
        """Let the run see what came, and note what that means to it."""
        assert self._delivery is not None
        self._idle_since = None
        await self._delivery.deliver(entries, live=True)
        for entry, stamped in entries:
            self._note_written(entry, stamped.at)
            self._growth.add(entry, len(stamped.row.body))
        is_freed = self.hold.expect(self._proposals)
        self._mail = self._mail or is_freed or self._intake.wants_more(self._machine)

    def _note_written(self, entry: Entry, at: datetime) -> None:
        if isinstance(entry, StepCompleted):
            # Most entries are that, and of all who take notes it concerns these.
            self._alarms.add(entry, at)
            self._waits.forget(entry.operation)
            return
        known = len(self._alarms.standing)
        self._gate.note(entry)
        self.clearance.note(entry)
        self._kin.note(entry)
        self._alarms.add(entry, at)
        self._forgotten.note(entry, at)
        self.hold.note(entry)
        for one in self._alarms.standing[known:]:
            log_alarm(self.run_key, one)
        operation = getattr(entry, "operation", NO_OPERATION)
        if operation and not self._machine.is_open(operation):
            self._waits.forget(operation)
            self.clearance.forget(operation)
            self._unwritten.pop(operation, None)
        elif isinstance(entry, (EffectCleared, *_DECISIONS)):
            # Its attempts have their time anew, or nobody's answer to that request is waited for any more.
            self._waits.forget(operation)
        if isinstance(entry, Completed | Failed | Cancelled | ContinuedAsNew):
            log_end(self.run_key, entry)
        elif isinstance(entry, ContinueSuggested):
            log_long(self.run_key, entry)

    def refused(self, proposals: list[Proposal], refused: Refused) -> None:
        """Take the refused part out and put the others back, as they were."""
        now = self.store_now()
        kept = [one for one in proposals if not is_refused(one, refused, now)]
        if len(kept) == len(proposals):
            raise refused_by_store(self.run_key, refused)
        self._proposals.extend(one.whole or one for one in kept)
        for proposal in proposals:
            if is_refused(proposal, refused, now):
                self._drop_refused(proposal, refused)
        self._mail = self.hold.expect(self._proposals) or self._mail

    def _drop_refused(self, proposal: Proposal, refused: Refused) -> None:
        proposal.settle(refused)
        entry = proposal.entry
        if proposal.permit is not None and refused.reason in ASK_AGAIN:
            if (command := self.clearance.refused(proposal.permit, refused.reason)) is not None:
                self._held.append(command)
            return
        if proposal.unstuck is not None and refused.reason == STUCK:
            if isinstance(entry, ApprovalRequested):
                self._held.append(proposal.unstuck.command)
            return
        if isinstance(entry, EffectIntended):
            refusal = self._gate.refusal(entry, refused.reason)
            self.post(Proposal(Rank.OUTCOME, refusal, guard=entry.operation))
            return
        if isinstance(entry, ApprovalExpired) and refused.reason == "not_due":
            # The clock was set back in between.
            self._waits.add_request(entry.operation, self._expiry(entry), entry.approval_id)
        self._crowded += refused.reason == "mail"
        self._remote.refused(proposal)
        self._mail = True

    def _expiry(self, entry: ApprovalExpired) -> datetime:
        soon = self.store_now() + timedelta(milliseconds=50)
        found = self._machine.find(entry.operation)
        is_asking = isinstance(found, ApprovalOperation | EffectOperation)
        requested = found.asking.current if is_asking else None
        return soon if requested is None else max(soon, requested.expires_at)

    # Waiting, parking, leaving

    async def _wait(self) -> None:
        """Wait until something happens, or the next due time."""
        seconds = LOOK_AT_BACKLOG_SECONDS if self._intake.holds_back else LOOK_AGAIN_SECONDS
        due = None if self.hold.closed or self._growth.is_full else self._waits.next_due()
        if due is not None:
            seconds = min(seconds, max(0.0, (due - self.store_now()).total_seconds()))
        seconds = min(seconds, self._idle_rest())
        self._waiting = True
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting = False
        if self._wake.is_set():
            self._idle_since = None

    def _idle_rest(self) -> float:
        """Note since when the run only waits; return after how many seconds it may be parked for that."""
        if not self._is_idle():
            self._idle_since = None
            return math.inf
        now, idle = self.clock.monotonic(), self._deck.idle.total_seconds()
        is_new = self._idle_since is None
        since = self._idle_since = now if self._idle_since is None else self._idle_since
        # The end less now, and not the time less what has passed of it: after waiting that long the end has come, in floats too.
        rest = (since + idle) - now
        # What could not be parked after that time waits for something else.
        return rest if not self._stopping and (is_new or rest > 0) else math.inf

    def _is_idle(self) -> bool:
        holds = bool(self._held) and not self._growth.is_full
        return not (self._crew.attempting or holds) and self._outcome is None

    def _may_park(self) -> bool:
        """Whether the run has only waited for a while, and will for a while longer."""
        if self._idle_since is None or not self._is_idle():
            return False
        idle = self._deck.idle
        if self.clock.monotonic() - self._idle_since < idle.total_seconds() * 0.99:
            return False
        wake_at = self._waits.wake_at()
        return wake_at is None or wake_at - self.store_now() > idle

    def _resting_status(self) -> Status:
        waits = self._waits or self._machine.waiting_for_others()
        is_stopped = self._machine.in_doubt and not waits
        return Status.BLOCKED if is_stopped or self._machine.stuck else Status.WAITING

    async def _park(self, status: Status, reason: str = "", error: str = "", **noted: Any) -> None:
        """Give the run back.

        Args:
            reason: Of a blocked one; an effect is in doubt by default.
            error: Why, in words. Nothing but an operator's word wakes it then.
            noted: For `explain`, what else is to be known.
        """
        if status is Status.BLOCKED:
            reason = reason or ("compensation failed" if self._machine.stuck else "in doubt")
        self._publish()
        signals, updates = self._machine.handled
        note = {
            **(Waits() if error else self._waits).note(),
            "signals": [*self._machine.mailbox.awaited, *signals],
            "updates": updates,
            "untaken": self._machine.mailbox.untaken,
            "in_doubt": self._machine.in_doubt,
            "alarms": [f"{one.what} {one.about}".strip() for one in self._alarms.standing],
            **noted,
        }
        blocked = self._blocked_by(reason, error) if status is Status.BLOCKED else ()
        note = {**note, NOTED: blocked} if blocked else note
        head = HeadUpdate(
            status=status,
            reason=reason,
            wake_at=None if error or status is Status.PAUSED else self._waits.wake_at(),
            release=True,
            # What is left in the inbox offers the run to nobody.
            ignore_mail=self._intake.holds_back,
            mail_seen=self._mail_seen,
            note=msgspec.json.encode({**note, "error": error} if error else note),
        )
        # An attempt of these was about to begin, and none did.
        begins = self.hold.beginning | self._not_begun()
        rows = unbegun(begins, self._machine, self._rows, self.store_now())
        await self._crew.end()
        for proposal in (*rows, Proposal(Rank.END, head=head)):
            self.post(proposal)
        while not await self._commit():
            if self._lost:
                raise RunLost
        if not (self._ended or error):
            log_parked(self.run_key, status, note)
        if blocked and not self._ended:
            self._tell(blocked, reason, error or "; ".join(self._machine.in_doubt.values()))

    def _blocked_by(self, reason: str, error: str) -> tuple[str | int, ...]:
        """Return what one reason to be blocked has that another has not: its words, or the places of the doubts."""
        if error:
            return reason, error
        found = map(self._machine.find, map(OperationId, self._machine.in_doubt))
        places = (one.doubt for one in found if isinstance(one, EffectOperation))
        return reason, *sorted(one for one in places if one is not None)

    def _tell(self, blocked: tuple[str | int, ...], reason: str, why: str) -> None:
        """Tell the app that the run is blocked, unless it was told of this before."""
        if blocked == self._told:
            return
        key = self.run_key
        self._deck.parking.tell(
            Parked(key.tenant, key.run_id, self._head.workflow, reason, plain(why))
        )

    def _not_begun(self) -> set[OperationId]:
        """Return what was intended here and is not carried out yet; nobody knows that of what the origin of a fork may have begun."""
        begun = {
            one.operation
            for one in self._held
            if isinstance(one, SettleEffect) and self._gate.attempted_before(one.intent)
        }
        return {one.operation for one in self._held} & self._intended_here - begun

    async def _block(self, reason: str, error: Exception, *, unfit_build: str = "") -> None:
        """Leave the run to an operator, or to a worker with other code."""
        why = plain(error)
        logger.error("run %s is blocked (%s): %s", self.run_key, reason, why)
        await self._crew.end()
        while self._deck.executor.acting(self.run_key) and not self._lost:
            # Whoever takes the run up must not meet a thread of ours that still acts.
            await self._deck.executor.returned(self.run_key, within=1.0)
        for proposal in self._proposals:
            proposal.drop()
        self._proposals.clear()
        if self._mail_seen is None:
            messages = await self._read(lambda: self._deck.store.mail(self.run_key))
            self._mail_seen = max((one.number for one in messages), default=0)
        head = HeadUpdate(
            status=Status.BLOCKED,
            reason=reason,
            release=True,
            ignore_mail=True,
            mail_seen=self._mail_seen,
            unfit_build=unfit_build,
            note=msgspec.json.encode({"error": why, NOTED: (reason, why)}),
        )
        # An entry ends the count of lapses: a run that a message sends on gets as many tries again.
        entry = alarm("poison", NO_OPERATION, {"error": why}) if reason == "poison" else None
        verdict = await self._scribe.write_last(Proposal(Rank.END, entry, head=head))
        if not isinstance(verdict, Applied):
            logger.warning("run %s: could not be marked as blocked: %s", self.run_key, verdict)
            self._lost = True
            return
        self._tell((reason, why), reason, why)

    async def _leave(self) -> None:
        """Let go of everything in memory."""
        self._stride.leave()
        for proposal in self._proposals:
            proposal.drop()
        await self._crew.end()
        for attempt, end in self._unwritten.values():
            self._deck.deposits.put(attempt, end)
        await self._scribe.leave()
        if self._delivery is not None:
            await self._delivery.evict()


def _writes_first(command: _Acting) -> bool:
    """Whether something is written when it is carried out, before anything acts."""
    return not isinstance(command, RunStep | SettleEffect)


def _goes_on(command: _Acting) -> bool:
    """Whether it is carried out although the journal is at its limit."""
    return isinstance(command, SettleEffect) or (
        isinstance(command, IntendEffect) and bool(command.compensates)
    )
