"""A run seen from outside: wait, look, send, cancel, resolve."""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw

from outlast.client.port import Port
from outlast.client.view import (
    Generation,
    JournalEntry,
    RunDetail,
    RunStatus,
    cancel_in,
    generation_of,
    not_found,
    place_in,
    status_of,
    view_of,
)
from outlast.effects.intent import Resolution
from outlast.effects.standing import alarms, standings
from outlast.errors import (
    DecodeError,
    DefinitionError,
    OutlastError,
    RunCancelledError,
    RunConflictError,
    RunNotFoundError,
    RunTerminatedError,
    StoreError,
    WorkflowFailedError,
)
from outlast.journal.codec import codec_for
from outlast.journal.entry import (
    Cancelled,
    Completed,
    Entry,
    Failed,
    from_row,
)
from outlast.journal.failure import Failure, rebuild
from outlast.journal.parse import read
from outlast.store.change import (
    Applied,
    Message,
    MessageKind,
    PutMessage,
    Refused,
    RunKey,
    Status,
    Terminate,
    Verdict,
)
from outlast.workflows.definition import Workflow
from outlast.workflows.message import Signal

R = TypeVar("R")
T = TypeVar("T")

_GENERATIONS = 6
"""How many of them a run's detail has."""


class RunHandle(Generic[R]):
    """A run, seen from outside. Made by `Client.start` and `Client.handle`.

    Args:
        workflow: Known when the run was started through a call: gives the result its type.
    """

    def __init__(
        self, client: Port, run: RunKey, workflow: Workflow[..., Any] | None = None
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

        That of the last generation, where the run continues as new. A handle made by id alone returns plain JSON data.

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
            case Failed() | Cancelled():
                raise self._ended(last.failure, [from_row(one.row) for one in rows])
            case _:
                raise StoreError(
                    f"the run is {head.status} and its journal does not say how it ended",
                    run=self.id,
                )

    async def status(self) -> RunStatus:
        """Return where the run stands.

        Raises:
            RunNotFoundError: There is no such run.
        """
        return status_of(await self._client.head(self._run))

    @overload
    async def send(self, signal: Signal[None], *, id: str = ...) -> None: ...
    @overload
    async def send(self, signal: Signal[T], value: T, *, id: str = ...) -> None: ...
    @overload
    async def send(self, signal: str, value: Any = ..., *, id: str = ...) -> None: ...
    async def send(self, signal: Signal[Any] | str, value: Any = None, *, id: str = "") -> None:
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
        message_id = f"signal/{id or self._client.new_id()}"
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
        generation: int | None = None,
    ) -> None:
        """Say what became of an operation: of an effect in doubt, or of a step that cannot succeed.

        Args:
            operation: Its id, as `r:3`.
            applied: It happened, and this is its result (plain data, as JSON holds it; None is a result too).
            not_applied: It did not happen; the effect is attempted again.
            failed: It failed for good, with this message.
            reason: Why you say so; kept in the journal.
            generation: The one that you looked at: operations of others have the same ids. The present one by default.
        """
        if (applied is not UNSET) + not_applied + bool(failed) != 1:
            raise DefinitionError(
                "an outcome is one thing", hint="give one of applied=, not_applied=True and failed="
            )
        head = await self._client.head(self._run)
        outcome = "not_applied" if not_applied else "failed" if failed else "applied"
        resolution = Resolution(
            operation=operation,
            generation=generation or head.generation,
            outcome=outcome,
            value=Raw(
                codec_for(Any, where="the outcome").encode(None if applied is UNSET else applied)
            ),
            failure=Failure(type="RuntimeError", message=failed) if failed else None,
            by=self._client.principal,
            reason=reason,
        )
        message_id = f"resolve/{self._client.new_id()}"
        await self._put(
            message_id, MessageKind.RESOLUTION, operation, msgspec.json.encode(resolution)
        )

    async def accept(
        self, *, entry: int | None = None, history: int | None = None, reason: str
    ) -> None:
        """Let something pass that stops the run; it is recorded before the run is looked at again.

        Args:
            entry: Position in the journal of an effect's intent, whose recorded arguments may stand although the code of today
                asks with others. Kind and name must be the same.
            history: So many entries the journal of this generation may have; its bytes in proportion.
            reason: Why; kept in the journal.

        Raises:
            DefinitionError: Nothing is named, there is no such intent, or the journal is as long already.
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended.
        """
        head = await self._client.head(self._run)
        if entry is None and history is None:
            raise DefinitionError("nothing is named to accept", hint="give entry= or history=")
        if history is not None and history <= head.next_seq:
            raise DefinitionError(
                f"the journal has {head.next_seq} entries, and {history} would be no room for more",
                run=self.id,
                hint="give a larger number",
            )
        if entry is not None:
            await self._check_intent(entry, head.generation)
        said = {"generation": head.generation, "entry": entry, "history": history}
        body = msgspec.json.encode({**said, "by": self._client.principal, "reason": reason})
        await self._put(f"accept/{self._client.new_id()}", MessageKind.ACCEPT, "", body)

    async def _check_intent(self, entry: int, generation: int) -> None:
        rows = await self._client.store.journal(self._run, generation=generation)
        kind = rows[entry].row.kind if 0 <= entry < len(rows) else ""
        if kind != "effect_intended":
            raise DefinitionError(
                f"entry {entry} is {kind}, and no intent of an effect"
                if kind
                else f"there is no entry {entry}",
                run=self.id,
                hint="name the entry that the error of the blocked run names; see `outlast runs journal`",
            )

    async def generations(self, *, limit: int = 100) -> list[Generation]:
        """Return the run's generations, the present one first."""
        head = await self._client.head(self._run)
        rows = await self._client.store.generations(self._run, limit=limit)
        return [generation_of(row, head) for row in rows]

    async def journal(self, *, generation: int | None = None) -> list[JournalEntry]:
        """Return the journal of the present generation, or of another one.

        Raises:
            RunNotFoundError: There is no such run, or no such generation of it.
        """
        await self._client.head(self._run)
        rows = await self._client.store.journal(self._run, generation=generation)
        if not rows:
            raise RunNotFoundError(
                f"there is no generation {generation} of the run",
                run=self.id,
                hint="leave it out for the present one; `outlast runs show` lists them",
            )
        return [JournalEntry(one.row.seq, one.row.turn, one.at, from_row(one.row)) for one in rows]

    async def detail(self) -> RunDetail:
        """Return everything that is stored about the run, whatever state it is in.

        Raises:
            RunNotFoundError: There is no such run.
        """
        store = self._client.store
        image = await store.load(self._run)
        if image is None:
            raise not_found(self._run)
        entries: list[JournalEntry] = []
        for one in image.rows:
            # A run that is blocked because of such an entry must be explicable all the same.
            with contextlib.suppress(DecodeError):
                entries.append(JournalEntry(one.row.seq, one.row.turn, one.at, from_row(one.row)))
        written = [one.entry for one in entries]
        live = [one.row for one in await store.workers() if one.live]
        return RunDetail(
            status=status_of(image.head),
            entries=entries,
            unreadable=len(image.rows) - len(entries),
            operations=standings([(one.entry, one.at) for one in entries], image.operations),
            approvals=[view_of(row) for row in image.approvals if row.state == "pending"],
            unread=len(image.messages),
            now=store.now(),
            fitting=[row.worker for row in live if image.head.workflow in row.workflows],
            attended=any(row.worker == image.head.owner for row in live),
            alarms=alarms((one.entry, one.at) for one in entries),
            place=place_in(written),
            cancelled_by=cancel_in(written),
            generations=[
                generation_of(row, image.head)
                for row in await store.generations(self._run, limit=_GENERATIONS)
            ],
        )

    async def _put(self, message_id: str, kind: MessageKind, name: str, body: bytes) -> None:
        message = Message(message_id, kind, name, self._client.principal, body)
        self._check(await self._client.commit(PutMessage(self._run, message)))

    def _check(self, verdict: Verdict) -> None:
        match verdict:
            case Applied():
                return
            case Refused(reason="not_found"):
                raise not_found(self._run)
            case Refused(reason="closed"):
                raise RunConflictError(
                    "the run has ended", run=self.id, hint="see `outlast runs show`"
                )
            case _:
                raise StoreError(f"the store answered {verdict}", run=self.id)

    def _decode(self, value: Raw) -> Any:
        if self._workflow is None:
            return read(bytes(value), "the run's result")
        return self._workflow.result.decode(bytes(value))

    def _ended(self, failure: Failure, entries: list[Entry]) -> OutlastError:
        cause = rebuild(failure)
        said = f"{failure.type}: {failure.message}"
        if isinstance(entries[-1], Failed):
            place = place_in(entries)
            text = f"the run failed: {said}" + (f", raised {place}" if place else "")
            error: OutlastError = WorkflowFailedError(text, run=self.id)
        elif isinstance(cause, CancelledError) and (asked := cancel_in(entries)):
            error = RunCancelledError(f"the run was cancelled {asked}", run=self.id)
        else:
            error = RunCancelledError(f"the run was cancelled: {said}", run=self.id)
        if isinstance(cause, OutlastError):
            error.hint = cause.hint
        error.__cause__ = cause
        return error
