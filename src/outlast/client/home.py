"""Where a client may be used: on the event loop of its app, and not in a workflow.

Invariant: a refusal comes before anything was written or waited for. A store, and what groups the commits of a worker, wait on futures
of the client's loop: woken from another one they would hang, and with them every run of the worker.
"""

from __future__ import annotations

import asyncio

from outlast.errors import DefinitionError, ForbiddenInWorkflowError
from outlast.replay.task import TaskLoop


class Home:
    """The event loop of one client: the one on which it was made, or else is used first."""

    def __init__(self) -> None:
        self._loop = _running()

    def check(self) -> None:
        """Return when the client may be used here; also outside of any loop, where nothing can be awaited.

        Raises:
            ForbiddenInWorkflowError: Workflow code runs here.
            DefinitionError: Another event loop runs here.
        """
        loop = _running()
        if loop is None or loop is self._loop:
            return
        if isinstance(loop, TaskLoop):
            raise ForbiddenInWorkflowError(
                "a client was used in a workflow: replay would do it again",
                hint="what happens once is `await outlast.run_handle(id).send(…)` and `.result()`, `await outlast.run_child(…)`, or a "
                "@step that uses the client",
            )
        if self._loop is not None and not self._loop.is_closed():
            raise DefinitionError(
                "a client was used on another event loop than the one on which it was opened, where it would hang",
                hint="in a step: write it as `async def`, and await the client there; in a thread: "
                "asyncio.run_coroutine_threadsafe(handle.send(…), loop).result(), where loop is that of the client; or open another "
                "client there",
            )
        self._loop = loop


def _running() -> asyncio.AbstractEventLoop | None:
    return asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage] - the public one raises where there is none
