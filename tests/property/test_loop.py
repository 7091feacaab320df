"""Laws of the loop: a run and its replay are one computation, asyncio means what it means elsewhere, eviction is silent."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import sys
import warnings
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from searching import examples

from outlast.replay.loop import WorkflowLoop

Program = tuple[Any, ...]

quick = examples(1.5)


class VirtualHost:
    """A host whose clock jumps to the next timer; every call of the loop is noted."""

    def __init__(self):
        self.now = 0.0
        self.due: list[tuple[float, int, Any]] = []
        self.order = itertools.count()
        self.calls: list[Any] = []

    def start_timer(self, delay_seconds, handle):
        handle.operation = next(self.order)
        self.calls.append(("start", delay_seconds, handle.operation))
        heapq.heappush(self.due, (self.now + delay_seconds, handle.operation, handle))

    def cancel_timer(self, handle):
        self.calls.append(("cancel", handle.operation))
        self.due = [entry for entry in self.due if entry[2] is not handle]
        heapq.heapify(self.due)

    def time(self):
        return self.now


class VirtualLoop(asyncio.SelectorEventLoop):
    """The interpreter's own loop, on a clock that jumps."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self._clock_resolution = 0.5  # delays are whole numbers
        self.set_exception_handler(lambda *_: None)

    def time(self):
        return self.now

    def _run_once(self):
        waiting = [handle for handle in self._scheduled if not handle._cancelled]
        if waiting and not self._ready:
            self.now = max(self.now, min(handle._when for handle in waiting))
        super()._run_once()


class Interpreter:
    """Runs a program as workflow code, and notes what it does."""

    def __init__(self, *, distinct: bool):
        self.trace: list[Any] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.queue: asyncio.Queue[int] = asyncio.Queue(2)
        self.event = asyncio.Event()
        self.ticks = itertools.count()
        self.distinct = distinct

    def note(self, what: Any) -> None:
        loop = asyncio.get_running_loop()
        where = loop.current_path() if isinstance(loop, WorkflowLoop) else ""
        self.trace.append((where, what, loop.time()))

    def delay(self, seconds: float) -> float:
        """Return a delay that no sum of other delays equals, where loops break ties differently."""
        return seconds * 2**40 + 2 ** next(self.ticks) if self.distinct else seconds

    def task(self, program: Program) -> asyncio.Task[Any]:
        task = asyncio.create_task(self.run(program))
        self.tasks.append(task)
        return task

    async def run(self, program: Program) -> Any:
        kind, *parts = program
        self.note(kind)
        try:
            return await getattr(self, f"do_{kind}")(*parts)
        except BaseException as error:
            self.note((kind, type(error).__name__))
            raise

    async def do_sleep(self, seconds):
        return await asyncio.sleep(self.delay(seconds) if seconds else 0, seconds)

    async def do_fail(self, error):
        raise error

    async def do_seq(self, *programs):
        return [await self.run(program) for program in programs]

    async def do_gather(self, keep, *programs):
        results = await asyncio.gather(*map(self.run, programs), return_exceptions=keep)
        return [shape(result) for result in results]

    async def do_group(self, body, *programs):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.run(program)) for program in programs]
            self.tasks += tasks
            await self.run(body)
        return [task.result() for task in tasks]

    async def do_timeout(self, seconds, program):
        async with asyncio.timeout(self.delay(seconds)):
            return await self.run(program)

    async def do_wait_for(self, seconds, program):
        return await asyncio.wait_for(self.run(program), self.delay(seconds))

    async def do_shield(self, program):
        return await asyncio.shield(self.run(program))

    async def do_catch(self, program):
        try:
            return await self.run(program)
        except Exception as error:
            return shape(error)

    async def do_swallow(self, program):
        try:
            return await self.run(program)
        except asyncio.CancelledError:
            return "swallowed"

    async def do_cleanup(self, program, last):
        try:
            return await self.run(program)
        finally:
            await self.run(last)

    async def do_interrupt(self):
        asyncio.current_task().cancel()

    async def do_cancel(self, *numbers):
        for number in numbers:
            if self.tasks:
                self.note(self.tasks[number % len(self.tasks)].cancel())

    async def do_spawn(self, program):
        self.task(program)

    async def do_put(self, item):
        self.queue.put_nowait(item) if item else await self.queue.put(item)

    async def do_get(self):
        async with asyncio.timeout(2):
            return await self.queue.get()

    async def do_await_event(self):
        async with asyncio.timeout(3):
            return await self.event.wait()

    async def do_set_event(self):
        self.event.set()

    async def do_first(self, *programs):
        tasks = {self.task(program) for program in programs}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return [len(done), len(pending), [task.cancelled() for task in done]]

    async def do_generate(self, program):
        async def numbers():
            try:
                yield await self.run(program)
                yield 2
            finally:
                self.note("closed")

        async for number in numbers():
            return number
        return None


def shape(value: Any) -> Any:
    """Return a value or error as something to compare: types, and groups without the order of their members."""
    match value:
        case BaseExceptionGroup():
            return type(value).__name__, sorted(map(repr, map(shape, value.exceptions)))
        case BaseException():
            return type(value).__name__
        case list():
            return [shape(item) for item in value]
        case _:
            return value


def programs(
    *extra: st.SearchStrategy[Program], wait_for: bool = True
) -> st.SearchStrategy[Program]:
    seconds = st.sampled_from([0, 1, 2, 3])
    leaf = st.one_of(
        st.tuples(st.just("sleep"), seconds),
        st.tuples(st.just("fail"), st.sampled_from([ValueError, KeyError])),
        st.just(("interrupt",)),
        *extra,
    )

    def compound(inner: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
        several = st.lists(inner, min_size=1, max_size=4)
        limits = ["timeout", "wait_for"] if wait_for else ["timeout"]
        return st.one_of(
            several.map(lambda parts: ("seq", *parts)),
            st.builds(lambda keep, parts: ("gather", keep, *parts), st.booleans(), several),
            st.builds(lambda body, parts: ("group", body, *parts), inner, several),
            st.tuples(st.sampled_from(limits), st.sampled_from([1, 2]), inner),
            st.tuples(st.sampled_from(["shield", "catch", "swallow"]), inner),
            st.tuples(st.just("cleanup"), inner, inner),
        )

    return st.recursive(leaf, compound, max_leaves=12)


structured = programs(wait_for=sys.version_info >= (3, 12))
wild = programs(
    st.lists(st.integers(0, 9), min_size=1, max_size=4).map(lambda numbers: ("cancel", *numbers)),
    st.tuples(st.just("spawn"), st.tuples(st.just("sleep"), st.integers(0, 3))),
    st.tuples(st.just("put"), st.integers(0, 2)),
    st.sampled_from([("get",), ("await_event",), ("set_event",)]),
    st.just(("first", ("sleep", 1), ("sleep", 1), ("put", 0), ("sleep", 2))),
    st.just(("generate", ("sleep", 1))),
)


class Run:
    """One execution of a program on our loop, turn by turn."""

    def __init__(self, program: Program, *, distinct: bool = False):
        self.host = VirtualHost()
        self.loop = WorkflowLoop(self.host)
        self.code: Any = None

        async def main():
            self.code = Interpreter(distinct=distinct)
            return await self.code.run(program)

        self.root = self.loop.spawn(main())
        self.loop.run_until_idle()

    @property
    def trace(self) -> list[Any]:
        return list(self.code.trace)

    def turn(self) -> bool:
        """Fire the next timer; False when the run has ended."""
        if self.root.done() or not self.host.due:
            return False
        self.host.now, _, handle = heapq.heappop(self.host.due)
        self.loop.fire(handle)
        self.loop.run_until_idle()
        return True

    def finish(self) -> Any:
        while self.turn():
            pass
        return outcome(self.root) if self.root.done() else "stuck"


def outcome(task: asyncio.Task[Any]) -> Any:
    if task.cancelled():
        return "cancelled"
    return shape(task.exception() or task.result())


def natively(program: Program) -> Any:
    """Run a program on the interpreter's own loop, with a clock that jumps."""
    loop = VirtualLoop()
    try:

        async def main():
            code = Interpreter(distinct=True)
            task = asyncio.create_task(code.run(program))
            await asyncio.wait([task])
            answer = outcome(task), task.cancelling(), loop.now
            while rest := asyncio.all_tasks() - {asyncio.current_task()}:
                for left in rest:
                    left.cancel()
                await asyncio.wait(rest)
            return answer

        return loop.run_until_complete(main())
    finally:
        loop.close()


@quick
@given(wild)
def test_a_program_runs_the_same_way_twice(program):
    """Trace, calls of the host, and outcome are equal, wherever in memory the objects lie."""
    first = Run(program)
    answer = first.finish()
    first.loop.close()
    rubbish = [object() for _ in range(977)]
    second = Run(program)
    assert second.finish() == answer
    second.loop.close()
    del rubbish
    assert second.trace == first.trace
    assert second.host.calls == first.host.calls
    assert first.loop.errors == second.loop.errors == []


@quick
@given(structured)
def test_structured_programs_end_as_on_the_interpreters_loop(program):
    """Outcome, count of cancels and duration are those of asyncio's own loop."""
    ours = Run(program, distinct=True)
    answer = ours.finish(), ours.root.cancelling(), ours.host.now
    ours.loop.close()
    assert answer == natively(program)


@quick
@given(wild, st.integers(0, 6))
def test_eviction_is_silent_and_changes_nothing(program, turns):
    """Evicted after any turn, a run reaches no host and makes no noise; run again, it does the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = Run(program)
        answer = whole.finish()
        whole.loop.close()
        cut = Run(program)
        for _ in range(turns):
            cut.turn()
        calls, trace = list(cut.host.calls), cut.trace
        cut.loop.evict()
        assert cut.host.calls == calls
        assert cut.loop.pinned == []
        assert whole.trace[: len(trace)] == trace
        assert whole.host.calls[: len(calls)] == calls
        again = Run(program)
        assert (again.finish(), again.trace) == (answer, whole.trace[: len(again.trace)])
        again.loop.close()
        del whole, cut, again
        gc.collect(0)
