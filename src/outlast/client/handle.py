"""A run seen from outside: wait, look, send, cancel, resolve."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw

from outlast.client.access import check_run
from outlast.client.doubt import said, seen_in
from outlast.client.explain import Explanation, explain
from outlast.client.fork import ForkRequest, latest_retry
from outlast.client.fork import fork as fork_run
from outlast.client.fork import retry as retry_run
from outlast.client.mail import mail_of
from outlast.client.port import Port
from outlast.client.query import BUDGET
from outlast.client.query import ask as ask_query
from outlast.client.task import task_views
from outlast.client.terminate import end_at_once
from outlast.client.text import typed
from outlast.client.update import check_accepted, result_of, signal_message, update_message
from outlast.client.use import last_generation
from outlast.client.view import (
    Generation,
    JournalEntry,
    RunDetail,
    RunStatus,
    cancel_in,
    deadline_in,
    durability_in,
    generation_of,
    not_found,
    pause_in,
    place_in,
    room_in,
    status_of,
    time_out_in,
    view_of,
)
from outlast.effects.key import DEFAULT_TENANT
from outlast.effects.standing import alarms, standings
from outlast.errors import (
    DecodeError,
    DefinitionError,
    OutlastError,
    RunNotFoundError,
    StoreError,
)
from outlast.journal.codec import codec_for
from outlast.journal.end import cancelled, failed, terminated
from outlast.journal.entry import (
    Cancelled,
    Completed,
    EffectPolicy,
    Entry,
    Failed,
    Published,
    from_row,
)
from outlast.journal.failure import Failure
from outlast.journal.parse import read
from outlast.store.change import (
    Message,
    MessageKind,
    PutMessage,
    Refused,
    RunHead,
    RunKey,
    Status,
    Verdict,
)
from outlast.workflows.definition import Workflow
from outlast.workflows.message import Signal, Update
from outlast.workflows.query import Query

R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")

_GENERATIONS = 6
"""How many of them a run's detail has."""


class RunHandle(Generic[R]):
    """A run, seen from outside. Made by `Client.start` and `Client.handle`.

    That of `start` stands for the run that was found or begun there. When the id is started anew later, its `result` is still that of
    its own run, and what it sends or asks for is refused: it never reaches the other run. What only looks (`status`, `explain`,
    `journal`, `query` and so on) shows the run that has the id now; and so does everything that a handle of `Client.handle` does.

    Args:
        workflow: Known when the run was started through a call: gives the result its type.
        incarnation: The generation that began the run; 0 for whichever run has the id.

    Example:
        ```python
        import outlast

        GO = outlast.Signal("go", str)

        @outlast.workflow
        async def wait() -> str:
            return await outlast.receive(GO)

        async with outlast.open("memory://") as app:
            handle = await app.start(wait(), id="w")
            await handle.send(GO, "now")
            assert await handle.result() == "now"
            assert [type(one.entry).__name__ for one in await handle.journal()][-1] == "Completed"
        ```
    """

    def __init__(
        self,
        client: Port,
        run: RunKey,
        workflow: Workflow[..., Any] | None = None,
        *,
        incarnation: int = 0,
    ) -> None:
        self._client = client
        self._run = run
        self._workflow = workflow
        self._incarnation = incarnation

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.run_id

    async def result(self) -> R:
        """Wait for the end, and return what the workflow returned.

        That of the last generation, where the run continues as new. A handle made by id alone waits for the run that has the id when
        this is called, and returns plain JSON data.

        Raises:
            WorkflowFailedError: The workflow raised; the cause is that exception.
            RunCancelledError: It was cancelled, or an approval expired.
            RunTerminatedError: An operator ended it.
            RunNotFoundError: There is no such run.
        """
        store = self._client.store
        await check_run(self._client, "read", self._run)
        incarnation = self._incarnation or (await self._client.head(self._run)).incarnation
        head = await self._client.wait_closed(self._run, incarnation)
        is_former = head.incarnation > incarnation
        if head.status is Status.TERMINATED and not is_former:
            raise terminated(self.id, head.reason)
        generation = (
            await last_generation(store, head, incarnation) if is_former else head.generation
        )
        # A failure is told with the place in the journal from which it comes.
        known = head.next_seq - 2 if head.status is Status.COMPLETED and not is_former else -1
        rows = await store.journal(self._run, generation=generation, after=known)
        last = from_row(rows[-1].row) if rows else None
        match last:
            case Completed():
                return self._decode(last.value)
            case Failed() | Cancelled():
                raise self._ended(last.failure, [from_row(one.row) for one in rows])
            case _ if is_former:
                # The reason stood in the row of the run, which is that of the next one by now.
                raise terminated(self.id, "", is_former=True)
            case _:
                raise StoreError(
                    f"the run is {head.status} and its journal does not say how it ended",
                    run=self.id,
                )

    async def status(self) -> RunStatus:
        """Return where the run stands.

        Raises:
            RunNotFoundError: There is no such run.
            NotAuthorisedError: Whoever acts may not read it.
        """
        await check_run(self._client, "read", self._run)
        return status_of(await self._client.head(self._run))

    @overload
    async def send(self, signal: Signal[None], *, id: str = ..., early: bool = ...) -> None: ...
    @overload
    async def send(
        self, signal: Signal[T], value: T, *, id: str = ..., early: bool = ...
    ) -> None: ...
    @overload
    async def send(
        self, signal: str, value: Any = ..., *, id: str = ..., early: bool = ...
    ) -> None: ...
    async def send(
        self, signal: Signal[Any] | str, value: Any = None, *, id: str = "", early: bool = False
    ) -> None:
        """Send a message; it is accepted when this returns, and delivered once.

        Args:
            signal: A `Signal`, or its name.
            id: The same id again is the same message; random by default.
            early: Accept it also when there is no such run yet: it waits for the first run of that id.

        Raises:
            EncodeError: The value does not fit the signal's type.
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended; or it has a message under this id with another name or value, and that one counts.
            InboxFullError: The run has 10,000 messages that it has not taken in.

        Example:
            ```python
            import outlast

            go = outlast.Signal("go", int)

            @outlast.workflow
            async def wait() -> int:
                return await outlast.receive(go)

            async with outlast.open("memory://") as app:
                handle = await app.start(wait(), id="w-1")
                await handle.send(go, 4, id="mail-17")
                await handle.send(go, 4, id="mail-17")  # the same message: nothing happens
                assert await handle.result() == 4
            ```
        """
        message = signal_message(self._client, signal, value, id)
        await check_run(self._client, "message", self._run)
        await self._deliver(message, early=early)

    @overload
    async def update(self, update: Update[None, A], *, id: str = ...) -> A: ...
    @overload
    async def update(self, update: Update[T, A], value: T, *, id: str = ...) -> A: ...
    @overload
    async def update(self, update: str, value: Any = ..., *, id: str = ...) -> Any: ...
    async def update(
        self, update: Update[Any, Any] | str, value: Any = None, *, id: str = ""
    ) -> Any:
        """Send an update, wait until the run has answered it, and return the result.

        Every update that was accepted is answered, also when the run is parked, moves to another worker, or ends. Giving up the wait
        does not take the update back; the same id again waits for the same answer.

        Args:
            update: An `Update`, or its name; by name the result is plain JSON data.
            id: The same id again is the same update; random by default.

        Raises:
            UpdateRejectedError: The run said no, or ended before; nothing of the update was done. The cause is what the validator
                raised.
            UpdateFailedError: The handler raised; the cause is that exception.
            RunCancelledError: The run was cancelled while it handled the update.
            RunConflictError: The run has ended, or was terminated before it answered; or it has an update under this id with another
                name or value.
            RunNotFoundError: There is no such run.
            InboxFullError: The run has 10,000 messages that it has not taken in.
            EncodeError: The value does not fit the update's type.

        Example:
            ```python
            import outlast

            add = outlast.Update("add", int, int)

            @outlast.workflow
            async def count() -> int:
                total = 0

                def put(number: int) -> int:
                    nonlocal total
                    total += number
                    return total

                outlast.on_update(add, put)
                await outlast.wait_condition(lambda: total >= 5)
                return total

            async with outlast.open("memory://") as app:
                handle = await app.start(count(), id="c-1")
                assert await handle.update(add, 2) == 2
                assert await handle.update(add, 3) == 5
                assert await handle.result() == 5
            ```
        """
        message = update_message(self._client, update, value, id)
        await check_run(self._client, "message", self._run)
        await self._deliver(message)
        return await result_of(self._client, self._run, update, message)

    async def cancel(self, reason: str = "") -> None:
        """Ask the run to stop and clean up. An effect that was intended is settled first.

        Example:
            ```python
            import asyncio

            import outlast

            @outlast.workflow
            async def wait() -> str:
                try:
                    await outlast.sleep(3600)
                except asyncio.CancelledError:
                    return "cleaned up"  # caught and not raised again, a cancel is over
                return "done"

            async with outlast.open("memory://") as app:
                handle = await app.start(wait(), id="w-1")
                await handle.cancel("not needed any more")
                assert await handle.result() == "cleaned up"
            ```
        """
        await self._ask(MessageKind.CANCEL, reason)

    async def pause(self, reason: str = "") -> None:
        """Ask that the run begin nothing until it is resumed.

        What is being attempted then ends and is recorded; no other attempt begins, no timer fires, and messages wait in the inbox.
        The run is `paused` when its last attempt has ended. A cancel ends the pause, and so does a resume.

        Raises:
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended.

        Example:
            ```python
            import asyncio

            import outlast


            @outlast.step
            async def greet(name: str) -> str:
                return f"hello {name}"


            @outlast.workflow
            async def greet_later(name: str) -> str:
                await outlast.sleep(0.05)
                return await greet(name)


            async def main() -> None:
                async with outlast.open("memory://") as app:
                    handle = await app.start(greet_later("Ada"), id="greeting-1")
                    await handle.pause("maintenance")
                    while (await handle.status()).status != "paused":
                        await asyncio.sleep(0.01)
                    await handle.resume("done")
                    assert await handle.result() == "hello Ada"


            asyncio.run(main())
            ```
        """
        await self._ask(MessageKind.PAUSE, reason)

    async def resume(self, reason: str = "") -> None:
        """Let a paused run go on: with what came due and what it was sent meanwhile, in the order in which that came.

        Raises:
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended.
        """
        await self._ask(MessageKind.RESUME, reason)

    async def terminate(self, reason: str = "", *, abandon_compensation: bool = False) -> None:
        """End the run without running it: no clean-up. Works on any run, however large or broken.

        Args:
            abandon_compensation: Also in the middle of a saga: what was done in it stays, and the reason names it.

        Raises:
            OpenCompensationsError: Effects of a saga would not be undone, and nobody has said that they may stay. `cancel` undoes them.
            RunNotFoundError: There is no such run.
            RunConflictError: It has ended.

        Example:
            ```python
            import outlast

            @outlast.workflow
            async def wait() -> None:
                await outlast.sleep(3600)

            async with outlast.open("memory://") as app:
                handle = await app.start(wait(), id="w-1")
                await handle.terminate("it runs on old data")
                try:
                    await handle.result()
                except outlast.RunTerminatedError as error:
                    assert "old data" in error.message
            ```
        """
        await check_run(self._client, "resume", self._run)
        self._check(
            await end_at_once(
                self._client,
                self._run,
                reason,
                incarnation=self._incarnation,
                abandon_compensation=abandon_compensation,
            )
        )

    async def resolve(  # noqa: PLR0913 - what is said, of what, and by whom
        self,
        operation: str,
        *,
        applied: Any = UNSET,
        not_applied: bool = False,
        failed: str = "",
        compensate: bool = False,
        result: Any = UNSET,
        reason: str = "",
        generation: int | None = None,
        doubt: int | None = None,
        id: str = "",
    ) -> None:
        """Say what became of an operation: of an effect in doubt, or of a step that cannot succeed.

        What is said of an effect is said of the doubt that stands when this is called. Should it be settled meanwhile, and the effect be in
        doubt again, that is another doubt, and what was said is put aside. For many runs at once see `client.runs.resolve`.

        Args:
            operation: Its id, as `r:3`.
            applied: It happened, and this is its result (plain data, as JSON holds it; None is a result too).
            not_applied: It did not happen; the effect is attempted again.
            failed: It failed for good, with this message. A compensation that was given up is left at that.
            compensate: Have it undone, whether it happened or not, by the effect that it declares as `compensate=`.
            result: With that, where what undoes it takes `result`: what it returned, or would have. Refused where it takes none.
            reason: Why you say so; kept in the journal.
            generation: The one that you looked at: operations of others have the same ids. The present one by default.
            doubt: Position in the journal of the doubt that you looked at (`Standing.doubt`); by default the one that stands.
            id: The same id again is the same word on the operation. By default the same outcome, said again of the same doubt, is.

        Raises:
            DefinitionError: It is not one outcome; nothing undoes the effect; or `result` is missing, or nothing takes it.
            EncodeError: The result cannot be stored.
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended.

        Example:
            ```python
            import asyncio
            from datetime import timedelta

            import outlast

            @outlast.effect(start_to_close_timeout=timedelta(milliseconds=10), settle=timedelta(0))
            async def pay(amount: int) -> str:
                raise ConnectionError("the bank did not answer")  # was it paid?

            @outlast.workflow
            async def order(amount: int) -> str:
                return await pay(amount)

            async with outlast.open("memory://", idle=timedelta(milliseconds=10)) as app:
                handle = await app.start(order(30), id="o-1")
                while (await handle.status()).reason != "in doubt":
                    await asyncio.sleep(0.01)
                await handle.resolve("r:1", applied="receipt-17", reason="found in the bank's list")
                assert await handle.result() == "receipt-17"
            ```
        """
        what = said(
            applied=applied,
            not_applied=not_applied,
            failed=failed,
            compensate=compensate,
            result=result,
            reason=reason,
        )
        await check_run(self._client, "resume", self._run)
        head = await self._client.head(self._run)
        generation = generation or head.generation
        # An operation of another generation cannot be in doubt; the run will say so.
        is_present = generation == head.generation
        image = await self._client.store.load(self._run) if is_present else None
        seen = seen_in(image, operation)
        seen.check(what, self.id, operation)
        position = seen.doubt if doubt is None else doubt
        by = self._client.principal
        if position is None:
            id = id or self._client.new_id()
        resolution = what.of(by, operation, generation, position)
        await self._deliver(what.message(resolution, seen.put_aside, by, id))

    async def fork(
        self,
        position: int | None = None,
        *,
        id: str,
        reason: str,
        outcome: tuple[str, Any] | None = None,
        effects: EffectPolicy = "refuse",
        generation: int | None = None,
    ) -> RunHandle[R]:
        """Begin a new run with what this one did up to a position, and return its handle. This run is only read.

        The new run knows the outcomes of the effects that this one settled later: an equal call gets its outcome, and nothing is
        attempted. The same holds of children that ended later, and of messages that this run sent. It inherits no approval, and no
        message that came later. See `docs/forks.md`.

        Args:
            position: The number of an entry of the journal; those before it are kept. All that can be, by default.
            id: Of the new run. The same fork under the same id is the same run.
            reason: Why; kept in the new run's journal.
            outcome: Instead of a position: a step's operation and the value that it is to have returned, as `("r:3", 5)`. What stands
                before its outcome is kept. Plain data, as JSON holds it.
            effects: What becomes of an effect whose outcome this run does not know: `refuse` it with a `ForkedEffectError`, or make it
                under the `same_key` that this run would have used, or under a `new_key`. Of a child that is open: refuse it, wait for
                that very run, or start another one. Of a message that this run did not send: refuse it, or send it.
            generation: Of this id; the present one by default.

        Raises:
            RunNotFoundError: There is no such run, or no such generation of it.
            DefinitionError: No fork can begin there, or it is not said why.
            RunConflictError: The id is taken by another run.

        Example:
            ```python
            import outlast

            @outlast.step
            async def price(item: str) -> int:
                return 30

            @outlast.workflow
            async def offer(item: str) -> str:
                return f"{item} for {await price(item)}"

            async with outlast.open("memory://") as app:
                origin = await app.start(offer("lamp"), id="offer-1")
                assert await origin.result() == "lamp for 30"
                fork = await origin.fork(outcome=("r:1", 25), id="offer-1b", reason="as a discount")
                assert await fork.result() == "lamp for 25"
            ```
        """
        asked = ForkRequest(id, reason, position, outcome, effects)
        await check_run(self._client, "fork", self._run)
        if generation is None:
            await self._check_present()
        run = await fork_run(self._client, self._run, asked, generation)
        return RunHandle(self._client, run, self._workflow, incarnation=1)

    async def retry(
        self, *, id: str = "", reason: str, effects: EffectPolicy = "same_key"
    ) -> RunHandle[R]:
        """Do again what made this run fail, be cancelled or be terminated, in a fork that keeps what was done before.

        Finished steps are not repeated, and effects that were completed have their outcome. One that failed is made again, under
        the same key. An approval that was given and not used is asked for again. Children that failed, were cancelled or were
        terminated are retried with it.

        Args:
            id: Of the new run; `<id>/retry-<n>` by default, and then it takes up what the last of these retries has come to.
            reason: Why; kept in the new run's journal.
            effects: See `fork`.

        Raises:
            RunConflictError: The run, or its last retry, has not ended, or it has a result; or a child is still to end with it.
            RunNotFoundError: There is no such run.

        Example:
            ```python
            import outlast

            counter = {"up": False, "counted": 0}

            @outlast.step
            async def count() -> int:
                counter["counted"] += 1
                return 2

            @outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
            async def ask(number: int) -> int:
                if not counter["up"]:
                    raise ConnectionError("the service is down")
                return number * 2

            @outlast.workflow
            async def report() -> int:
                return await ask(await count())

            async with outlast.open("memory://") as app:
                failed = await app.start(report(), id="report-1")
                try:
                    await failed.result()
                except outlast.WorkflowFailedError:
                    counter["up"] = True
                again = await failed.retry(reason="the service is up again")
                assert (await again.result(), again.id, counter["counted"]) == (4, "report-1/retry-1", 1)
            ```
        """
        await check_run(self._client, "fork", self._run)
        await self._check_present()
        run = await retry_run(self._client, self._run, id=id, reason=reason, effects=effects)
        return RunHandle(self._client, run, self._workflow, incarnation=1)

    async def accept(
        self,
        *,
        entry: int | None = None,
        history: int | None = None,
        any_build: bool = False,
        reason: str,
    ) -> None:
        """Let something pass that stops the run; it is recorded before the run is looked at again.

        Args:
            entry: Position in the journal of an effect's intent, whose recorded arguments may stand although the code of today
                asks with others. Kind and name must be the same.
            history: So many entries the journal of this generation may have; its bytes in proportion. `explain` names a number that is
                room for as much again.
            any_build: Workers of any build may move this generation from now on, although its workflow is pinned.
            reason: Why; kept in the journal.

        Raises:
            DefinitionError: Nothing is named, there is no such intent, or the journal is as long already, in entries or in bytes.
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended.
        """
        await check_run(self._client, "resume", self._run)
        head = await self._client.head(self._run)
        if entry is None and history is None and not any_build:
            raise DefinitionError(
                "nothing is named to accept", hint="give entry=, history= or any_build=True"
            )
        if history is not None:
            self._check_room(history, head)
        if entry is not None:
            await self._check_intent(entry, head.generation)
        said = {
            "generation": head.generation,
            "entry": entry,
            "history": history,
            "any_build": any_build,
        }
        body = msgspec.json.encode({**said, "by": self._client.principal, "reason": reason})
        await self._put(f"accept/{self._client.new_id()}", MessageKind.ACCEPT, "", body)

    def _check_room(self, history: int, head: RunHead) -> None:
        room = room_in(head)
        least = max(head.next_seq + 1, room.least if room is not None else 0)
        if history < least:
            raise DefinitionError(
                f"the journal has {head.next_seq} entries, and {history} would be no room for more, in entries or in bytes",
                run=self.id,
                hint=f"give {room.more if room is not None else least} or another number from {least} on",
            )

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
        """Return the run's generations, the present one first.

        Raises:
            RunNotFoundError: There is no such run.
            NotAuthorisedError: Whoever acts may not read it.
        """
        await check_run(self._client, "read", self._run)
        head = await self._client.head(self._run)
        rows = await self._client.store.generations(self._run, limit=limit)
        return [generation_of(row, head) for row in rows]

    async def journal(self, *, generation: int | None = None) -> list[JournalEntry]:
        """Return the journal of the present generation, or of another one.

        Raises:
            RunNotFoundError: There is no such run, or no such generation of it.

        Example:
            ```python
            import outlast

            @outlast.step
            async def double(number: int) -> int:
                return 2 * number

            @outlast.workflow
            async def twice(number: int) -> int:
                return await double(await double(number))

            async with outlast.open("memory://") as app:
                handle = await app.start(twice(3), id="t-1")
                assert await handle.result() == 12
                names = [type(one.entry).__name__ for one in await handle.journal()]
                assert names == ["Started", "Taken", "StepCompleted", "StepCompleted", "Completed"]
            ```
        """
        await check_run(self._client, "read", self._run)
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
        await check_run(self._client, "read", self._run)
        image = await store.load(self._run)
        if image is None:
            raise not_found(self._run)
        entries: list[JournalEntry] = []
        for one in image.rows:
            # A run that is blocked because of such an entry must be explicable all the same.
            with contextlib.suppress(DecodeError):
                entries.append(JournalEntry(one.row.seq, one.row.turn, one.at, from_row(one.row)))
        written = [one.entry for one in entries]
        workers = await store.workers()
        live = [one.row for one in workers if one.live]
        fitting = [row for row in live if image.head.workflow in row.workflows]
        return RunDetail(
            status=status_of(image.head),
            entries=entries,
            unreadable=len(image.rows) - len(entries),
            operations=standings(
                [(one.entry, one.at, one.seq) for one in entries], image.operations
            ),
            approvals=[view_of(row) for row in image.approvals if row.state == "pending"],
            unread=len(image.messages),
            now=store.now(),
            fitting=[row.worker for row in fitting],
            attended=any(row.worker == image.head.owner for row in live),
            alarms=alarms((one.entry, one.at) for one in entries),
            place=place_in(written),
            cancelled_by=cancel_in(written),
            terminated_by=image.head.ended_by,
            paused_by=pause_in(written),
            deadline=deadline_in(entries),
            timed_out_at=time_out_in(entries),
            generations=[
                generation_of(row, image.head)
                for row in await store.generations(self._run, limit=_GENERATIONS)
            ],
            tasks=task_views(image.tasks, workers),
            durability=durability_in(written),
            mail=mail_of(image.messages),
            retry=await latest_retry(self._client, image.head),
            held=bool(fitting) and not image.head.released and all(row.paused for row in fitting),
        )

    @overload
    async def query(
        self,
        query: Query[None, A],
        value: None = None,
        *,
        timeout: timedelta = ...,  # noqa: ASYNC109
    ) -> A: ...
    @overload
    async def query(
        self,
        query: Query[T, A],
        value: T,
        *,
        timeout: timedelta = ...,  # noqa: ASYNC109
    ) -> A: ...
    @overload
    async def query(
        self,
        query: str,
        value: Any = None,
        *,
        timeout: timedelta = ...,  # noqa: ASYNC109
    ) -> Any: ...
    async def query(
        self,
        query: Query[Any, Any] | str,
        value: Any = None,
        *,
        timeout: timedelta = BUDGET,  # noqa: ASYNC109 - of load, replay and handler
    ) -> Any:
        """Ask the run a question, and return the answer: what its code says from where it stood at the last commit.

        The run's code is replayed in this process, so no worker is needed and nothing is written; the run may be parked, blocked or
        closed. It stays in memory here, so that asking again replays only what came since.

        Args:
            query: A name too; then value and answer are plain JSON data.
            timeout: Real time for reading, replay and handler together. What was replayed by then is kept.

        Raises:
            QueryError: There is no answer: see its `reason`.
            RunNotFoundError: There is no such run.
            EncodeError: The value does not fit the query's type.

        Example:
            ```python
            import outlast

            seen = outlast.Query("seen", None, int)
            go = outlast.Signal("go", int)

            @outlast.workflow
            async def count() -> int:
                numbers: list[int] = []
                outlast.on_query(seen, lambda _: len(numbers))
                for _ in range(2):
                    numbers.append(await outlast.receive(go))
                return sum(numbers)

            async with outlast.open("memory://") as app:
                handle = await app.start(count(), id="c-1")
                await handle.send(go, 1)
                await handle.send(go, 2)
                assert await handle.result() == 3
                assert await handle.query(seen) == 2  # of a run that has ended, too
            ```
        """
        if isinstance(query, Query):
            body = query.codec.encode(value)
            return query.result.decode(
                await ask_query(self._client, self._run, query.name, body, timeout)
            )
        body = codec_for(Any, where=f"the value of query {query!r}").encode(value)
        answer = await ask_query(self._client, self._run, query, body, timeout)
        return read(answer, f"the answer to query {query!r}")

    @overload
    async def published(self, key: str) -> Any: ...
    @overload
    async def published(self, key: str, type: type[T]) -> T | None: ...
    async def published(self, key: str, type: Any = Any) -> Any:  # noqa: A002 - the field's word
        """Return the last value that the run has published under a key; None when there is none. It reads one entry, and runs no code.

        Args:
            type: Of the value; plain JSON data by default.

        Raises:
            RunNotFoundError: There is no such run.
            DecodeError: The value does not fit the type.

        Example:
            ```python
            import outlast

            @outlast.workflow
            async def copy(pages: int) -> int:
                for page in range(pages):
                    outlast.publish("done", page + 1)
                    await outlast.sleep(0.01)
                return pages

            async with outlast.open("memory://") as app:
                handle = await app.start(copy(3), id="c-1")
                await handle.result()
                assert await handle.published("done", int) == 3
            ```
        """
        await check_run(self._client, "read", self._run)
        found = await self._client.store.latest(self._run, "published", key)
        if found is None:
            await self._client.head(self._run)
            return None
        entry = from_row(found.row)
        assert isinstance(entry, Published)  # by its kind
        return codec_for(type, where=f"the value published as {key!r}").decode(bytes(entry.value))

    async def explain(self) -> Explanation:
        """Return why the run is where it is: what it waits for, since when, what happens next, who can act and how.

        As text it is what `outlast runs explain` prints. The commands in it are for the store of the environment.

        Raises:
            RunNotFoundError: There is no such run.

        Example:
            ```python
            import asyncio
            from datetime import timedelta

            import outlast

            go = outlast.Signal("go", int)

            @outlast.workflow
            async def wait() -> int:
                return await outlast.receive(go)

            async with outlast.open("memory://", idle=timedelta(milliseconds=10)) as app:
                handle = await app.start(wait(), id="w-1")
                while (await handle.status()).status != "waiting":
                    await asyncio.sleep(0.01)
                explanation = await handle.explain()
                assert "waits for the message 'go'" in str(explanation)
                assert explanation.commands[0].startswith("outlast runs send w-1 go")
            ```
        """
        tenant = self._client.tenant
        options = [] if tenant == DEFAULT_TENANT else ["--tenant", tenant]
        return explain(await self.detail(), lambda *words: typed(options, words))

    async def _ask(self, kind: MessageKind, reason: str) -> None:
        await check_run(self._client, "resume", self._run)
        body = msgspec.json.encode({"by": self._client.principal, "reason": reason})
        await self._put(f"{kind.value}/{self._client.new_id()}", kind, "", body)

    async def _put(self, message_id: str, kind: MessageKind, name: str, body: bytes) -> None:
        await self._deliver(Message(message_id, kind, name, self._client.principal, body))

    async def _deliver(self, message: Message, *, early: bool = False) -> None:
        change = PutMessage(self._run, message, early=early, incarnation=self._incarnation)
        self._check(await self._client.commit(change))

    async def _check_present(self) -> None:
        """Refuse when the id has begun another run than the handle's own."""
        if (
            self._incarnation
            and (await self._client.head(self._run)).incarnation > self._incarnation
        ):
            self._check(Refused("incarnation"))

    def _check(self, verdict: Verdict) -> None:
        check_accepted(verdict, self._run)

    def _decode(self, value: Raw) -> Any:
        if self._workflow is None:
            return read(bytes(value), "the run's result")
        return self._workflow.result.decode(bytes(value))

    def _ended(self, failure: Failure, entries: list[Entry]) -> OutlastError:
        if isinstance(entries[-1], Failed):
            return failed(self.id, failure, place_in(entries))
        return cancelled(self.id, failure, cancel_in(entries))
