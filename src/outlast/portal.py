"""Outlast from code that is not async: scripts, Django, Flask. One event loop in a thread, and calls that wait for it.

There is no synchronous twin of any class: the portal calls the async ones.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from outlast.errors import DefinitionError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_SLICE_SECONDS = 0.5
"""For so long a waiting thread sleeps at most before it looks whether it was interrupted."""


class Portal:
    """Calls coroutine functions from synchronous code and waits for their results, from any number of threads.

    Its event loop runs in a thread of its own, from the first call or `enter` until `close`. Context variables of the caller
    are seen by what it calls. A process that forks (a prefork web server) makes its portal after the fork.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def greet(name: str) -> str:
            return f"hello {name}"

        with outlast.Portal() as portal:
            app = portal.enter(outlast.open("memory://"))
            assert portal.call(app.run, greet("Ada"), id="greet-ada") == "hello Ada"
        ```
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None
        self._entered = AsyncExitStack()
        self._is_closed = False
        self._pid = os.getpid()

    def call(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a coroutine function, wait for its end, and return its result or raise its exception.

        A caller who is interrupted (Ctrl-C) cancels what it called.

        Args:
            function: As `client.start` or `handle.result`. `portal.call(asyncio.wait_for, handle.result(), 5)` waits for five seconds.

        Raises:
            DefinitionError: Called from async code, after `close`, or in a process that was forked since; or with a function that
                returns nothing that can be awaited.
            concurrent.futures.CancelledError: The portal was closed meanwhile, or what was called was cancelled.
        """
        self._check_caller()
        context = contextvars.copy_context()
        outcome: concurrent.futures.Future[R] = concurrent.futures.Future()
        tasks: list[asyncio.Task[None]] = []

        async def answer() -> None:
            try:
                outcome.set_result(await _awaitable(function, function(*args, **kwargs)))
            except asyncio.CancelledError:
                outcome.cancel()
                raise
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                outcome.set_exception(error)

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(answer(), context=context)
            # One that is cancelled before its first step never comes to its own answer.
            task.add_done_callback(lambda _: outcome.cancel())
            tasks.append(task)

        try:
            # Under the lock: what is queued before `close` begins is begun, and cancelled, before the loop stops.
            with self._lock:
                self._started().call_soon_threadsafe(begin)
            return _outcome_of(outcome)
        except concurrent.futures.CancelledError:
            raise concurrent.futures.CancelledError(self._why_cancelled(function)) from None
        except KeyboardInterrupt:
            if self._runner is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the call with it
                    loop = self._runner.get_loop()
                    loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter an async context manager, as `outlast.connect(…)` or `outlast.open(…)`, and return what it gives.

        It is left by `close`, the last one first.

        Raises:
            DefinitionError: As for `call`.
        """
        return self.call(self._enter, manager)

    def close(self) -> None:
        """Leave everything that was entered, and end the thread. Idempotent; calls under way are cancelled."""
        with self._lock:
            runner, thread = self._runner, self._thread
            was_closed, self._is_closed = self._is_closed, True
        if was_closed or runner is None or thread is None or self._pid != os.getpid():
            return
        loop = runner.get_loop()
        left = asyncio.run_coroutine_threadsafe(self._entered.aclose(), loop)
        try:
            _outcome_of(left)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __enter__(self) -> Portal:
        """Return the portal."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    async def _enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        return await self._entered.enter_async_context(manager)

    def _why_cancelled(self, function: Callable[..., object]) -> str:
        if self._is_closed:
            return f"the portal was closed before {_name_of(function)} had ended; close it when its callers are done"
        return f"{_name_of(function)} was cancelled by code on the portal's event loop"

    def _check_caller(self) -> None:
        """Return when this code, in this process, may wait for the portal."""
        if self._pid != os.getpid():
            raise DefinitionError(
                "a portal was used in a process that was forked from the one that made it",
                hint="make the portal after the fork; threads and database connections do not survive one",
            )
        if _is_async():
            raise DefinitionError(
                "a portal was called from async code, which it would stop until the answer comes",
                hint="await the function itself: `await client.start(…)`",
            )

    def _started(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs. To be called under the lock."""
        if self._is_closed:
            raise DefinitionError(
                "the portal is closed",
                hint="make another one: `with outlast.Portal() as portal:`",
            )
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._runner.get_loop()  # made before the thread runs it
            self._thread = threading.Thread(
                target=_run, args=(self._runner,), name="outlast-portal", daemon=True
            )
            self._thread.start()
        return self._runner.get_loop()


def _awaitable(function: Callable[..., object], called: Coroutine[Any, Any, R]) -> Awaitable[R]:
    """Return what a function gave, when that can be awaited."""
    given: object = called
    if inspect.isawaitable(given):
        return called
    name = _name_of(function)
    raise DefinitionError(
        f"{name} is no coroutine function: it has returned {type(given).__name__}, which nobody can await",
        hint=f"a portal is for what is awaited; call {name} directly",
    )


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _outcome_of(outcome: concurrent.futures.Future[R]) -> R:
    """Wait for an outcome, and return or raise it.

    In slices: a Ctrl-C that came just before the thread fell asleep is seen when it wakes, and else never.
    """
    while not outcome.done():
        # The call itself may end in a TimeoutError: then it is done.
        with contextlib.suppress(TimeoutError):
            outcome.result(_SLICE_SECONDS)
    return outcome.result()


def _run(runner: asyncio.Runner) -> None:
    try:
        runner.get_loop().run_forever()
    finally:
        runner.close()


def _is_async() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
