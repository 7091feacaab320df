"""The loop of workflow code: order, names, timers, cancels, refusals, waiting, eviction."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import heapq
import inspect
import itertools
import sys
import threading
import warnings
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from outlast.errors import ForbiddenInWorkflowError
from outlast.replay.eviction import _pinned
from outlast.replay.loop import TimerHandle, WorkflowLoop
from outlast.replay.task import RunEvicted, Startable, TaskPath, WorkflowFuture, WorkflowTask


class VirtualHost:
    """A host whose clock jumps to the next timer whenever the run is idle."""

    def __init__(self):
        self.now = 0.0
        self.due: list[tuple[float, int, TimerHandle]] = []
        self.order = itertools.count()
        self.cancelled: list[TimerHandle] = []
        self.begun: list[tuple[Any, str]] = []

    def start_timer(self, delay_seconds: float, handle: TimerHandle) -> None:
        heapq.heappush(self.due, (self.now + delay_seconds, next(self.order), handle))

    def cancel_timer(self, handle: TimerHandle) -> None:
        self.cancelled.append(handle)
        self.due = [entry for entry in self.due if entry[2] is not handle]
        heapq.heapify(self.due)

    def time(self) -> float:
        return self.now


class Started(Startable[int]):
    """A call that answers when its future is resolved."""

    def __init__(self):
        self.future: WorkflowFuture[int] | None = None
        self.waiting: Any = None
        self.closed = False

    def begin(self) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.host.begun.append((self, loop.current_path()))
        self.future = loop.create_future()

    def __await__(self):
        if self.future is None:
            self.begin()
        return self.future.__await__()

    def send(self, value):
        if self.waiting is None:
            self.waiting = self.__await__()
        return next(self.waiting) if value is None else self.waiting.send(value)

    def throw(self, *error):
        if self.waiting is None:
            raise error[0]
        return self.waiting.throw(*error)

    def close(self):
        self.closed = True


@pytest.fixture
def host():
    """A host with a virtual clock."""
    return VirtualHost()


@pytest.fixture
def loop(host):
    """A loop that is closed at the end, without noise from the collector."""
    loop = WorkflowLoop(host)
    yield loop
    loop.close()
    gc.collect()


def drive(loop: WorkflowLoop, coro: Any) -> Any:
    """Run a workflow to its end by virtual time and return its result."""
    task = loop.spawn(coro)
    loop.run_until_idle()
    host: Any = loop.host
    while not task.done():
        assert host.due, "the run waits for nothing"
        host.now, _, handle = heapq.heappop(host.due)
        loop.fire(handle)
        loop.run_until_idle()
    assert not loop.errors
    return task.result()


async def nap(seconds: float, value: Any = None) -> Any:
    await asyncio.sleep(seconds)
    return value


# Order, time, nesting


def test_callbacks_run_first_in_first_out(loop):
    """The ready queue is strictly first in, first out, also for what callbacks add."""
    seen: list[int] = []
    loop.call_soon(lambda: (seen.append(1), loop.call_soon(seen.append, 4)))
    loop.call_soon(seen.append, 2)
    loop.call_later(0, seen.append, 3)
    loop.run_until_idle()
    assert seen == [1, 2, 3, 4]


def test_sleep_is_a_timer_of_the_host(loop, host):
    """A sleep asks the host for a timer, and takes no real time."""
    assert drive(loop, nap(3600, "late")) == "late"
    assert host.now == 3600
    assert host.cancelled == []


def test_cancelled_timer_is_reported_once(loop, host):
    """A timer that is cancelled before it fired is taken back; one that fired is not."""
    handle = loop.call_later(5, print)
    handle.operation = "r:1"
    handle.cancel()
    handle.cancel()
    assert [one.operation for one in host.cancelled] == ["r:1"]
    assert host.due == []


def test_deadlines_do_not_drift_by_rounding(loop, host):
    """A timeout at a late moment asks for the delay that was written, to the microsecond."""
    host.now = 1_764_000_000.123457

    async def main():
        async with asyncio.timeout(0.1):
            await asyncio.Event().wait()

    loop.spawn(main())
    loop.run_until_idle()
    assert round(host.due[0][0] - host.now, 6) == 0.1


def test_infinite_delay_is_no_timer_and_nan_is_refused(loop, host):
    """Forever needs no timer; not-a-number is an error."""
    loop.call_later(float("inf"), print).cancel()
    assert host.due == host.cancelled == []
    with pytest.raises(ValueError, match="NaN"):
        loop.call_later(float("nan"), print)


def test_runs_within_a_plain_callback_of_another_loop(host):
    """The run's loop nests in a callback of the worker's loop, which is put back afterwards."""

    async def outer():
        here = asyncio.get_running_loop()
        done = here.create_future()

        def turn():
            inner = WorkflowLoop(host)
            result = drive(inner, nap(1, "inner"))
            inner.close()
            done.set_result((result, asyncio.get_running_loop() is here, sys.get_asyncgen_hooks()))

        hooks = sys.get_asyncgen_hooks()
        here.call_soon(turn)
        result, restored, hooks_after = await done
        return result, restored, hooks_after == hooks

    assert asyncio.run(outer()) == ("inner", True, True)


def test_refuses_to_be_driven_from_a_task(loop):
    """A task may not drive a run: Python 3.14 could not enter the run's tasks."""

    async def outer():
        loop.call_soon(print)
        with pytest.raises(RuntimeError, match="from within a task"):
            loop.run_until_idle()

    asyncio.run(outer())


def test_refuses_to_be_entered_twice(loop):
    """A callback cannot run the loop that runs it."""
    seen = []

    def again():
        loop.call_soon(print)
        with pytest.raises(RuntimeError, match="running already"):
            loop.run_until_idle()
        loop._ready.clear()
        seen.append(True)

    loop.call_soon(again)
    loop.run_until_idle()
    assert seen == [True]


def test_errors_of_callbacks_are_kept_and_interrupts_propagate(loop):
    """An exception of a callback is kept for the machine; Ctrl-C leaves the loop usable."""

    def interrupt():
        raise KeyboardInterrupt

    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(interrupt)
    loop.call_soon(loop.create_future)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_idle()
    assert not loop.is_running()
    assert asyncio._get_running_loop() is None
    loop.run_until_idle()
    assert [type(error) for error in loop.errors] == [ZeroDivisionError]


def test_exceptions_that_nobody_retrieved_are_no_errors_of_the_run(loop):
    """What the collector reports, at a moment of its own, must not change the run."""

    async def main():
        asyncio.get_running_loop().create_future().set_exception(ValueError("lost"))

    drive(loop, main())
    gc.collect()
    assert [str(error) for error in loop.unretrieved] == ["lost"]


def test_a_workflow_that_spins_is_stopped(loop, monkeypatch):
    """A loop that never waits for anything durable ends in an error instead of a hang."""
    monkeypatch.setattr("outlast.replay.loop.SPIN_LIMIT", 1000)

    async def spin():
        while True:
            await asyncio.sleep(0)

    loop.spawn(spin())
    with pytest.raises(ForbiddenInWorkflowError, match="without waiting"):
        loop.run_until_idle()


# Names and numbers


def test_paths_count_tasks_as_their_parents_create_them(loop):
    """A child's path holds its number among its parent's children, and is its default name."""
    seen: list[str] = []

    async def child(depth):
        seen.append(asyncio.current_task().path)
        assert asyncio.current_task().get_name() == asyncio.current_task().path
        if depth:
            await asyncio.gather(child(depth - 1), child(depth - 1))

    async def main():
        await child(0)
        await asyncio.gather(child(1), child(1))

    drive(loop, main())
    assert seen == ["r", "r.1", "r.2", "r.1.1", "r.1.2", "r.2.1", "r.2.2"]


def test_operations_are_counted_by_task(loop):
    """Each task counts its operations from 1; callbacks without a task share one branch."""
    seen: list[Any] = []

    async def child():
        seen.extend((loop.next_operation(), loop.next_operation()))

    async def main():
        seen.append(loop.next_operation())
        await asyncio.gather(child(), child())
        seen.append(asyncio.current_task().next_operation())
        asyncio.get_running_loop().call_soon(lambda: seen.append(loop.next_operation()))
        asyncio.get_running_loop().call_soon(lambda: asyncio.create_task(child()))
        await asyncio.sleep(1)

    drive(loop, main())
    assert seen == [
        *[("r", 1), ("r.1", 1), ("r.1", 2), ("r.2", 1), ("r.2", 2), 2],
        *[("r~", 1), ("r~.1", 1), ("r~.1", 2)],
    ]


def test_a_call_begins_when_its_task_is_created(loop, host):
    """A startable begins at once in the creating task, and shifts no sibling's path."""
    paths: list[str] = []

    async def child():
        paths.append(loop.current_path())

    async def main():
        async with asyncio.TaskGroup() as group:
            calls = [Started(), Started()]
            tasks = [group.create_task(call) for call in calls]
            group.create_task(child())
            assert [path for _, path in host.begun] == ["r", "r"]
            for number, call in enumerate(calls):
                call.future.set_result(number)
        return [task.result() for task in tasks], [task.path for task in tasks]

    assert drive(loop, main()) == ([0, 1], ["r!1", "r!2"])
    assert paths == ["r.1"]


def test_gather_and_shield_and_wait_for_take_calls(loop, host):
    """Calls can be gathered and shielded (begun as tasks) and waited for (in the current task)."""

    async def main():
        first, second, third = Started(), Started(), Started()
        loop.call_later(1, lambda: [one.future.set_result(7) for one in (first, second, third)])
        both = asyncio.gather(first, asyncio.shield(second))
        return await asyncio.wait_for(third, 5), await both, len(asyncio.all_tasks())

    assert drive(loop, main()) == (7, [7, 7], 1)
    assert [path for _, path in host.begun] == ["r", "r", "r"]


def test_sets_of_tasks_and_futures_have_an_order(loop):
    """Tasks, futures and what gather returns hash by number, not by address."""

    async def main():
        futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
        gathered = asyncio.gather(*futures)
        numbers = [hash(one) for one in {gathered, *futures, asyncio.current_task()}]
        for future in futures:
            future.set_result(None)
        await gathered
        return numbers

    assert drive(loop, main()) == [1, 2, 3, 4, 5]


def test_parked_runs_do_not_crowd_the_set_of_all_tasks(loop):
    """The process-wide set of tasks holds none of a run's: thousands of equal hashes would make it slow."""
    task = loop.spawn(nap(1))
    for name in ("_all_tasks", "_scheduled_tasks"):
        assert task not in set(getattr(asyncio.tasks, name, ()))
    assert asyncio.all_tasks(loop) == {task}


def test_options_of_newer_pythons_are_accepted(loop):
    """`name`, `context` and options that a newer Python passes do not break `create_task`."""
    variable: ContextVar[int] = ContextVar("variable", default=0)

    async def main():
        task = loop.create_task(nap(0, 5), name="mine", eager_start=True)
        assert (task.get_name(), task.done()) == ("mine", False)
        return await task, variable.get()

    assert drive(loop, main()) == (5, 0)


# Cancelling


def test_cancels_of_one_callback_are_delivered_in_creation_order(loop):
    """However a callback orders its cancels, tasks meet them in the order of their creation."""
    seen: list[str] = []

    async def child():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(loop.current_path())
            raise

    async def main():
        tasks = [asyncio.create_task(child()) for _ in range(5)]
        await asyncio.sleep(1)
        for index in (3, 0, 4, 2, 1):
            assert tasks[index].cancel()
            assert tasks[index].cancelling() == 1
            assert not tasks[index].cancelled()
        await asyncio.wait(tasks)

    drive(loop, main())
    assert seen == [f"r.{k}" for k in range(1, 6)]


def test_cancels_from_outside_and_of_oneself_are_immediate(loop):
    """The machine's cancel and a task's own are delivered at once."""

    async def main():
        asyncio.current_task().cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        asyncio.current_task().uncancel()
        await asyncio.Event().wait()

    task = loop.spawn(main())
    loop.run_until_idle()
    task.cancel()
    loop.run_until_idle()
    assert task.cancelled()


def test_uncancel_meets_a_cancel_that_is_still_held_back(loop):
    """Counts balance when a cancel is taken back within the same callback; the cancel arrives nevertheless."""

    async def child():
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(5)
        return asyncio.current_task().cancelling()

    async def main():
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        task.cancel()
        task.cancel()
        assert (task.cancelling(), task.uncancel(), task.cancelling()) == (2, 1, 1)
        return await task

    assert drive(loop, main()) == 1


def test_caught_cancels_leave_the_counter_balanced(loop):
    """A caught cancel runs its clean-up once and later waits do not raise again."""
    seen: list[str] = []

    async def main():
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(10)
        except TimeoutError:
            seen.append("clean-up")
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return asyncio.current_task().cancelling()

    assert drive(loop, main()) == 0
    assert seen == ["clean-up"]


def test_an_uncancellable_future_postpones_the_cancel(loop):
    """The await of a committed effect ends when its outcome is there, then raises."""
    seen: list[Any] = []

    async def main():
        effect = loop.create_future()
        effect.uncancellable = True
        loop.call_later(60, effect.set_result, "paid")
        assert not effect.cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                seen.append(await effect)
        return loop.time(), effect.result(), asyncio.current_task().cancelling()

    assert drive(loop, main()) == (60, "paid", 0)
    assert seen == []


def test_an_uncancellable_future_holds_a_task_that_is_awaited(loop):
    """Cancelling through gather and a task group waits for the committed effect too."""

    async def child(effect):
        try:
            return await effect
        finally:
            assert effect.done()

    async def fail():
        await asyncio.sleep(1)
        raise ValueError

    async def main():
        effect = loop.create_future()
        effect.uncancellable = True
        loop.call_later(60, effect.set_result, "paid")
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(child(effect))
                group.create_task(fail())
        return loop.time(), task.cancelled(), len(caught.value.exceptions)

    assert drive(loop, main()) == (60, True, 1)


# Waiting


def test_wait_for_creates_no_task_and_cancels_what_it_waits_for(loop):
    """`wait_for` awaits in the current task on every Python, and a timeout cancels what it awaited."""
    paths: list[str] = []

    async def child(seconds):
        paths.append(loop.current_path())
        return await nap(seconds, "value")

    async def main():
        assert await asyncio.wait_for(child(1), 2) == "value"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child(3), 2)
        future = loop.create_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 2)
        assert future.cancelled()
        assert await asyncio.wait_for(child(1), None) == "value"

    drive(loop, main())
    assert paths == ["r", "r", "r", "r"][: len(paths)]
    assert len(paths) == 3


def test_wait_for_without_time_starts_nothing(loop):
    """With no time left only what is done already gives its result."""

    async def main():
        started: list[int] = []

        async def child():
            started.append(1)

        future, pending = loop.create_future(), loop.create_future()
        future.set_result(9)
        assert await asyncio.wait_for(future, 0) == 9
        for make in (child, lambda: pending, lambda: asyncio.create_task(child()), Started):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(make(), 0)
        assert pending.cancelled()
        return started

    assert drive(loop, main()) == []


def test_wait_and_as_completed_take_tasks_only(loop):
    """Bare coroutines are refused, tasks work, and results come as they complete."""

    async def main():
        tasks = [asyncio.create_task(nap(4 - k, k)) for k in range(3)]
        order = [await one for one in asyncio.as_completed(tasks)]
        done, pending = await asyncio.wait([*tasks, asyncio.create_task(nap(9))], timeout=1)
        for function in (asyncio.wait, asyncio.as_completed):
            for bare in (nap(1), Started()):
                with pytest.raises(ForbiddenInWorkflowError, match="Create the tasks first"):
                    answer = function([bare, tasks[0]])
                    await answer if inspect.isawaitable(answer) else next(answer)
        return order, len(done), len(pending)

    assert drive(loop, main()) == ([2, 1, 0], 3, 1)


def test_other_loops_keep_their_own_functions(loop):
    """The replaced functions change nothing elsewhere, and look as before."""

    async def main():
        async def bare():
            return 1

        assert await asyncio.wait_for(bare(), 1) == 1
        assert [await one for one in asyncio.as_completed([bare()])] == [1]
        done, _ = await asyncio.wait([asyncio.create_task(bare())])
        assert asyncio.current_task() in asyncio.all_tasks()
        return len(done)

    assert asyncio.run(main()) == 1
    assert inspect.iscoroutinefunction(asyncio.wait_for)
    assert list(inspect.signature(asyncio.wait_for).parameters) == ["fut", "timeout"]
    assert asyncio.wait_for is asyncio.tasks.wait_for
    before = asyncio.wait_for
    WorkflowLoop(VirtualHost()).close()
    assert asyncio.wait_for is before


def test_primitives_work_as_everywhere(loop):
    """Queue, lock, semaphore, condition, event and barrier do on this loop what they do on others."""

    async def main():
        queue, lock, semaphore = asyncio.Queue(1), asyncio.Lock(), asyncio.Semaphore(2)
        condition, event, barrier = asyncio.Condition(), asyncio.Event(), asyncio.Barrier(2)
        seen: list[Any] = []

        async def produce():
            for item in range(3):
                await queue.put(item)
            async with condition:
                condition.notify_all()
            event.set()
            await barrier.wait()

        async def consume():
            async with condition:
                for _ in range(3):
                    seen.append(await queue.get())
                await condition.wait()
            await event.wait()
            async with lock, semaphore:
                await barrier.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            group.create_task(produce())
        return seen

    assert drive(loop, main()) == [0, 1, 2]


def test_exception_groups(loop):
    """A task group cancels siblings, gathers errors and leaves the parent's counter balanced."""

    async def fail(seconds, error):
        await asyncio.sleep(seconds)
        raise error

    async def stubborn():
        try:
            await asyncio.sleep(100)
        finally:
            raise KeyError

    async def main():
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail(1, ValueError()))
                group.create_task(stubborn())
                slow = group.create_task(nap(100))
                await asyncio.sleep(100)
        except* ValueError as values:
            kinds = [type(error) for error in values.exceptions]
        except* KeyError as keys:
            kinds.extend(type(error) for error in keys.exceptions)
        return kinds, slow.cancelled(), asyncio.current_task().cancelling(), loop.time()

    assert drive(loop, main()) == ([ValueError, KeyError], True, 0, 1)


# Refusals


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.get_running_loop().run_in_executor(None, print),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.start_server(print, "localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.create_subprocess_shell("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
        lambda: asyncio.get_running_loop().add_reader(0, print),
        lambda: asyncio.get_running_loop().add_signal_handler(2, print),
        lambda: asyncio.get_running_loop().run_forever(),
        lambda: asyncio.get_running_loop().stop(),
        lambda: asyncio.get_running_loop().set_task_factory(None),
    ],
)
def test_what_replay_cannot_repeat_is_refused(loop, forbidden):
    """Threads, sockets, processes and signals raise, and the error says what to write instead."""

    async def main():
        with pytest.raises(ForbiddenInWorkflowError) as caught:
            await forbidden()
        return caught.value.hint

    assert drive(loop, main())


def test_every_method_of_an_event_loop_is_ours_or_refused():
    """No method of asyncio's abstract loop is left to say just `NotImplementedError`."""
    names = [name for name, _ in inspect.getmembers(asyncio.AbstractEventLoop, inspect.isfunction)]
    inherited = [
        n for n in names if getattr(WorkflowLoop, n) is getattr(asyncio.AbstractEventLoop, n)
    ]
    assert [name for name in inherited if not name.startswith("__")] == []


def test_asyncio_run_within_a_workflow_is_refused(loop):
    """`asyncio.run` says that a loop runs already, and leaves no coroutine behind."""

    async def main():
        with pytest.raises(ForbiddenInWorkflowError, match=r"asyncio\.run"):
            asyncio.run(nap(1))

    drive(loop, main())


def test_what_another_thread_or_loop_does_is_not_waited_for(loop):
    """It could not wake the run. A future of the run passes; elsewhere asyncio's functions are as ever."""
    outcome: concurrent.futures.Future[int] = concurrent.futures.Future()
    other = asyncio.new_event_loop()

    async def main():
        with pytest.raises(ForbiddenInWorkflowError, match=r"asyncio\.wrap_future"):
            asyncio.wrap_future(outcome)
        with pytest.raises(ForbiddenInWorkflowError, match=r"asyncio\.run_coroutine_threadsafe"):
            asyncio.run_coroutine_threadsafe(nap(1), other)
        own = loop.create_future()
        assert asyncio.wrap_future(own) is own

    drive(loop, main())

    async def elsewhere():
        handed = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 5), asyncio.get_running_loop())
        return await asyncio.wrap_future(handed)

    assert other.run_until_complete(elsewhere()) == 5
    other.close()


def test_other_threads_cannot_reach_the_loop(loop):
    """`call_soon_threadsafe` works within the run and is refused from another thread."""
    seen: list[Any] = []

    async def main():
        loop.call_soon_threadsafe(seen.append, "within")
        await asyncio.sleep(0)

    def intrude():
        with pytest.raises(ForbiddenInWorkflowError, match="another thread"):
            loop.call_soon_threadsafe(print)
        seen.append("refused")

    drive(loop, main())
    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert seen == ["within", "refused"]


# Generators


def test_generators_live_until_the_run_ends(loop):
    """A generator that was left is closed when the loop is, in order of creation, and never by the collector."""
    seen: list[str] = []

    async def numbers(name):
        try:
            yield 1
            yield 2
        finally:
            seen.append(name)

    async def main():
        for name in ("first", "second"):
            async for _ in numbers(name):
                break
        async with aclosing(numbers("closed")) as generator:
            await anext(generator)
        gc.collect()
        assert seen == ["closed"]

    drive(loop, main())
    gc.collect()
    assert seen == ["closed"]
    loop.close()
    assert seen == ["closed", "first", "second"]


def test_finished_generators_and_tasks_are_forgotten(loop):
    """Neither generators nor tasks that have ended pile up."""

    async def one():
        yield 1

    async def main():
        for _ in range(500):
            async for _ in one():
                pass
            await asyncio.create_task(nap(0))

    drive(loop, main())
    assert len(loop._generators) < 100
    assert len(loop._tasks) < 100


# Eviction


def evicted(loop: WorkflowLoop, coro: Any) -> WorkflowTask[Any]:
    """Run a workflow until it waits, then evict it; any noise of the collector is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = loop.spawn(coro)
        loop.run_until_idle()
        assert not task.done()
        loop.evict()
        gc.collect()
    return task


def test_eviction_ends_tasks_newest_first_and_reaches_no_host(loop, host):
    """Clean-up runs in each task's own name and context, and nothing of it reaches the host."""
    seen: list[Any] = []
    variable: ContextVar[str] = ContextVar("variable")

    async def child(name):
        token = variable.set(name)
        try:
            await asyncio.sleep(10)
        finally:
            variable.reset(token)
            seen.append((loop.current_path(), asyncio.get_running_loop() is loop, loop.time()))
            loop.call_soon(seen.append, "never")
            loop.call_later(5, seen.append, "never")
            asyncio.create_task(nap(1))
            await asyncio.gather(nap(1), nap(2), Started())
            seen.append("never")

    async def main():
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child("a"))
                group.create_task(child("b"))
        except BaseException as error:
            seen.append(type(error))
            raise

    task = evicted(loop, main())
    timers, begun = list(host.due), list(host.begun)
    loop.run_until_idle()
    assert seen == [("r.2", True, 0.0), ("r.1", True, 0.0), RunEvicted]
    assert (host.due, host.begun, host.cancelled) == (timers, begun, [])
    assert not task.done()
    assert asyncio._get_running_loop() is None


def test_eviction_insists_and_pins_what_will_not_end(loop):
    """A coroutine that awaits in its clean-up is told again; one that never ends is kept alive and reported."""
    seen: list[int] = []

    async def slow():
        for number in range(5):
            with suppress(BaseException):
                await asyncio.sleep(10)
            seen.append(number)

    async def never():
        while True:
            with suppress(BaseException):
                await asyncio.sleep(10)

    async def main():
        await asyncio.gather(slow(), never())

    before = len(_pinned)
    evicted(loop, main())
    assert seen == [0, 1, 2, 3, 4]
    assert [one.__name__ for one in loop.pinned] == ["never"]
    assert len(_pinned) == before + 1


def test_eviction_of_unstarted_tasks_calls_and_generators(loop):
    """What has not begun never begins, a call is told like a coroutine, generators are closed."""
    seen: list[Any] = []

    async def unstarted():
        seen.append("ran")

    async def numbers():
        try:
            yield 1
        finally:
            seen.append("closing")
            await asyncio.sleep(1)
            seen.append("not reached")

    async def main():
        generator = numbers()
        await anext(generator)
        await asyncio.gather(Started(), unstarted_later())

    async def unstarted_later():
        await asyncio.Event().wait()

    task = loop.spawn(main())
    loop.run_until_idle()
    loop.spawn(unstarted(), TaskPath("m1"))
    loop.evict()
    gc.collect()
    assert seen == ["closing"]
    assert loop.pinned == []
    assert not task.done()
    loop.evict()


def test_outcomes_after_eviction_change_nothing(loop):
    """A future that is resolved after the eviction wakes nobody."""
    seen: list[Any] = []
    future = loop.create_future()

    async def main():
        seen.append(await future)

    evicted(loop, main())
    future.set_result(1)
    loop.run_until_idle()
    assert seen == []
    assert not future.cancel()


def test_interrupt_during_eviction_still_ends_the_others(loop):
    """Ctrl-C in a clean-up is raised once all tasks have ended."""
    seen: list[str] = []

    async def child(name, error):
        try:
            await asyncio.sleep(10)
        finally:
            seen.append(name)
            raise error

    async def main():
        await asyncio.gather(child("a", ValueError()), child("b", KeyboardInterrupt()))

    loop.spawn(main())
    loop.run_until_idle()
    with pytest.raises(KeyboardInterrupt):
        loop.evict()
    assert seen == ["b", "a"]


def test_close_drains_what_the_end_left_over(loop):
    """After the root's end, tasks that it left behind are ended in the same way."""
    seen: list[Any] = []

    async def background():
        try:
            await asyncio.sleep(100)
        except BaseException as error:
            seen.append(type(error))
            raise

    async def main():
        asyncio.create_task(background())
        await asyncio.sleep(1)

    drive(loop, main())
    loop.close()
    assert loop.is_closed()
    assert seen == [RunEvicted]
