"""Starts runs and finds them, for one tenant.

A client writes unowned changes only, so it needs no worker; the same change sent twice has one effect.

"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from shlex import quote
from typing import Any, TypeVar, cast, overload

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from outlast.client.access import check_workflow, is_free, may_read
from outlast.client.approval import Approvals
from outlast.client.completion import complete, fail, heartbeat
from outlast.client.doubt import Doubt, Resolved, Wanted, doubts, resolve, said
from outlast.client.handle import RunHandle
from outlast.client.home import Home
from outlast.client.page import check_limit
from outlast.client.patience import Patience, callers_level
from outlast.client.pin import PinBook
from outlast.client.port import Port
from outlast.client.release import release, restored
from outlast.client.replica import Replicas
from outlast.client.request import Requests
from outlast.client.role import RoleBook, principal_of
from outlast.client.stop import StopBook
from outlast.client.task import task_views, unserved
from outlast.client.update import check_accepted, result_of, signal_message, update_message
from outlast.client.use import IfClosed, began_as, check_if_closed, check_same, taken
from outlast.client.view import (
    RunStatus,
    not_found,
    status_of,
)
from outlast.clock import Random
from outlast.effects.key import check_run_id, check_tenant, namespace
from outlast.errors import (
    DecodeError,
    DefinitionError,
    NoWorkerWarning,
    RunConflictError,
    StoreError,
    StoreUnavailableError,
)
from outlast.journal.entry import (
    Durability,
    Entry,
    StampedRow,
    Started,
    Taken,
    from_row,
    to_row,
)
from outlast.policy.authority import Anybody, Authority, Principal
from outlast.store.change import (
    Applied,
    Change,
    Conflict,
    Fenced,
    Message,
    PutMessage,
    Refused,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Unknown,
    Verdict,
    WorkerId,
    born_head,
    fingerprint_of,
)
from outlast.store.protocol import Store
from outlast.workflows.call import Call
from outlast.workflows.definition import Workflow
from outlast.workflows.durability import check_durability
from outlast.workflows.message import Signal, Update
from outlast.workflows.registry import Registry
from outlast.workflows.timeout import run_seconds

R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")

_UNKNOWN_WAIT_SECONDS = 0.1
_UNKNOWN_TRIES = 600
"""How often a change is sent before its caller is told that its fate is not known."""
_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 2.0
_LEAST_LOOK = 100
"""So many runs are looked at together where some may not be read: the last one of a page may stand far behind."""


class Birth(Struct, frozen=True):
    """What lets a client hand new runs to a worker of its own process.

    Args:
        submit: Writes a change together with what the worker's runs write.
        owner: Returns the worker that a new run of this workflow is born claimed by.
        adopt: Gives it the run.
        taken: The entry that says so.
        holds: Whether the worker has a run in its hands, so that it says when that ends.
    """

    submit: Callable[[Change], Awaitable[Verdict]]
    owner: Callable[[str], WorkerId | None]
    adopt: Callable[[RunHead, tuple[StampedRow, ...]], None]
    taken: Taken
    holds: Callable[[RunKey], bool] = lambda run: False


class Client:
    """Starts runs and looks at them, for one tenant. It is used on the event loop on which it was opened, and not in a workflow.

    Args:
        principal: Who acts.
        authority: Says who may do what; None where everybody may do everything. What `open` and `connect` return asks the roles in the store.
        birth: A worker of the same process, for runs that it can take at once.
        registry: The code by which queries are answered here; everything declared so far by default.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def greet(name: str) -> str:
            return f"hello {name}"

        async with outlast.connect("sqlite:///agent.db", create=True) as client:  # no worker in this process
            handle = await client.start(greet("Ada"), id="greet-ada")
            assert (await handle.status()).status == "ready"  # until `outlast worker` takes it
        ```
    """

    def __init__(  # noqa: PLR0913 - what an app composes
        self,
        store: Store,
        *,
        random: Random,
        tenant: str = "default",
        principal: str | Principal = "",
        authority: Authority | None = None,
        birth: Birth | None = None,
        registry: Registry | None = None,
    ) -> None:
        self._store = store
        self._home = Home()
        self.tenant = check_tenant(tenant)
        self.actor = principal_of(principal, self.tenant)
        self.principal = self.actor.subject
        self.authority: Authority = Anybody() if authority is None else authority
        self.registry = registry
        self.replicas = Replicas()
        """Runs that were asked something, kept in memory to be asked again; to be closed before the store is."""
        self._random = random
        self._birth = birth
        self._waiters: dict[RunKey, list[asyncio.Event]] = {}
        self._births: set[asyncio.Future[Verdict]] = set()

    @property
    def store(self) -> Store:
        """The store, for the event loop on which the client was opened.

        Raises:
            ForbiddenInWorkflowError: Workflow code asks.
            DefinitionError: Code on another event loop asks.
        """
        self._home.check()
        return self._store

    def acting_as(self, principal: str | Principal) -> Client:
        """Return a client of the same store and tenant in whose name somebody else acts, with every check that holds for him.

        Args:
            principal: Who acts. That it is really he must be known: it is believed.

        Example:
            ```python
            import outlast

            async with outlast.connect("sqlite:///agent.db", create=True) as client:
                ann = client.acting_as("ann@example.org")  # who has proved to be she, to a service that has this client
                assert ann.principal == "ann@example.org" and await ann.approvals.list() == []
            ```
        """
        return Client(
            self.store,
            random=self._random,
            tenant=self.tenant,
            principal=principal,
            authority=self.authority,
            registry=self.registry,
        )

    @property
    def runs(self) -> Runs:
        """The tenant's runs."""
        return Runs(self)

    @property
    def approvals(self) -> Approvals:
        """The tenant's approvals."""
        return Approvals(self)

    @property
    def roles(self) -> RoleBook:
        """Who holds which role in the tenant."""
        return RoleBook(self)

    @property
    def stops(self) -> StopBook:
        """The kill switch."""
        return StopBook(self)

    @property
    def pins(self) -> PinBook:
        """The definitions of foreign tools that were taken as they are."""
        return PinBook(self)

    @property
    def requests(self) -> Requests:
        """The tenant's requests that came with an idempotency key."""
        return Requests(self)

    async def release(
        self,
        *runs: str,
        workflow: str = "",
        everything: bool = False,
        trust: bool = False,
        reason: str,
    ) -> int:
        """Let runs go on whose workers are paused (`open(paused=True)`, or a store that was restored); return how many were named.

        Args:
            runs: Ids.
            workflow: All open runs of this workflow.
            everything: All runs, of all tenants: paused workers go on with everything. That counts none.
            trust: After a restore, somebody vouches that nothing was forgotten. Without it an effect of a run that is older than the restore
                is held to have been attempted: it is called with its key where it is idempotent, its probe is asked before, and one with
                neither is in doubt.
            reason: Why; kept.

        Raises:
            NotAuthorisedError: Whoever acts may not resume these runs; for everything, does not hold `outlast:admin` for everybody.
            DefinitionError: No reason is given, or not one of `runs`, `workflow` and `everything`.
            RunNotFoundError: There is no such run.
            RunConflictError: It has ended.

        Example:
            ```python
            import outlast

            @outlast.workflow
            async def greet(name: str) -> str:
                return f"hello {name}"

            async with outlast.open("memory://", paused=True) as app:
                handle = await app.start(greet("Ada"), id="greet-ada")
                assert await app.release("greet-ada", reason="looked at") == 1
                assert await handle.result() == "hello Ada"
            ```
        """
        return await release(
            self, runs, workflow=workflow, everything=everything, trust=trust, reason=reason
        )

    async def restored(self, reason: str) -> str:
        """Say that the store was put back to an earlier state by other means than `outlast restore`; return the id of its new history.

        Workers move only what is released from then on.

        Args:
            reason: How; kept.

        Raises:
            NotAuthorisedError: Whoever acts does not hold `outlast:admin` for everybody.
            DefinitionError: No reason is given.
            StoreError: Workers live on the store: they have to be stopped before.

        Example:
            ```python
            import outlast

            async with outlast.connect("sqlite:///agent.db", create=True) as client:
                before = await client.store.timeline()
                assert await client.restored("the disk was set back to last night's snapshot") != before
            ```
        """
        return await restored(self, reason)

    async def start(
        self,
        call: Call[R],
        *,
        id: str,
        if_closed: IfClosed = "attach",
        timeout: timedelta | None = None,
        durability: Durability | None = None,
    ) -> RunHandle[R]:
        """Start a run, or attach to the one that has this id already.

        Args:
            call: Of a workflow, as `fix(finding)`.
            id: Comes from the event that triggers the work, so that the same event starts one run.
            if_closed: What a closed run of this id means.
            timeout: How long the run may take; as long as its `@workflow(timeout=…)` says by default. Time in which no worker lives
                counts, by the store's clock. When it is over the body is cancelled and cleans up, and the run fails with a
                `TimeoutError`. A run that is there already keeps its own; one that is paused has it judged when it is resumed.
            durability: When outcomes are written, see `workflow`; as its `@workflow(durability=…)` says by default. A run that is there
                already keeps its own.

        Raises:
            RunConflictError: The id belongs to a run of another workflow or with other input; or it is closed and
                `if_closed="refuse"`.
            EncodeError: An argument cannot be stored; nothing was written.
            DefinitionError: There is no such durability, or the timeout is no length of time.

        Example:
            ```python
            import outlast

            @outlast.workflow
            async def double(number: int) -> int:
                return 2 * number

            async with outlast.open("memory://") as app:
                handle = await app.start(double(4), id="order-17")
                again = await app.start(double(4), id="order-17")  # the same event: the same run
                assert await handle.result() == await again.result() == 8
                try:
                    await app.start(double(5), id="order-17")
                except outlast.RunConflictError as error:
                    assert error.run == "order-17"  # the same id, another input
            ```
        """
        workflow = self._workflow_of(call)
        run = RunKey(self.tenant, check_run_id(id))
        check_if_closed(if_closed, what=f"the start of {workflow.name}")
        started = self._started(workflow, call, timeout, durability)
        await check_workflow(self, "start", workflow.name)
        generation = 1
        while True:
            verdict = await self._bear(run, started, generation)
            match verdict:
                case Applied():
                    break
                case Fenced():
                    # The lease of the worker that was to have it is over; the next one, or none, will do.
                    continue
                case Conflict(head=head) if head is not None:
                    if await self._is_ours(head, generation, started.seed):
                        break
                    if await self._attaches(head, workflow, bytes(started.arguments), if_closed):
                        generation = head.incarnation
                        break
                    generation = head.generation + 1
                case _:
                    raise StoreError(
                        f"the run was not started; the store answered {verdict}", run=run.run_id
                    )
        return RunHandle(self, run, workflow, incarnation=generation)

    @overload
    async def signal_with_start(
        self,
        call: Call[R],
        signal: Signal[None],
        *,
        id: str,
        message_id: str = ...,
        if_closed: IfClosed = ...,
        timeout: timedelta | None = ...,
    ) -> RunHandle[R]: ...
    @overload
    async def signal_with_start(
        self,
        call: Call[R],
        signal: Signal[T],
        value: T,
        *,
        id: str,
        message_id: str = ...,
        if_closed: IfClosed = ...,
        timeout: timedelta | None = ...,
    ) -> RunHandle[R]: ...
    @overload
    async def signal_with_start(
        self,
        call: Call[R],
        signal: str,
        value: Any = ...,
        *,
        id: str,
        message_id: str = ...,
        if_closed: IfClosed = ...,
        timeout: timedelta | None = ...,
    ) -> RunHandle[R]: ...
    async def signal_with_start(  # noqa: PLR0913 - what is sent, and what is started
        self,
        call: Call[R],
        signal: Signal[Any] | str,
        value: Any = None,
        *,
        id: str,
        message_id: str = "",
        if_closed: IfClosed = "attach",
        timeout: timedelta | None = None,
    ) -> RunHandle[R]:
        """Send a message to a run, and start the run with it when there is none: one transaction, so that neither is without the other.

        Args:
            call: Of a workflow; its input counts only when a run is started.
            signal: A `Signal`, or its name.
            id: Of the run.
            message_id: The same id again is the same message; random by default.
            if_closed: What a closed run of this id means. It takes no message, so that `attach` and `refuse` are an error, unless it has
                this message already.
            timeout: How long the run may take, where one is started; see `start`.

        Raises:
            RunConflictError: The id belongs to a run of another workflow, or to a closed one, or the run has a message under this id with
                another name or value; nothing was sent.
            InboxFullError: The run has 10,000 messages that it has not taken in.
            EncodeError: The value or an argument cannot be stored; nothing was written.

        Example:
            ```python
            import asyncio

            import outlast

            ordered = outlast.Signal("ordered", str)

            @outlast.workflow
            async def collect(customer: str) -> list[str]:
                return [await outlast.receive(ordered) for _ in range(2)]

            async def main() -> None:
                async with outlast.open("memory://") as app:
                    for item in ("tea", "milk"):
                        handle = await app.signal_with_start(
                            collect("ann"), ordered, item, id="orders-of-ann", message_id=item
                        )
                    assert await handle.result() == ["tea", "milk"]

            asyncio.run(main())
            ```
        """
        message = signal_message(self, signal, value, message_id)
        return await self._start_with(call, message, id, if_closed, timeout)

    @overload
    async def update_with_start(
        self,
        call: Call[Any],
        update: Update[None, A],
        *,
        id: str,
        update_id: str = ...,
        if_closed: IfClosed = ...,
        timeout: timedelta | None = ...,
    ) -> A: ...
    @overload
    async def update_with_start(
        self,
        call: Call[Any],
        update: Update[T, A],
        value: T,
        *,
        id: str,
        update_id: str = ...,
        if_closed: IfClosed = ...,
        timeout: timedelta | None = ...,
    ) -> A: ...
    @overload
    async def update_with_start(
        self,
        call: Call[Any],
        update: str,
        value: Any = ...,
        *,
        id: str,
        update_id: str = ...,
        if_closed: IfClosed = ...,
        timeout: timedelta | None = ...,
    ) -> Any: ...
    async def update_with_start(  # noqa: PLR0913 - what is sent, and what is started
        self,
        call: Call[Any],
        update: Update[Any, Any] | str,
        value: Any = None,
        *,
        id: str,
        update_id: str = "",
        if_closed: IfClosed = "attach",
        timeout: timedelta | None = None,
    ) -> Any:
        """Send an update to a run, start the run with it when there is none, and return the update's result.

        Args, and what is raised: those of `signal_with_start` and of `RunHandle.update`.

        Example:
            ```python
            import asyncio

            import outlast

            order = outlast.Update("order", str, int)

            @outlast.workflow
            async def collect(customer: str) -> list[str]:
                items: list[str] = []

                def add(item: str) -> int:
                    items.append(item)
                    return len(items)

                outlast.on_update(order, add)
                await outlast.wait_condition(lambda: len(items) == 2)
                return items

            async def main() -> None:
                async with outlast.open("memory://") as app:
                    assert await app.update_with_start(collect("ann"), order, "tea", id="ann") == 1
                    assert await app.update_with_start(collect("ann"), order, "milk", id="ann") == 2

            asyncio.run(main())
            ```
        """
        message = update_message(self, update, value, update_id)
        handle = await self._start_with(call, message, id, if_closed, timeout)
        return await result_of(self, RunKey(self.tenant, handle.id), update, message)

    async def run(
        self,
        call: Call[R],
        *,
        id: str,
        if_closed: IfClosed = "attach",
        timeout: timedelta | None = None,
        durability: Durability | None = None,
    ) -> R:
        """Start a run, wait for its end, and return its result. See `start` and `RunHandle.result`.

        Example:
            ```python
            import outlast

            @outlast.workflow
            async def double(number: int) -> int:
                return 2 * number

            async with outlast.open("memory://") as app:
                assert await app.run(double(4), id="order-17") == 8
            ```
        """
        handle = await self.start(
            call, id=id, if_closed=if_closed, timeout=timeout, durability=durability
        )
        return await handle.result()

    async def complete(self, token: str, value: Any = None, *, id: str = "") -> None:
        """Say that a step which was handed out has returned; accepted when this returns.

        The first answer to a token counts. A later one is put aside and told of, as is a value that does not fit the step's result
        type; the step waits on then.

        Args:
            token: What `outlast.completion_token()` has returned, of whatever attempt.
            value: The step's result: a value of its type, or plain data as JSON holds it.
            id: The same id again is the same answer; random by default. What sends more than once, as a webhook does, gives its own.

        Raises:
            DefinitionError: It is no token, or one of another tenant.
            EncodeError: The value cannot be stored.
            RunNotFoundError: There is no such run.
            RunConflictError: The run has ended.

        Example:
            ```python
            import asyncio

            import outlast

            tokens: asyncio.Queue[str] = asyncio.Queue()

            @outlast.step
            async def render(scene: str) -> int:
                tokens.put_nowait(outlast.completion_token())
                outlast.complete_later()

            @outlast.workflow
            async def film(scene: str) -> int:
                return await render(scene)

            async with outlast.open("memory://") as app:
                handle = await app.start(film("dawn"), id="film-1")
                token = await tokens.get()
                await app.complete(token, 240, id="webhook-1")
                await app.complete(token, 240, id="webhook-1")  # delivered twice: the same answer
                assert await handle.result() == 240
            ```
        """
        await complete(self, token, value, id=id)

    async def fail(self, token: str, message: str, *, id: str = "") -> None:
        """Say that a step which was handed out has failed for good: the workflow gets a `RuntimeError`. See `complete`.

        Args:
            message: Of the error.

        Example:
            ```python
            import asyncio

            import outlast

            tokens: asyncio.Queue[str] = asyncio.Queue()

            @outlast.step
            async def render(scene: str) -> int:
                tokens.put_nowait(outlast.completion_token())
                outlast.complete_later()

            @outlast.workflow
            async def film(scene: str) -> str:
                try:
                    return f"{await render(scene)} frames"
                except RuntimeError as error:
                    return f"cut: {error}"

            async with outlast.open("memory://") as app:
                handle = await app.start(film("storm"), id="film-2")
                await app.fail(await tokens.get(), "out of light")
                assert await handle.result() == "cut: out of light"
            ```
        """
        await fail(self, token, message, id=id)

    async def heartbeat(self, token: str, details: Any = None) -> None:
        """Say that whoever works on a step that was handed out is alive, and how far it has come; kept when this returns.

        A step that declares a `heartbeat_timeout`, was handed out and is not heard of for longer has failed by `TimeoutError`, and its
        retry policy decides; each beat renews that time, by the store's clock. The hand-out itself is the first. Details are kept at
        each beat, and the next attempt finds them by `heartbeat_details()`. A beat is one small write, and wakes no run.

        Args:
            token: What `outlast.completion_token()` has returned, of whatever attempt.
            details: As for `outlast.heartbeat`; without them those of the last beat stay.

        Raises:
            RunConflictError: The step is not waited for any more, or its run has ended: stop working on it. Beats count from the
                hand-out on; one that comes before it is tried again for five seconds.
            DefinitionError: It is no token, or one of another tenant.
            EncodeError: The details cannot be stored.
            RunNotFoundError: There is no such run.

        Example:
            ```python
            import asyncio
            from datetime import timedelta

            import outlast

            tokens: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

            @outlast.step(
                heartbeat_timeout=timedelta(milliseconds=200),
                retry=outlast.RetryPolicy(initial_interval=timedelta(milliseconds=10)),
            )
            async def render(frames: int) -> int:
                tokens.put_nowait((outlast.completion_token(), outlast.heartbeat_details(int) or 0))
                outlast.complete_later()

            @outlast.workflow
            async def film(frames: int) -> int:
                return await render(frames)

            async with outlast.open("memory://") as app:
                handle = await app.start(film(240), id="film-3")
                token, done = await tokens.get()
                await app.heartbeat(token, 100)  # frame 100 is done; then the renderer dies
                token, done = await tokens.get()  # the next attempt knows
                assert done == 100
                await app.complete(token, 240)
                assert await handle.result() == 240
            ```
        """
        await heartbeat(self, token, details)

    @overload
    def handle(self, id: str, workflow: None = None) -> RunHandle[Any]: ...
    @overload
    def handle(self, id: str, workflow: Workflow[..., R]) -> RunHandle[R]: ...
    def handle(self, id: str, workflow: Workflow[..., Any] | None = None) -> RunHandle[Any]:
        """Return a handle of a run that exists, or may exist: of whichever run has the id at the time of a call.

        The handle that `start` returns is of one run, also after the id was started anew. See `RunHandle`.

        Args:
            workflow: Gives the result its type.

        Example:
            ```python
            import outlast

            @outlast.workflow
            async def double(number: int) -> int:
                return 2 * number

            async with outlast.open("memory://") as app:
                await app.start(double(4), id="order-17")
                handle = app.handle("order-17", workflow=double)  # anywhere, any time later
                assert await handle.result() == 8
            ```
        """
        return RunHandle(self, RunKey(self.tenant, check_run_id(id)), workflow)

    async def head(self, run: RunKey) -> RunHead:
        """Return the run's row.

        Raises:
            RunNotFoundError: There is none.
        """
        head = await self.store.head(run)
        if head is None:
            raise not_found(run)
        return head

    async def commit(self, change: Change) -> Verdict:
        """Write one unowned change; one whose fate is unknown is sent again, also when the store is away meanwhile.

        Raises:
            StoreUnavailableError: Nothing was written; or, as its message says then, that could not be found out.
            ForbiddenInWorkflowError: Workflow code asks.
            DefinitionError: Code on another event loop asks.
        """
        self._home.check()
        if self._birth is not None:
            return await self._birth.submit(change)
        (verdict,) = await self.commit_all([change])
        return verdict

    async def commit_all(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write several unowned changes in one transaction, each with a verdict of its own; see `commit`."""
        is_unknown = False
        for tries_left in reversed(range(_UNKNOWN_TRIES)):
            try:
                verdicts = await self.store.commit(list(changes))
            except StoreUnavailableError as error:
                if not is_unknown:
                    raise
                if not tries_left:
                    raise _fate_unknown() from error
            else:
                if not any(isinstance(one, Unknown) for one in verdicts):
                    return list(verdicts)
                is_unknown = True
            await asyncio.sleep(_UNKNOWN_WAIT_SECONDS)
        raise _fate_unknown()

    def new_id(self) -> str:
        """Return a random id, for what has no event to take one from."""
        return self._random.bits(12).hex()

    async def wait_closed(self, run: RunKey, incarnation: int) -> RunHead:
        """Wait until the run that this generation began has ended, and return the row of its id: of a later run, where one has it.

        Says so when no worker lives that could run it, or when it stands until a person acts.
        """
        woken = asyncio.Event()
        self._waiters.setdefault(run, []).append(woken)
        unsubscribe = None if self._birth else self.store.subscribe(woken.set)
        poll, patience = _FIRST_POLL_SECONDS, Patience(self)
        try:
            while not (
                (head := await self.head(run)).status.closed or head.incarnation > incarnation
            ):
                woken.clear()
                is_held = self._birth is not None and self._birth.holds(run)
                try:
                    async with asyncio.timeout(_LONGEST_POLL_SECONDS if is_held else poll):
                        await woken.wait()
                except TimeoutError:
                    poll = min(poll * 2, _LONGEST_POLL_SECONDS)
                if patience.is_due:
                    await patience.look(head)
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

    async def _start_with(
        self,
        call: Call[R],
        message: Message,
        id: str,
        if_closed: IfClosed,
        timeout: timedelta | None,
    ) -> RunHandle[R]:
        """Put a message into the inbox of a run, which is started with it when there is none."""
        workflow = self._workflow_of(call)
        run = RunKey(self.tenant, check_run_id(id))
        check_if_closed(if_closed, what=f"the start of {workflow.name}")
        started = self._started(workflow, call, timeout, None)
        for verb in ("start", "message"):
            await check_workflow(self, verb, workflow.name)
        generation = 1
        while True:
            verdict = await self._bear(run, started, generation, (message,))
            match verdict:
                case Applied():
                    break
                case Fenced():
                    continue
                case Conflict(head=head) if head is not None:
                    if await self._is_ours(head, generation, started.seed):
                        break
                    generation = head.generation + 1
                    if head.status.closed and if_closed == "restart":
                        continue
                    if await self._sends(head, workflow, message, if_closed):
                        generation = head.incarnation
                        break
                case _:
                    check_accepted(verdict, run)
        return RunHandle(self, run, workflow, incarnation=generation)

    async def _sends(
        self, head: RunHead, workflow: Workflow[..., Any], message: Message, if_closed: IfClosed
    ) -> bool:
        """Put a message into the inbox of a run that is there; False when another one is to be looked for, or started."""
        if not await began_as(self.store, head, workflow):
            raise taken(head, f"the workflow {head.workflow}")
        change = PutMessage(head.run, message, incarnation=head.incarnation)
        verdict = await self.commit(change)
        if verdict == Refused("incarnation"):
            return False
        if verdict == Refused("closed"):
            if if_closed == "restart":
                return False
            raise RunConflictError(
                "the run of this id has ended, and takes no message",
                run=head.run.run_id,
                hint="use if_closed='restart' for a new run that begins with it",
            )
        check_accepted(verdict, head.run)
        return True

    def _workflow_of(self, call: Call[R]) -> Workflow[..., R]:
        """Return the workflow that is called, when it may be started here, and the app's own worker would run that one."""
        self._home.check()
        workflow = _workflow_of(call)
        if self.registry is not None:
            self.registry.check(workflow)
        return workflow

    def _started(
        self,
        workflow: Workflow[..., Any],
        call: Call[Any],
        timeout: timedelta | None,
        durability: Durability | None,
    ) -> Started:
        """Return the first entry of a run, but for its namespace, which belongs to a generation."""
        what = f"the start of {workflow.name}"
        seconds = run_seconds(timeout, what=what)
        if durability is not None:
            check_durability(durability, what=what)
        return Started(
            name=workflow.name,
            arguments=Raw(workflow.arguments.encode(call.args, call.kwargs)),
            seed=self._random.bits(16),
            namespace="",
            principal=self.principal,
            timeout_seconds=workflow.timeout_seconds if seconds is None else seconds,
            durability=workflow.durability if durability is None else durability,
        )

    async def _bear(
        self,
        run: RunKey,
        started: Started,
        generation: int,
        messages: tuple[Message, ...] = (),
    ) -> Verdict:
        """Write the start; a caller who is cancelled meanwhile leaves no run behind that nobody moves."""
        birth = asyncio.ensure_future(self._start(run, started, generation, messages))
        self._births.add(birth)
        birth.add_done_callback(self._births.discard)
        return await asyncio.shield(birth)

    async def _start(
        self, run: RunKey, started: Started, generation: int, messages: tuple[Message, ...]
    ) -> Verdict:
        started = replace(started, namespace=namespace(run.tenant, run.run_id, generation))
        owner = self._birth.owner(started.name) if self._birth else None
        entries: list[Entry] = [started]
        if owner is not None and self._birth is not None:
            entries.append(self._birth.taken)
        rows = tuple(to_row(entry, seq, seq) for seq, entry in enumerate(entries))
        change = StartRun(
            run=run,
            workflow=started.name,
            fingerprint=fingerprint_of(started.name, bytes(started.arguments)),
            entries=rows,
            generation=generation,
            worker=owner,
            messages=messages,
        )
        verdict = await self.commit(change)
        if isinstance(verdict, Applied) and owner is not None and self._birth is not None:
            head = born_head(change, verdict)
            self._birth.adopt(head, tuple(StampedRow(row, verdict.at) for row in rows))
        return verdict

    async def _is_ours(self, head: RunHead, generation: int, seed: bytes) -> bool:
        """Whether the run that stands there is the one we started, when the answer to our start was lost."""
        if head.incarnation < generation:
            return False
        rows = await self.store.journal(head.run, generation=generation)
        try:
            first = from_row(rows[0].row) if rows else None
        except DecodeError:
            # What we have just written could be read.
            return False
        return isinstance(first, Started) and first.seed == seed

    async def _attaches(
        self, head: RunHead, workflow: Workflow[..., Any], arguments: bytes, if_closed: IfClosed
    ) -> bool:
        """Whether an existing run is the one that is meant; False when a new generation is to be started."""
        if head.status.closed and if_closed == "restart":
            return False
        await check_same(self.store, head, workflow, arguments)
        if head.status.closed and if_closed == "refuse":
            raise RunConflictError(
                f"a run of this id has ended as {head.status}",
                run=head.run.run_id,
                hint="use if_closed='attach' for its result, or 'restart' for a new run",
            )
        return True

    async def say_when_no_worker(self, head: RunHead) -> None:
        """Warn when no worker lives that could move the run."""
        if head.status not in {Status.READY, Status.RUNNING, Status.WAITING}:
            return
        workers = await self.store.workers()
        fitting = [one.row for one in workers if one.live and head.workflow in one.row.workflows]
        if fitting and not head.released and all(row.paused for row in fitting):
            text = (
                f"run {head.run} waits, and all workers that could move it are paused. `outlast release {quote(head.run.run_id)} "
                "--reason WHY` lets it go on; `outlast doctor` says whether the store was restored."
            )
            warnings.warn(NoWorkerWarning(text), stacklevel=callers_level())
            return
        if fitting:
            step = unserved(task_views(await self.store.tasks(head.run), workers))
            if step is not None:
                text = (
                    f"run {head.run} waits for step {step.name!r}, and no live worker serves its queue {step.queue!r}. Start one: "
                    f"`outlast worker MODULE --queue {step.queue}`, or use outlast.open(queues=[{step.queue!r}])."
                )
                warnings.warn(NoWorkerWarning(text), stacklevel=callers_level())
            return
        remedy = (
            "Start one: `outlast worker MODULE`, or use outlast.open() instead of outlast.connect()."
            if self._birth is None
            else "The worker of this app knows what was declared when outlast.open() was entered, or what workflows= names: "
            "declare or import the workflow before that."
        )
        text = f"run {head.run} waits, and no live worker has registered workflow {head.workflow!r}. {remedy}"
        warnings.warn(NoWorkerWarning(text), stacklevel=callers_level())


class Runs:
    """The runs of a tenant."""

    def __init__(self, client: Port) -> None:
        self._client = client

    async def list(
        self,
        *,
        statuses: Collection[str] = frozenset(),
        workflow: str = "",
        limit: int = 100,
        before: RunStatus | None = None,
    ) -> list[RunStatus]:
        """Return a page of runs, newest first: those that one may read.

        Args:
            statuses: Only runs of these, as `{"failed", "blocked"}`; of every status when it is empty.
            limit: So many at most.
            before: The last one of the page before.

        Raises:
            DefinitionError: There is no such status, or the limit is no number from 0 to 1,000,000.
        """
        client, wanted = self._client, _statuses(statuses)
        size = check_limit(limit, what="runs")
        if not await is_free(client, "read"):
            size = max(size, _LEAST_LOOK)
        place = (before.created_at, before.run_id) if before else None
        readable: dict[str, bool] = {}
        found: list[RunStatus] = []
        while len(found) < limit:
            heads = await client.store.heads(
                client.tenant, statuses=wanted, workflow=workflow, limit=size, before=place
            )
            for name in {head.workflow for head in heads} - readable.keys():
                readable[name] = await may_read(client, name)
            found += [status_of(head) for head in heads if readable[head.workflow]]
            if len(heads) < size:
                break
            place = heads[-1].created_at, heads[-1].run.run_id
        return found[:limit]

    async def doubts(
        self,
        *,
        effect: str = "",
        workflow: str = "",
        run_id: str = "",
        limit: int = 100,
        after: Doubt | None = None,
    ) -> Sequence[Doubt]:
        """Return a page of the effects in doubt, by run and operation: of all open runs, whatever else these wait for.

        Args:
            effect: Only calls of the effect of this name.
            workflow: Only those of runs of this workflow.
            run_id: Only those of this run.
            limit: So many at most. Their runs are read one after another.
            after: The last one of the page before.

        Raises:
            DefinitionError: The limit is no number from 0 to 1,000,000.
            RunNotFoundError: There is no run of that id.

        Example:
            ```python
            import asyncio
            from datetime import timedelta

            import outlast

            @outlast.effect(start_to_close_timeout=timedelta(milliseconds=10), settle=timedelta(0))
            async def pay(amount: int) -> str:
                raise ConnectionError("the bank did not answer")

            @outlast.workflow
            async def order(amount: int) -> str:
                return await pay(amount)

            async with outlast.open("memory://") as app:
                for number in range(3):
                    await app.start(order(number), id=f"o-{number}")
                while len(await app.runs.doubts(effect="pay")) < 3:
                    await asyncio.sleep(0.01)
                first = await app.runs.doubts(limit=2)
                rest = await app.runs.doubts(after=first[-1])
                assert [one.run_id for one in (*first, *rest)] == ["o-0", "o-1", "o-2"]
            ```
        """
        check_limit(limit, what="doubts", onward="after=")
        wanted = Wanted(effect, workflow, run_id, limit, after)
        return await doubts(self._client, wanted)

    async def resolve(  # noqa: PLR0913 - what is said, of what, and why
        self,
        doubts: Sequence[Doubt],
        *,
        applied: Any = UNSET,
        not_applied: bool = False,
        failed: str = "",
        compensate: bool = False,
        result: Any = UNSET,
        reason: str,
    ) -> Sequence[Resolved]:
        """Say the same of many effects in doubt, and return for each whether that was accepted.

        Each is meant as it was seen: one that was settled meanwhile, by whomever, is left alone.

        Args:
            doubts: As `doubts()` returned them.
            applied: They happened, each with this result. See `RunHandle.resolve`.
            not_applied: They did not happen; they are attempted again.
            failed: They failed for good, with this message.
            compensate: Have each undone, whether it happened or not. One that cannot be is not accepted; see `RunHandle.resolve`.
            result: With that: what each returned, or would have, where undoing takes it.
            reason: Why you say so; kept in each journal.

        Raises:
            DefinitionError: It is not one outcome, or no reason is given. Nothing was said then.
            EncodeError: The result cannot be stored.

        Example:
            ```python
            import asyncio
            from datetime import timedelta

            import outlast

            online = {"bank": False}

            @outlast.effect(start_to_close_timeout=timedelta(milliseconds=10), settle=timedelta(0))
            async def pay(amount: int) -> str:
                if not online["bank"]:
                    raise ConnectionError("the bank did not answer")
                return f"paid {amount}"

            @outlast.workflow
            async def order(amount: int) -> str:
                return await pay(amount)

            async with outlast.open("memory://") as app:
                handles = [await app.start(order(number), id=f"o-{number}") for number in (1, 2)]
                while len(found := await app.runs.doubts(effect="pay")) < 2:
                    await asyncio.sleep(0.01)
                online["bank"] = True
                told = await app.runs.resolve(found, not_applied=True, reason="the bank had an outage")
                assert all(one.accepted for one in told)
                assert [await one.result() for one in handles] == ["paid 1", "paid 2"]
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
        if not reason.strip():
            raise DefinitionError(
                "no reason is given", hint="give reason=: it is kept in the journal of each run"
            )
        return await resolve(self._client, doubts, what)


def _statuses(given: Collection[str]) -> frozenset[Status]:
    words = [one.value for one in Status]
    unknown = [given] if isinstance(given, str) else [one for one in given if one not in words]
    if unknown:
        raise DefinitionError(
            f"{unknown[0]!r} is no set of statuses"
            if isinstance(given, str)
            else f"no run has the status {unknown[0]!r}",
            hint=f"write a set of some of {', '.join(words)}, as {{'failed'}}",
        )
    return frozenset(Status(one) for one in given)


def _workflow_of(call: Call[R]) -> Workflow[..., R]:
    """Return the workflow that is called.

    Raises:
        DefinitionError: It is no call of a workflow.
    """
    given: Any = call
    callee: Any = given.callee if isinstance(given, Call) else None
    if isinstance(given, Call):
        given.use()
    if not isinstance(callee, Workflow):
        raise DefinitionError(
            f"{given!r} is not a call of a workflow",
            hint=f"call it: write {given.name}(…)"
            if isinstance(given, Workflow)
            else "start what @workflow decorates, called: fix(finding)",
        )
    return cast("Workflow[..., R]", callee)


def _fate_unknown() -> StoreUnavailableError:
    return StoreUnavailableError(
        "the store was sent this change and has not said what became of it: whether it was written is not known",
        hint="once it answers, make the same start, message or decision again under its id: that counts once; before you restart, "
        "cancel or terminate something again, look whether it has happened",
    )
