"""What the cases work with beside the simulation: an app on a real event loop, with real threads and a real file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from outlast.app import App, open_store
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import Definition
from outlast.workflows.registry import Registry

T = TypeVar("T")


class LocalApp(App):
    """Client and worker of exactly these definitions, whatever else was imported.

    Args:
        options: Those of `WorkerOptions`.
    """

    def __init__(self, url: str, code: Iterable[Definition[..., Any]], **options: Any) -> None:
        super().__init__(
            url,
            workflows=None,
            tenant="default",
            principal="tester",
            options=WorkerOptions(library="0", **options),
        )
        self._code = list(code)

    async def __aenter__(self) -> LocalApp:
        """Open the store, and start the worker."""
        store = await open_store(self._url)
        try:
            await self._start_worker(store, Registry(self._code))
        except BaseException:
            await store.close()
            raise
        return self


async def until(happened: Callable[[], T], what: str, seconds: float = 40.0) -> T:
    """Poll on the running loop until `happened()` is true, and return what it gave."""
    async with asyncio.timeout(seconds):
        while not (found := happened()):
            await asyncio.sleep(0.01)
    assert found, what
    return found
