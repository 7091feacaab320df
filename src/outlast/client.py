"""The outside of a run: start it, send to it, look at it, decide for it, end it.

A client belongs to one tenant. It writes unowned changes only, so it needs no worker; the same change sent twice has one effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw

from outlast.approvals.decision import REFUSALS, Decision
from outlast.clock import Random
from outlast.effects.intent import Resolution
from outlast.effects.key import check_run_id, check_tenant, namespace
from outlast.effects.standing import Standing, standings
from outlast.errors import (
    DecisionRefusedError,
    DecodeError,
    DefinitionError,
    NoWorkerWarning,
    RunCancelledError,
    RunConflictError,
    RunNotFoundError,
    RunTerminatedError,
    StoreCorruptError,
    StoreError,
    WorkflowFailedError,
)
from outlast.journal.codec import codec_for
from outlast.journal.entry import (
    ApprovalRequested,
    Cancelled,
    Completed,
    Entry,
    Failed,
    StampedRow,
    Started,
    Taken,
    from_row,
    to_row,
)
from outlast.journal.failure import Failure, rebuild
from outlast.store.change import (
    Applied,
    ApprovalRow,
    Change,
    Conflict,
    Decide,
    Message,
    MessageKind,
    PutMessage,
    Refused,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Unknown,
    Verdict,
    WorkerId,
)
from outlast.store.protocol import Store
from outlast.workflows.call import Call
from outlast.workflows.definition import Workflow
from outlast.workflows.message import Signal

R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("outlast.client")

IfClosed: TypeAlias = Literal["attach", "refuse", "restart"]
"""What starting the id of a closed run means: look at that run, an error, or a new run under the same id."""

_UNKNOWN_WAIT_SECONDS = 0.1
_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 2.0
_NO_WORKER_AFTER = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Birth:
    """What lets a client hand new runs to a worker of its own process.

    Args:
        submit: Writes a change together with what the worker's runs write.
        owner: Returns the worker that a new run of this workflow is born claimed by.
        adopt: Gives it the run.
        taken: The entry that says so.
    """

    submit: Callable[[Change], Awaitable[Verdict]]
    owner: Callable[[str], WorkerId | None]
    adopt: Callable[[RunHead, tuple[StampedRow, ...]], None]
    taken: Taken


class RunStatus(msgspec.Struct, frozen=True):
    """Where a run stands.

    Args:
        reason: Why it is blocked, or how it ended.
        waits: What it waits for: timers, approvals, retries, signals, effects in doubt.
        worker: Who has it in memory.
    """

    run_id: str
    workflow: str
    status: Status
    reason: str
    generation: int
    entries: int
    created_at: datetime
    changed_at: datetime
    wake_at: datetime | None
    worker: str | None
    waits: dict[str, Any]


class JournalEntry(msgspec.Struct, frozen=True):
    """One entry of a run's journal, to be looked at."""

    seq: int
    turn: int
    at: datetime
    entry: Entry


class RunDetail(msgspec.Struct, frozen=True):
    """Everything about a run that can be seen from outside, read at one moment.

    Args:
        entries: The journal of the present generation; entries that cannot be read are left out.
        unreadable: How many were.
        operations: Steps and effects that are open and left a trace.
        approvals: Requests that nobody has decided.
        unread: Messages that the run has not taken in.
        now: The store's time.
        fitting: Live workers that have registered the run's workflow.
        attended: Whether the worker that has the run in memory lives.
    """

    status: RunStatus
    entries: list[JournalEntry]
    unreadable: int
    operations: list[Standing]
    approvals: list[ApprovalView]
    unread: int
    now: datetime
    fitting: list[str]
    attended: bool


class RunHandle(Generic[R]):
    """A run, seen from outside. Made by `Client.start` and `Client.handle`.

    Args:
        workflow: Known when the run was started through a call: gives the result its type.
    """

    def __init__(
        self, client: Client, run: RunKey, workflow: Workflow[..., Any] | None = None
    ) -> None:
        self._client = client
        self._run = run
        self._workflow = workflow

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.run_id

    async def result(self) -> R:
        """Wait for the end, and return what the workflow returned.

        A handle made by id alone returns plain JSON data.

        Raises:
            WorkflowFailedError: The workflow raised; the cause is that exception.
            RunCancelledError: It was cancelled, or an approval expired.
            RunTerminatedError: An operator ended it.
            RunNotFoundError: There is no such run.
        """
        head = await self._client.wait_closed(self._run)
        if head.status is Status.TERMINATED:
            raise RunTerminatedError(
                f"the run was terminated: {head.reason}",
                run=self.id,
                hint="start it again with if_closed='restart'",
            )
        rows = await self._client.store.journal(self._run, generation=head.generation)
        last = from_row(rows[-1].row)
        match last:
            case Completed():
                return self._decode(last.value)
            case Failed():
                raise self._ended(WorkflowFailedError, "failed", last.failure)
            case Cancelled():
                raise self._ended(RunCancelledError, "was cancelled", last.failure)
            case _:
                raise StoreError(
                    f"the run is {head.status} and its journal does not say how it ended", run=self.id
                )

    async def status(self) -> RunStatus:
        """Return where the run stands.

        Raises:
            RunNotFoundError: There is no such run.
        """
        return status_of(await self._client.head(self._run))

    async def send(self, signal: Signal[T] | str, value: T | Any = None, *, id: str = "") -> None:  # noqa: A002
        """Send a message; it is accepted when this returns, and delivered once.

        Args:
            signal: A `Signal`, or its name.
            id: The same id again is the same message; random by default.

        Raises:
            EncodeError: The value does not fit the signal's type.
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended.
        """
        if isinstance(signal, Signal):
            name, body = signal.name, signal.codec.encode(value)
        else:
            name, body = signal, codec_for(Any, where=f"signal {signal!r}").encode(value)
        message_id = id or f"signal/{self._client.new_id()}"
        await self._put(message_id, MessageKind.SIGNAL, name, body)

    async def cancel(self, reason: str = "") -> None:
        """Ask the run to stop and clean up. An effect that was intended is settled first."""
        body = msgspec.json.encode({"by": self._client.principal, "reason": reason})
        await self._put(f"cancel/{self._client.new_id()}", MessageKind.CANCEL, "", body)

    async def terminate(self, reason: str = "") -> None:
        """End the run without running it: no clean-up. Works on any run, however large or broken."""
        verdict = await self._client.commit(
            Terminate(self._run, by=self._client.principal, reason=reason)
        )
        self._check(verdict)

    async def resolve(
        self,
        operation: str,
        *,
        applied: Any = UNSET,
        not_applied: bool = False,
        failed: str = "",
        reason: str = "",
    ) -> None:
        """Say what became of an operation: of an effect in doubt, or of a step that cannot succeed.

        Args:
            operation: Its id, as `r:3`.
            applied: It happened, and this is its result (plain data, as JSON holds it; None is a result too).
            not_applied: It did not happen; the effect is attempted again.
            failed: It failed for good, with this message.
            reason: Why you say so; kept in the journal.
        """
        if (applied is not UNSET) + not_applied + bool(failed) != 1:
            raise DefinitionError(
                "an outcome is one thing", hint="give one of applied=, not_applied=True and failed="
            )
        head = await self._client.head(self._run)
        outcome = "not_applied" if not_applied else "failed" if failed else "applied"
        resolution = Resolution(
            operation=operation,
            generation=head.generation,
            outcome=outcome,
            value=Raw(codec_for(Any, where="the outcome").encode(None if applied is UNSET else applied)),
            failure=Failure(type="RuntimeError", message=failed) if failed else None,
            by=self._client.principal,
            reason=reason,
        )
        message_id = f"resolve/{self._client.new_id()}"
        await self._put(
            message_id, MessageKind.RESOLUTION, operation, msgspec.json.encode(resolution)
        )

    async def journal(self) -> list[JournalEntry]:
        """Return the journal of the present generation."""
        await self._client.head(self._run)
        rows = await self._client.store.journal(self._run)
        return [
            JournalEntry(one.row.seq, one.row.turn, one.at, from_row(one.row)) for one in rows
        ]

    async def detail(self) -> RunDetail:
        """Return everything that is stored about the run, whatever state it is in.

        Raises:
            RunNotFoundError: There is no such run.
        """
        store = self._client.store
        image = await store.load(self._run)
        if image is None:
            raise _not_found(self._run)
        entries: list[JournalEntry] = []
        for one in image.rows:
            # A run that is blocked because of such an entry must be explicable all the same.
            with contextlib.suppress(DecodeError):
                entries.append(JournalEntry(one.row.seq, one.row.turn, one.at, from_row(one.row)))
        live = [one.row for one in await store.workers() if one.live]
        return RunDetail(
            status=status_of(image.head),
            entries=entries,
            unreadable=len(image.rows) - len(entries),
            operations=standings([(one.entry, one.at) for one in entries], image.operations),
            approvals=[_view(row) for row in image.approvals if row.state == "pending"],
            unread=len(image.messages),
            now=store.now(),
            fitting=[row.worker for row in live if image.head.workflow in row.workflows],
            attended=any(row.worker == image.head.owner for row in live),
        )

    async def _put(self, message_id: str, kind: MessageKind, name: str, body: bytes) -> None:
        message = Message(message_id, kind, name, self._client.principal, body)
        self._check(await self._client.commit(PutMessage(self._run, message)))

    def _check(self, verdict: Verdict) -> None:
        match verdict:
            case Applied():
                return
            case Refused(reason="not_found"):
                raise _not_found(self._run)
            case Refused(reason="closed"):
                raise RunConflictError(
                    "the run has ended", run=self.id, hint="see `outlast runs show`"
                )
            case _:
                raise StoreError(f"the store answered {verdict}", run=self.id)

    def _decode(self, value: Raw) -> Any:
        if self._workflow is None:
            return msgspec.json.decode(value)
        return self._workflow.result.decode(bytes(value))

    def _ended(self, kind: type[Any], how: str, failure: Failure) -> Exception:
        cause = rebuild(failure)
        error = kind(f"the run {how}: {failure.type}: {failure.message}", run=self.id)
        error.__cause__ = cause
        return error


class Client:
    """Starts runs and looks at them, for one tenant.

    Args:
        principal: Who acts, for the record.
        birth: A worker of the same process, for runs that it can take at once.
    """

    def __init__(
        self,
        store: Store,
        *,
        random: Random,
        tenant: str = "default",
        principal: str = "",
        birth: Birth | None = None,
    ) -> None:
        self.store = store
        self.tenant = check_tenant(tenant)
        self.principal = principal
        self._random = random
        self._birth = birth
        self._waiters: dict[RunKey, list[asyncio.Event]] = {}

    @property
    def runs(self) -> Runs:
        """The tenant's runs."""
        return Runs(self)

    @property
    def approvals(self) -> Approvals:
        """The tenant's approvals."""
        return Approvals(self)

    async def start(
        self, call: Call[R], *, id: str, if_closed: IfClosed = "attach"  # noqa: A002 - the field's word
    ) -> RunHandle[R]:
        """Start a run, or attach to the one that has this id already.

        Args:
            call: Of a workflow, as `fix(finding)`.
            id: Comes from the event that triggers the work, so that the same event starts one run.
            if_closed: What a closed run of this id means.

        Raises:
            RunConflictError: The id belongs to a run of another workflow or with other input; or it is closed and
                `if_closed="refuse"`.
            EncodeError: An argument cannot be stored; nothing was written.
        """
        callee = call.callee
        if not isinstance(callee, Workflow):
            raise DefinitionError(
                f"{call!r} is not a call of a workflow", hint="start what @workflow decorates"
            )
        workflow = cast("Workflow[..., R]", callee)
        run = RunKey(self.tenant, check_run_id(id))
        arguments = workflow.arguments.encode(call.args, call.kwargs)
        generation = 1
        while True:
            verdict = await self._start(run, workflow, arguments, generation)
            if not isinstance(verdict, Conflict):
                break
            assert verdict.head is not None
            if self._attaches(verdict.head, workflow, arguments, if_closed):
                break
            generation = verdict.head.generation + 1
        return RunHandle(self, run, workflow)

    async def run(
        self, call: Call[R], *, id: str, if_closed: IfClosed = "attach"  # noqa: A002 - the field's word
    ) -> R:
        """Start a run, wait for its end, and return its result. See `start` and `RunHandle.result`."""
        handle = await self.start(call, id=id, if_closed=if_closed)
        return await handle.result()

    def handle(self, id: str, workflow: Workflow[..., R] | None = None) -> RunHandle[R]:  # noqa: A002
        """Return a handle of a run that exists, or may exist.

        Args:
            workflow: Gives the result its type.
        """
        return RunHandle(self, RunKey(self.tenant, check_run_id(id)), workflow)

    async def head(self, run: RunKey) -> RunHead:
        """Return the run's row.

        Raises:
            RunNotFoundError: There is none.
        """
        head = await self.store.head(run)
        if head is None:
            raise _not_found(run)
        return head

    async def commit(self, change: Change) -> Verdict:
        """Write one unowned change; one whose fate is unknown is sent again."""
        if self._birth is not None:
            return await self._birth.submit(change)
        while True:
            (verdict,) = await self.store.commit([change])
            if not isinstance(verdict, Unknown):
                return verdict
            await asyncio.sleep(_UNKNOWN_WAIT_SECONDS)

    def new_id(self) -> str:
        """Return a random id, for what has no event to take one from."""
        return self._random.bits(12).hex()

    async def wait_closed(self, run: RunKey) -> RunHead:
        """Wait until the run has ended, and return its row. Says so when no worker lives that could run it."""
        woken = asyncio.Event()
        self._waiters.setdefault(run, []).append(woken)
        unsubscribe = None if self._birth else self.store.subscribe(woken.set)
        poll, waited = _FIRST_POLL_SECONDS, 0.0
        try:
            while not (head := await self.head(run)).status.closed:
                woken.clear()
                try:
                    async with asyncio.timeout(poll):
                        await woken.wait()
                except TimeoutError:
                    before, waited = waited, waited + poll
                    limit = _NO_WORKER_AFTER.total_seconds()
                    if before < limit <= waited:
                        await self._say_when_no_worker(head)
                    poll = min(poll * 2, _LONGEST_POLL_SECONDS)
            return head
        finally:
            if unsubscribe is not None:
                unsubscribe()
            self._waiters[run].remove(woken)
            if not self._waiters[run]:
                del self._waiters[run]

    def closed(self, run: RunKey) -> None:
        """Wake those who wait for the end of this run."""
        for woken in self._waiters.get(run, ()):
            woken.set()

    async def _start(
        self, run: RunKey, workflow: Workflow[..., Any], arguments: bytes, generation: int
    ) -> Verdict:
        started = Started(
            name=workflow.name,
            arguments=Raw(arguments),
            seed=self._random.bits(16),
            namespace=namespace(run.tenant, run.run_id, generation),
            principal=self.principal,
        )
        owner = self._birth.owner(workflow.name) if self._birth else None
        entries: list[Entry] = [started]
        if owner is not None and self._birth is not None:
            entries.append(self._birth.taken)
        rows = tuple(to_row(entry, seq, seq) for seq, entry in enumerate(entries))
        change = StartRun(
            run=run,
            workflow=workflow.name,
            fingerprint=_fingerprint(workflow.name, arguments),
            entries=rows,
            generation=generation,
            worker=owner,
        )
        verdict = await self.commit(change)
        if isinstance(verdict, Applied) and owner is not None and self._birth is not None:
            head = _born(change, verdict)
            self._birth.adopt(head, tuple(StampedRow(row, verdict.at) for row in rows))
        return verdict

    def _attaches(
        self, head: RunHead, workflow: Workflow[..., Any], arguments: bytes, if_closed: IfClosed
    ) -> bool:
        """Whether an existing run is the one that is meant; False when a new generation is to be started."""
        if head.status.closed and if_closed == "restart":
            return False
        if head.fingerprint != _fingerprint(workflow.name, arguments):
            what = (
                "other input" if head.workflow == workflow.name else f"the workflow {head.workflow}"
            )
            raise RunConflictError(
                f"the id is taken by a run with {what}",
                run=head.run.run_id,
                hint="an id stands for one event: derive it from what makes this work different",
            )
        if head.status.closed and if_closed == "refuse":
            raise RunConflictError(
                f"a run of this id has ended as {head.status}",
                run=head.run.run_id,
                hint="use if_closed='attach' for its result, or 'restart' for a new run",
            )
        return True

    async def _say_when_no_worker(self, head: RunHead) -> None:
        if head.status not in {Status.READY, Status.RUNNING, Status.WAITING}:
            return
        workers = await self.store.workers()
        if any(one.live and head.workflow in one.row.workflows for one in workers):
            return
        text = (
            f"run {head.run} waits, and no live worker has registered workflow {head.workflow!r}. "
            "Start one: `outlast worker MODULE`, or use outlast.open() instead of outlast.connect()."
        )
        logger.warning(text)
        warnings.warn(NoWorkerWarning(text), stacklevel=2)


class Runs:
    """The runs of a tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self,
        *,
        statuses: frozenset[Status] = frozenset(),
        workflow: str = "",
        limit: int = 100,
        before: RunStatus | None = None,
    ) -> list[RunStatus]:
        """Return a page of runs, newest first.

        Args:
            before: The last one of the page before.
        """
        heads = await self._client.store.heads(
            self._client.tenant,
            statuses=statuses,
            workflow=workflow,
            limit=limit,
            before=(before.created_at, before.run_id) if before else None,
        )
        return [status_of(head) for head in heads]


class ApprovalView(msgspec.Struct, frozen=True):
    """An approval, to be looked at.

    Args:
        subject: What is asked: `{"subject": …, "covers": […]}`, exactly what is hashed.
        state: `pending`, `approved`, `denied`, `expired` or `withdrawn`.
        spent: The operation that each cover was spent to, or an empty string.
        genuine: Whether the subject has the hash.
    """

    run_id: str
    approval_id: str
    role: str
    state: str
    subject: Any
    subject_sha256: str
    requested_at: datetime
    expires_at: datetime
    use_by: datetime
    spent: tuple[str, ...]
    by: str = ""
    decided_at: datetime | None = None
    genuine: bool = True


class Approvals:
    """The approvals of a tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, *, pending: bool = True, run_id: str = "") -> list[ApprovalView]:
        """Return approvals, oldest first."""
        run = RunKey(self._client.tenant, run_id) if run_id else None
        rows = await self._client.store.approvals(self._client.tenant, pending=pending, run=run)
        return [_view(row) for row in rows]

    async def get(self, run_id: str, approval_id: str = "") -> ApprovalView:
        """Return one approval of a run.

        Args:
            approval_id: May be left out when exactly one is pending.

        Raises:
            DecisionRefusedError: There is none, or it is not clear which.
            StoreCorruptError: What is stored does not have the hash under which it is asked.
        """
        found = await self.list(pending=not approval_id, run_id=run_id)
        if approval_id:
            found = [one for one in found if one.approval_id == approval_id]
        if len(found) == 1:
            if not found[0].genuine:
                raise StoreCorruptError(
                    f"request {found[0].approval_id} shows something else than what its hash says",
                    run=run_id,
                    hint="decide nothing; the store was changed by hand or is damaged: `outlast doctor`",
                )
            return found[0]
        ids = ", ".join(one.approval_id for one in found)
        raise DecisionRefusedError(
            f"{len(found)} requests of this run wait: {ids}" if found else "no such request waits",
            reason="ambiguous" if found else "unknown",
            run=run_id,
            hint="name one of them" if found else "see `outlast approvals list`",
        )

    async def approve(
        self, run_id: str, approval_id: str, *, seen_sha256: str, reason: str = ""
    ) -> None:
        """Say yes to exactly what was shown.

        Args:
            seen_sha256: The hash of what the approver saw.

        Raises:
            DecisionRefusedError: Late, decided already, for another hash, or for no request.
        """
        await self._decide(run_id, approval_id, seen_sha256, reason, approved=True)

    async def deny(
        self, run_id: str, approval_id: str, *, seen_sha256: str, reason: str = ""
    ) -> None:
        """Say no. See `approve`."""
        await self._decide(run_id, approval_id, seen_sha256, reason, approved=False)

    async def _decide(
        self, run_id: str, approval_id: str, seen_sha256: str, reason: str, *, approved: bool
    ) -> None:
        by = self._client.principal
        view = await self.get(run_id, approval_id)
        decision = Decision(
            approval_id=approval_id,
            operation=approval_id.partition("~")[2],
            approved=approved,
            by=by,
            reason=reason,
            subject_sha256=seen_sha256,
        )
        word = "approve" if approved else "deny"
        change = Decide(
            run=RunKey(self._client.tenant, view.run_id),
            approval_id=approval_id,
            seen_sha256=seen_sha256,
            approved=approved,
            by=by,
            message=Message(
                f"{word}/{approval_id}/{by}",
                MessageKind.DECISION,
                approval_id,
                by,
                msgspec.json.encode(decision),
            ),
        )
        verdict = await self._client.commit(change)
        if isinstance(verdict, Refused):
            raise DecisionRefusedError(
                f"the decision was not accepted: {REFUSALS.get(verdict.reason, verdict.reason)}",
                reason=verdict.reason,
                run=run_id,
                hint="look at the request as it is now: `outlast approvals show`",
            )


def status_of(head: RunHead) -> RunStatus:
    """Return a run's row as people see it."""
    return RunStatus(
        run_id=head.run.run_id,
        workflow=head.workflow,
        status=head.status,
        reason=head.reason,
        generation=head.generation,
        entries=head.next_seq,
        created_at=head.created_at,
        changed_at=head.changed_at,
        wake_at=head.wake_at,
        worker=head.owner,
        waits=msgspec.json.decode(head.note) if head.note else {},
    )


def _view(row: ApprovalRow) -> ApprovalView:
    entry = msgspec.json.decode(row.put.body, type=ApprovalRequested)
    return ApprovalView(
        run_id=row.run.run_id,
        approval_id=row.put.approval_id,
        role=row.put.role,
        state=row.state,
        subject=msgspec.json.decode(entry.subject),
        subject_sha256=row.put.subject_sha256,
        requested_at=row.requested_at,
        expires_at=row.put.expires_at,
        use_by=row.put.use_by,
        spent=row.spent,
        by=row.by,
        decided_at=row.decided_at,
        genuine=hashlib.sha256(bytes(entry.subject)).hexdigest() == row.put.subject_sha256,
    )


def _fingerprint(workflow: str, arguments: bytes) -> str:
    return hashlib.sha256(workflow.encode() + b"\0" + arguments).hexdigest()


def _born(change: StartRun, verdict: Applied) -> RunHead:
    return RunHead(
        run=change.run,
        generation=change.generation,
        workflow=change.workflow,
        fingerprint=change.fingerprint,
        status=Status.RUNNING,
        reason="",
        owner=change.worker,
        epoch=verdict.epoch,
        version=0,
        next_seq=len(change.entries),
        digest=b"",
        wake_at=None,
        mail=True,
        lapses=0,
        created_at=verdict.at,
        changed_at=verdict.at,
    )


def _not_found(run: RunKey) -> RunNotFoundError:
    return RunNotFoundError(
        "there is no such run", run=run.run_id, hint="see `outlast runs list`, and check the database"
    )
