"""What a run has asked of other runs: children that it started, messages that it sent, ends that it waits for.

Each is an operation in three parts: commanded; requested, from where it will happen whatever becomes of this run; and answered.
Cancelling who waits for a child does not give it up: the cancel is sent on, and the wait ends with the child.
"""

from __future__ import annotations

import asyncio
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
    WatchRequested,
)
from outlast.journal.failure import Failure, rebuild
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
        run_id: Of the run.
    """

    def __init__(self, loop: TaskLoop, agenda: Agenda, run_id: str) -> None:
        self._loop = loop
        self._agenda = agenda
        self._run_id = run_id

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
                    self._agenda.close(entry.operation)
                    _fail([*child.starts, *child.ends], entry.failure)
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
        self._hold(child, future)
        child.ends.append(future)

    # Children

    def _begin_child(
        self, operation: OperationId, request: ChildRequest, future: WorkflowFuture[Any]
    ) -> None:
        try:
            run_id = request.identify(operation)
        except OutlastError as error:
            future.set_exception(error)
            return
        tells_start = request.awaits == "start"
        child = ChildOperation(operation, request, run_id)
        (child.starts if tells_start else child.ends).append(future)
        command = StartChild(
            operation=operation,
            name=request.name,
            run_id=run_id,
            arguments=request.arguments,
            parent_close=request.parent_close,
            tells_start=tells_start,
            timeout_seconds=request.timeout_seconds,
            durability=request.durability,
        )
        self._agenda.open(child, command)

    def _apply_child_request(self, entry: ChildRequested) -> None:
        child = self._agenda.expect(entry.operation, ChildOperation, entry.name)
        if child is None:
            raise self._given_up(entry.operation, f"child {entry.name}")
        if child.run_id != entry.run_id:
            raise self._other_id(entry.operation, entry.run_id, child.run_id)
        child.is_requested = True
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
        by = {"by": f"run {self._run_id}", "reason": "the wait for it was cancelled"}
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
        owed = self._agenda.find(_cancel_id(child))
        if isinstance(owed, SendOperation) and not owed.is_requested:
            self._agenda.abandon(owed.operation)

    # Messages and watches

    def _send(self, send: SendOperation) -> None:
        request = send.request
        command = SendMessage(
            operation=send.operation,
            name=request.name,
            run_id=request.run_id,
            kind=request.kind,
            value=request.value,
            child=request.child,
        )
        self._agenda.open(send, command)

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
