"""The functions of asyncio that behave differently, or are refused, on a workflow's loop.

`install` puts thin functions in their place; on any other loop these call the originals untouched. Invariants: waiting
with a timeout creates no task of its own on any Python; no order ever comes from the address of an object.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from outlast.errors import ForbiddenInWorkflowError
from outlast.replay.refusal import refuse
from outlast.replay.task import TaskLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

_ELSEWHERE = "What a thread or another event loop does belongs into a @step: await that."

_originals: dict[str, Callable[..., Any]] = {}


def originals() -> dict[str, Callable[..., Any]]:
    """Return asyncio's own functions by name, also after `install`."""
    return dict(_originals) or {name: getattr(asyncio, name) for name in _REPLACEMENTS}


def install() -> None:
    """Put Outlast's functions in the place of asyncio's, once per process."""
    if _originals:
        return
    for name, (module, replacement) in _REPLACEMENTS.items():
        original = getattr(asyncio, name)
        _originals[name] = original
        wrapper = functools.wraps(original)(replacement)
        setattr(asyncio, name, wrapper)
        setattr(module, name, wrapper)
    _number_gatherings()


def _workflow_loop() -> TaskLoop | None:
    loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    return loop if isinstance(loop, TaskLoop) else None


async def _wait_for(fut: Any, timeout: float | None) -> Any:  # noqa: ASYNC109  # asyncio's own signature
    if _workflow_loop() is None:
        return await _originals["wait_for"](fut, timeout)
    if timeout is not None and timeout <= 0:
        return await _without_waiting(fut)
    async with asyncio.timeout(timeout):
        return await fut


async def _without_waiting(fut: Any) -> Any:
    """Return the outcome if it stands already; otherwise cancel, and do not even start what has not begun."""
    if not asyncio.isfuture(fut):
        _close([fut])
        raise TimeoutError
    if fut.done():
        return fut.result()
    await _cancel_and_wait(fut)
    try:
        return fut.result()
    except asyncio.CancelledError as cancelled:
        raise TimeoutError from cancelled


async def _cancel_and_wait(fut: asyncio.Future[Any]) -> None:
    waiter = asyncio.get_running_loop().create_future()

    def release(_: asyncio.Future[Any]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    fut.add_done_callback(release)
    try:
        fut.cancel()
        await waiter
    finally:
        fut.remove_done_callback(release)


async def _wait(
    fs: Iterable[Any],
    *,
    timeout: float | None = None,  # noqa: ASYNC109  # asyncio's own signature
    return_when: str = asyncio.ALL_COMPLETED,
) -> Any:
    if _workflow_loop() is not None:
        fs = _only_futures("asyncio.wait()", fs)
    return await _originals["wait"](fs, timeout=timeout, return_when=return_when)


def _as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    if _workflow_loop() is not None:
        fs = _only_futures("asyncio.as_completed()", fs)
    return _originals["as_completed"](fs, timeout=timeout)


def _all_tasks(loop: asyncio.AbstractEventLoop | None = None) -> Any:
    loop = asyncio.get_running_loop() if loop is None else loop
    return (
        set(loop.unfinished_tasks())
        if isinstance(loop, TaskLoop)
        else _originals["all_tasks"](loop)
    )


def _run(main: Any, **options: Any) -> Any:
    if _workflow_loop() is not None:
        _close([main])
        refuse("asyncio.run()", "A workflow already runs on a loop: await the coroutine.")
    return _originals["run"](main, **options)


def _wrap_future(future: Any, **options: Any) -> Any:
    if _workflow_loop() is not None and not asyncio.isfuture(future):
        refuse("asyncio.wrap_future()", _ELSEWHERE)
    return _originals["wrap_future"](future, **options)


def _run_coroutine_threadsafe(coro: Any, loop: asyncio.AbstractEventLoop) -> Any:
    if _workflow_loop() is not None:
        _close([coro])
        refuse("asyncio.run_coroutine_threadsafe()", _ELSEWHERE)
    return _originals["run_coroutine_threadsafe"](coro, loop)


def _only_futures(what: str, fs: Any) -> Any:
    """Return the futures as a list; refuse coroutines, whose tasks would be numbered in the order of a set."""
    if asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        return fs  # the original has the right error for it
    futures = list(fs)
    if all(asyncio.isfuture(future) for future in futures):
        return futures
    _close(futures)
    message = f"{what} got coroutines, and they would start in no particular order"
    raise ForbiddenInWorkflowError(
        message,
        hint="Create the tasks first: tasks = [asyncio.create_task(c) for c in …], then pass the tasks.",
    )


def _close(awaitables: Iterable[Any]) -> None:
    for awaitable in awaitables:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()


def _number_gatherings() -> None:
    """Give the future that `gather` returns a creation number as hash; it is the one that no loop creates."""
    gathering: Any = getattr(asyncio.tasks, "_GatheringFuture", None)
    if gathering is None:
        return

    def number(self: Any) -> int:
        loop = self.get_loop()
        if not isinstance(loop, TaskLoop):
            return object.__hash__(self)
        given: int | None = getattr(self, "_number", None)
        if given is None:
            given = self._number = loop.take_number()
        return given

    gathering.__hash__ = number


_REPLACEMENTS: dict[str, tuple[ModuleType, Callable[..., Any]]] = {
    "all_tasks": (asyncio.tasks, _all_tasks),
    "as_completed": (asyncio.tasks, _as_completed),
    "run": (asyncio.runners, _run),
    "run_coroutine_threadsafe": (asyncio.tasks, _run_coroutine_threadsafe),
    "wait": (asyncio.tasks, _wait),
    "wait_for": (asyncio.tasks, _wait_for),
    "wrap_future": (asyncio.futures, _wrap_future),
}
