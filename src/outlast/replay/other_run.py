"""What a run has asked of other runs: children that it started, messages that it sent, ends that it waits for.

Each is an operation in three parts: commanded; requested, from where it will happen whatever becomes of this run; and answered.
Cancelling who waits for a child does not give it up: the cancel is sent on, and the wait ends with the child.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias, assert_never

import msgspec

from outlast.errors import OutlastError
from outlast.journal.end import cancelled, failed, terminated
from outlast.journal.entry import (
    ChildRefused,
    ChildRequested,
    ChildStarted,
    MessageAnswered,
    MessageSent,
    OperationId,
    RunEnded,
    RunName,
    WatchRequested,
)
from outlast.journal.failure import Failure, capture, rebuild
from outlast.journal.place import origin_of
from outlast.replay.agenda import Agenda
from outlast.replay.command import AwaitRun, SendMessage, StartChild, WatchRun
from outlast.replay.context import ChildRequest, MessageRequest, OtherRunRequest, WatchRequest
from outlast.replay.operation import ChildOperation, SendOperation, WatchOperation
from outlast.replay.task import TaskLoop, WorkflowFuture

OtherRunEntry: TypeAlias = (
    ChildRequested
    | ChildStarted
    | ChildRefused
    | RunEnded
    | MessageSent
    | WatchRequested
    | MessageAnswered
)


class OtherRuns:
    """The operations of one run that are about other runs.

    Args:
        loop: The loop of the run.
        agenda: Where they are kept while they are open.
        name: Of the run.
    """

    def __init__(self, loop: TaskLoop, agenda: Agenda, name: RunName) -> None:
        self._loop = loop
        self._agenda = agenda
        self._name = name
        self._is_fork = False
        self._calls: Counter[tuple[str, bytes, str]] = Counter()
        self._messages: Counter[tuple[str, str, str, bytes]] = Counter()

    def know_as(self, name: RunName, *, is_fork: bool) -> None:
        """Name what is asked from here on as this run's, and ask anew for the children that are open.

        Args:
            is_fork: Ids of the workflow's own are not free: the origin's children have them.
        """
        self._name, self._is_fork = name, is_fork
        for child in self._agenda.children():
            self._ask_anew(child)

    def begin(
        self, operation: OperationId, request: OtherRunRequest, future: WorkflowFuture[Any]
    ) -> None:
        """Begin an operation; `future` is of what its request waits for."""
        match request:
            case ChildRequest():
                self._begin_child(operation, request, future)
            case MessageRequest():
                self._send(SendOperation(operation, request, future))
            case WatchRequest():
                self._agenda.open(
                    WatchOperation(operation, request, future), WatchRun(operation, request.run_id)
                )
            case _:
                assert_never(request)

    def apply(self, entry: OtherRunEntry) -> None:
        """Take in what was recorded about one.

        Raises:
            NonDeterminismError: The code asks for something else there.
            DecodeError: A result does not fit the type that the code names.
        """
        match entry:
            case ChildRequested():
                self._apply_child_request(entry)
            case ChildStarted():
                child = self._agenda.expect(entry.operation, ChildOperation, None)
                if child is not None:
                    self._started(child)
            case ChildRefused():
                child = self._agenda.expect(entry.operation, ChildOperation, None)
                if child is not None:
                    self._refuse(child, entry.failure)
            case RunEnded():
                self._apply_end(entry)
            case MessageSent():
                self._apply_sent(entry)
            case WatchRequested():
                self._apply_watch_request(entry)
            case MessageAnswered():
                self._apply_answer(entry)
            case _:
                assert_never(entry)

    def await_end(self, child: ChildOperation, future: WorkflowFuture[Any]) -> None:
        """Resolve a future with the end of a child, now or when it comes."""
        if child.end is not None:
            _settle(future, child.end, child.request.decode)
            return
        if child.refused is not None:
            _fail([future], child.refused)
            return
        self._hold(child, future)
        child.ends.append(future)

    # Children

    def _begin_child(
        self, operation: OperationId, request: ChildRequest, future: WorkflowFuture[Any]
    ) -> None:
        try:
            run_id = request.identify(self._name, operation, self._is_fork)
        except OutlastError as error:
            future.set_exception(error)
            return
        call = (request.name, request.arguments, request.own_id)
        self._calls[call] += 1
        child = ChildOperation(operation, request, run_id, self._calls[call])
        (child.starts if request.awaits == "start" else child.ends).append(future)
        self._agenda.open(child, _start(child))

    def _ask_anew(self, child: ChildOperation) -> None:
        """Ask for a child under the name that this run has now; who waits for it waits on."""
        try:
            run_id = child.request.identify(self._name, child.operation, self._is_fork)
        except OutlastError as error:
            self._refuse(child, capture(error))
            return
        child.is_requested = False
        self._retarget(child, run_id)
        self._agenda.command(_start(child))

    def _retarget(self, child: ChildOperation, run_id: str) -> None:
        """Let another run stand for a child, also for what is still to be sent to it."""
        child.run_id = run_id
        for send in self._agenda.sends():
            if send.request.child == child.operation and not send.is_requested:
                send.request = msgspec.structs.replace(send.request, run_id=run_id)
                self._agenda.command(_message(send))

    def _refuse(self, child: ChildOperation, failure: Failure) -> None:
        self._agenda.close(child.operation)
        child.refused = failure
        self._forget_cancel(child)
        _fail([*child.starts, *child.ends], failure)

    def _forget_cancel(self, child: ChildOperation) -> None:
        """Send no cancel to a child that has ended, or never was."""
        owed = self._agenda.find(_cancel_id(child))
        if isinstance(owed, SendOperation) and not owed.is_requested:
            self._agenda.abandon(owed.operation)

    def _apply_child_request(self, entry: ChildRequested) -> None:
        child = self._agenda.expect(entry.operation, ChildOperation, entry.name)
        if child is None:
            raise self._given_up(entry.operation, f"child {entry.name}")
        if child.run_id != entry.run_id:
            raise self._other_id(entry.operation, entry.run_id, child.run_id)
        child.is_requested = True
        if entry.as_run:
            self._retarget(child, entry.as_run)
        for future in (*child.starts, *child.ends):
            self._hold(child, future)
        self._agenda.command(AwaitRun(child.operation, child.run_id))

    def _hold(self, child: ChildOperation, future: WorkflowFuture[Any]) -> None:
        """Let a future end only with what it waits for; a cancel of it is sent to the child."""
        future.uncancellable = True
        future.on_refused = lambda: self._cancel(child)

    def _cancel(self, child: ChildOperation) -> None:
        """Send a child the cancel of who waits for it, once: a later one must not reach into its clean-up."""
        if child.is_cancelled:
            return
        child.is_cancelled = True
        by = {"by": f"run {self._name.run_id}", "reason": "the wait for it was cancelled"}
        request = MessageRequest(
            child.run_id, "cancel", "", msgspec.json.encode(by), child=child.operation
        )
        self._send(SendOperation(_cancel_id(child), request, None))

    def _started(self, child: ChildOperation) -> None:
        child.is_started = True
        waiting, child.starts = child.starts, []
        for future in waiting:
            if not future.done():
                future.set_result(_StartedChild(self, self._loop, child))

    def _apply_end(self, entry: RunEnded) -> None:
        found = self._agenda.find(entry.operation)
        if isinstance(found, WatchOperation):
            self._agenda.close(entry.operation)
            _check(entry, found.request.decode)
            _settle(found.future, entry, found.request.decode)
            return
        child = self._agenda.expect(entry.operation, ChildOperation, None)
        if child is None:
            return
        self._agenda.close(entry.operation)
        _check(entry, child.request.decode)
        child.end = entry
        # The end may come before the word of the start.
        self._started(child)
        waiting, child.ends = child.ends, []
        for future in waiting:
            _settle(future, entry, child.request.decode)
        self._forget_cancel(child)

    # Messages and watches

    def _send(self, send: SendOperation) -> None:
        request = send.request
        # A cancel says who sends it, which is another run in a fork.
        value = b"" if request.kind == "cancel" else request.value
        message = (request.child or request.run_id, request.kind, request.name, value)
        self._messages[message] += 1
        send.number = self._messages[message]
        self._agenda.open(send, _message(send))

    def _apply_sent(self, entry: MessageSent) -> None:
        send = self._agenda.expect(entry.operation, SendOperation, entry.name)
        if send is None:
            raise self._given_up(entry.operation, f"{entry.kind} {entry.name}".rstrip())
        if (send.request.run_id, send.request.kind) != (entry.run_id, entry.kind):
            raise self._other_id(
                entry.operation,
                f"{entry.run_id}, {entry.kind}",
                f"{send.request.run_id}, {send.request.kind}",
            )
        send.is_requested = True
        self._agenda.command(AwaitRun(entry.operation, entry.run_id))

    def _apply_watch_request(self, entry: WatchRequested) -> None:
        watch = self._agenda.expect(entry.operation, WatchOperation)
        if watch is None:
            raise self._given_up(entry.operation, f"watch of {entry.run_id}")
        if watch.request.run_id != entry.run_id:
            raise self._other_id(entry.operation, entry.run_id, watch.request.run_id)
        watch.is_requested = True
        self._agenda.command(AwaitRun(entry.operation, entry.run_id))

    def _apply_answer(self, entry: MessageAnswered) -> None:
        found = self._agenda.find(entry.operation)
        if not isinstance(found, WatchOperation):
            found = self._agenda.expect(entry.operation, SendOperation, None)
        if found is None:
            return
        self._agenda.close(entry.operation)
        if found.future is None:
            return
        if entry.failure is not None:
            _fail([found.future], entry.failure)
        elif not found.future.done():
            found.future.set_result(None)

    # What does not fit

    def _given_up(self, operation: OperationId, recorded: str) -> OutlastError:
        return self._agenda.mismatch(
            "the journal holds a request to another run that the code gave up before it was made",
            recorded=f"{recorded} at {operation}",
            asked="nothing: the call was cancelled",
            operation=operation,
        )

    def _other_id(self, operation: OperationId, recorded: str, asked: str) -> OutlastError:
        return self._agenda.mismatch(
            "the journal holds a request to another run than the code asks for",
            recorded=f"run {recorded} at {operation}",
            asked=f"run {asked}",
            operation=operation,
        )


class _StartedChild:
    """A child that exists; see `Child`."""

    def __init__(self, runs: OtherRuns, loop: TaskLoop, child: ChildOperation) -> None:
        self._runs = runs
        self._loop = loop
        self._child = child

    @property
    def operation(self) -> OperationId:
        """The operation that started it."""
        return self._child.operation

    @property
    def run_id(self) -> str:
        """Its id."""
        return self._child.run_id

    def ended(self) -> asyncio.Future[Any]:
        """Return a future of its result."""
        future = WorkflowFuture[Any](loop=self._loop)
        if not self._loop.evicting:
            self._runs.await_end(self._child, future)
        return future


def _start(child: ChildOperation) -> StartChild:
    request = child.request
    return StartChild(
        operation=child.operation,
        name=request.name,
        run_id=child.run_id,
        arguments=request.arguments,
        parent_close=request.parent_close,
        tells_start=request.awaits == "start" and not child.is_started,
        timeout_seconds=request.timeout_seconds,
        durability=request.durability,
        own_id=request.own_id,
        number=child.number,
    )


def _message(send: SendOperation) -> SendMessage:
    request = send.request
    return SendMessage(
        operation=send.operation,
        name=request.name,
        run_id=request.run_id,
        kind=request.kind,
        value=request.value,
        child=request.child,
        number=send.number,
    )


def _cancel_id(child: ChildOperation) -> OperationId:
    """Return the id of the cancel that is sent to a child for who waits for it: it takes no number of any task."""
    return OperationId(f"{child.operation}/cancel")


def _check(entry: RunEnded, decode: Callable[[bytes], Any]) -> None:
    """Decode a result although nobody may wait: what does not fit is for an operator, now and not when somebody asks."""
    if entry.status == "completed" and entry.failure is None:
        decode(bytes(entry.value))


def _settle(future: WorkflowFuture[Any], entry: RunEnded, decode: Callable[[bytes], Any]) -> None:
    if future.done():
        return
    if entry.status == "terminated":
        future.set_exception(terminated(entry.run_id, entry.reason))
    elif entry.failure is None:
        future.set_result(decode(bytes(entry.value)))
    elif entry.status == "cancelled":
        future.set_exception(cancelled(entry.run_id, entry.failure))
    else:
        place = origin_of(entry.failure, ())
        future.set_exception(failed(entry.run_id, entry.failure, place))


def _fail(futures: list[WorkflowFuture[Any]], failure: Failure) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(rebuild(failure))
