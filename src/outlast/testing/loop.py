"""An event loop on simulated time, and the simulated processes whose callbacks it runs.

Nothing waits: when nothing is ready, the clock moves to the next timer. Every callback belongs to the process in whose context
it was made, so a process can be frozen (as by SIGSTOP) or killed (as by SIGKILL) between any two callbacks: none of its code
runs any more, no clean-up either.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar, TypeVarTuple

from outlast.errors import OutlastError
from outlast.testing.clock import SimulatedClock
from outlast.testing.network import refuse_network

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger("outlast.testing")

LONGEST = timedelta(hours=1)
MOST_TURNS = 1_000_000
"""Turns of the loop without any time passing, after which the simulated code is held to spin."""


class SimulationStuckError(OutlastError):
    """Nothing can happen any more, or nothing ends."""

    code = "simulation_stuck"


class NotSimulatedError(OutlastError):
    """Code in a simulation reached for what lies outside of it. It ends the simulation, whatever that code makes of it."""

    code = "not_simulated"


class Process:
    """A simulated process: what runs in its context stops when it is frozen or dead.

    Its threads are a process below it: they stop with it, and go on when only its event loop stands still.

    Args:
        parent: The process whose threads these are.
    """

    def __init__(self, name: str, parent: Process | None = None) -> None:
        self.name = name
        self.parent = parent
        self._dead = False
        self._frozen = False
        self._stalled = False
        self._threads: Process | None = None
        self._held: deque[asyncio.Handle] = deque()
        self._release: Callable[[deque[asyncio.Handle]], None] = lambda _: None

    def __repr__(self) -> str:
        """Show name and state."""
        state = "dead" if self.dead else "stopped" if self.stopped else "running"
        return f"<Process {self.name} {state}>"

    @property
    def dead(self) -> bool:
        """Whether it was killed."""
        return self._dead if self.parent is None else self.parent._dead

    @property
    def stopped(self) -> bool:
        """Whether none of its code runs now."""
        whole = self.parent or self
        return whole._dead or whole._frozen or self._stalled

    @property
    def threads(self) -> Process:
        """Its threads; of threads, themselves."""
        if self.parent is not None:
            return self
        if self._threads is None:
            self._threads = Process(f"{self.name}/threads", self)
        return self._threads

    def context(self) -> contextvars.Context:
        """Return a new context of this process."""
        context = contextvars.Context()
        context.run(current_process.set, self)
        return context

    def freeze(self) -> None:
        """Stop it where it is, threads and all."""
        self._frozen = True

    def stall(self) -> None:
        """Stop its event loop, as a callback that does not return would; its threads go on."""
        self._stalled = True

    def thaw(self) -> None:
        """Let it go on, with everything that came due meanwhile."""
        self._frozen = self._stalled = False
        if not self.dead:
            self.release()

    def kill(self) -> None:
        """End it: none of its code runs again."""
        self._dead = True

    def hold(
        self, handle: asyncio.Handle, release: Callable[[deque[asyncio.Handle]], None]
    ) -> None:
        """Keep a callback that cannot run now."""
        self._held.append(handle)
        self._release = release

    def release(self) -> None:
        """Hand back what was kept, in order."""
        held, self._held = self._held, deque()
        self._release(held)
        if self._threads is not None:
            self._threads.release()


current_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar(
    "outlast_process", default=None
)


async def halt_if_stopped() -> None:
    """Go no further when the process of the caller was killed or frozen just now, by a call of its own."""
    process = current_process.get()
    if process is not None and process.dead:
        await asyncio.get_running_loop().create_future()
    if process is not None and process.stopped:
        await asyncio.sleep(0)


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks, and never waits.

    The callbacks of one process run first in, first out; among the processes `source` chooses whose turn it is.

    Args:
        clock: Moved when nothing is ready.
        longest: How much simulated time may pass in all.
        source: Chooses; without it, all callbacks run first in, first out.
    """

    def __init__(
        self,
        clock: SimulatedClock,
        *,
        longest: timedelta = LONGEST,
        source: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._end = clock.monotonic() + longest.total_seconds()
        self._source = source
        self._queues: dict[Process | None, deque[tuple[asyncio.Handle, Process | None]]] = {}
        """What is ready: of each process, or without a `source` of all of them in one queue."""
        self._failure: BaseException | None = None
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process | None]] = []
        self._numbers = itertools.count()
        self._turns = 0
        self._draining = False
        self._closed = False
        self.errors: list[dict[str, Any]] = []
        """What the loop's exception handler was told."""

    # Running

    def run_until_complete(self, future: Awaitable[T]) -> T:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run until `future` is done."""
        asyncio._set_running_loop(self)
        try:
            task = asyncio.ensure_future(future, loop=self)
            while not task.done():
                self._turn()
                if self._failure is not None:
                    raise self._failure
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def fail(self, error: BaseException) -> None:
        """Stop the simulation with `error`, whatever the code that runs now makes of exceptions. The first one counts."""
        self._failure = self._failure or error

    def drain(self) -> None:
        """Cancel every task and run what is left to its end, dead or alive; time stands still."""
        self._draining = True
        asyncio._set_running_loop(self)
        try:
            for _ in range(100):
                tasks = asyncio.all_tasks(self)
                if not tasks:
                    return
                for task in tasks:
                    task.cancel()
                for _, _, handle, process in self._timers:
                    # What a process waited for does not come any more; what is left wakes up to be told so.
                    self._add(handle, process)
                self._timers.clear()
                for _ in range(1000):
                    if self._queues:
                        self._run_all()
        finally:
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        if self._queues:
            self._turns += 1
            if self._turns > MOST_TURNS:
                raise SimulationStuckError("the simulated code spins: no time passes")
        else:
            self._advance()
        if self._source is None or len(self._queues) < 2:
            self._run_all()
        else:
            self._run_next(self._source.choice(list(self._queues)))

    def _advance(self) -> None:
        """Move the clock to the next timer, and make what is due then ready."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise SimulationStuckError(
                f"nothing is ready and no timer runs; open tasks: {self._open_tasks()}",
                hint="something waits for what nobody will do",
            )
        self._turns = 0
        when = self._timers[0][0]
        if when > self._clock.monotonic():
            self._clock.advance(when - self._clock.monotonic())
        if self._clock.monotonic() > self._end:
            raise SimulationStuckError(
                f"the simulated time is over; open tasks: {self._open_tasks()}",
                hint="give the simulation a larger `longest`, if the scenario means to last so long",
            )
        while self._timers and self._timers[0][0] <= self._clock.monotonic():
            _, _, handle, process = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._add(handle, process)

    def _add(self, handle: asyncio.Handle, process: Process | None) -> None:
        owner = None if self._source is None else process
        self._queues.setdefault(owner, deque()).append((handle, process))

    def _run_all(self) -> None:
        """Run what is ready now, and not what becomes so by that."""
        for owner, queue in list(self._queues.items()):
            for _ in range(len(queue)):
                self._run_next(owner)

    def _run_next(self, owner: Process | None) -> None:
        queue = self._queues[owner]
        handle, process = queue.popleft()
        if not queue:
            del self._queues[owner]
        if handle.cancelled():
            return
        if process is not None and process.stopped and not self._draining:
            process.hold(handle, lambda held, at=process: self._take_back(held, at))
            return
        handle._run()

    def _take_back(self, held: deque[asyncio.Handle], process: Process) -> None:
        for handle in held:
            self._add(handle, process)

    def _open_tasks(self) -> str:
        names = sorted(task.get_name() for task in asyncio.all_tasks(self) if not task.done())
        return ", ".join(names) or "none"

    # What asyncio asks

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run `callback` in the next turn."""
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._add(handle, context.get(current_process))
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run `callback` in the next turn, on the event loop of the process whose thread asks."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(current_process)
        if process is not None and process.parent is not None:
            context.run(current_process.set, process.parent)
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` after `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` at a time of this loop."""
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        process = context.get(current_process)
        heapq.heappush(self._timers, (when, next(self._numbers), handle, process))
        return handle

    def time(self) -> float:
        """Return the simulated monotonic time."""
        return self._clock.monotonic()

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Return a task of this loop."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """Say that asyncio's debug mode is off."""
        return False

    def is_running(self) -> bool:
        """Whether this is the running loop."""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Take no more part."""
        self._closed = True
        self._queues.clear()
        self._timers.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody handled."""
        self.errors.append(context)
        logger.error("%s", context.get("message"), exc_info=context.get("exception"))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: cancelled timers are dropped when their time comes."""


_OUTSIDE = (
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "getaddrinfo", "getnameinfo", "start_tls", "sendfile"),
    *("subprocess_exec", "subprocess_shell", "connect_read_pipe", "connect_write_pipe"),
    *("sock_connect", "sock_accept", "sock_recv", "sock_sendall", "add_reader", "add_writer"),
    *("run_in_executor", "add_signal_handler"),
)


def _refuse(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """End the simulation: an error that a retried body might swallow would be one that nobody sees."""
    error = NotSimulatedError(
        f"there is no {what} in a simulation: no network, no subprocess, no thread of asyncio's own",
        hint="give the step or effect a double that stands in for the remote system: doubles=[testing.double(charge, fake_charge)]; "
        "a plain `def` body has a simulated thread",
    )
    assert isinstance(loop, SimulatedLoop)
    loop.fail(error)
    raise error


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: SimulatedLoop, *args: object, **options: object) -> Any:
        _refuse(self, f"loop.{name}()")

    return refuse


for _name in _OUTSIDE:
    setattr(SimulatedLoop, _name, _refusing(_name))
refuse_network(SimulatedLoop, _refuse)
