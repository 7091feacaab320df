"""What a worker says of itself, now and then: in its row of the store, for `outlast doctor` in another process, and to whoever meters it."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec
from msgspec import Struct

from outlast.errors import StoreUnavailableError
from outlast.journal.parse import NotJsonError, parse_as
from outlast.meter.meters import Meters
from outlast.meter.tally import Tally, TallyReport
from outlast.store.protocol import Store
from outlast.worker.worker import Worker

logger = logging.getLogger("outlast.worker")

REPORT_SECONDS = 10.0
"""Between two reports: a small write, and, where somebody is told, a read that costs as much as there is open."""


class WorkerReport(Struct, frozen=True):
    """What a worker has said of itself.

    Args:
        runs: How many it had in memory.
        tasks: How many steps of its queues it worked on.
        numbers: What it has counted since its process began.
    """

    library: str
    runs: int
    tasks: int
    numbers: TallyReport


_reports = msgspec.json.Decoder(WorkerReport)


def report_in(body: bytes) -> WorkerReport | None:
    """Return what a row of the store holds; None where nothing was said, or it cannot be read."""
    try:
        return parse_as(_reports, body) if body else None
    except NotJsonError:
        return None


class Reporter:
    """Reports for one worker, on its event loop.

    Args:
        tally: What is reported.
        observer: Told what the whole store holds; None where nobody is.
        seconds: Between two reports.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        tally: Tally,
        observer: Meters | None = None,
        seconds: float = REPORT_SECONDS,
    ) -> None:
        self._store = store
        self._worker = worker
        self._tally = tally
        self._observer = observer
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="outlast-report")

    async def stop(self) -> None:
        """End. Safe to call again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def observe(self) -> None:
        """Tell what the whole store holds."""
        if self._observer is not None:
            self._observer.observe(await self._store.figures())

    async def report(self) -> None:
        """Leave word in the worker's row."""
        vitals = self._worker.vitals
        report = WorkerReport(vitals.library, vitals.runs, vitals.tasks, self._tally.report())
        await self._store.report(vitals.worker, msgspec.json.encode(report))

    async def _run(self) -> None:
        # What is told is there from the beginning; a row needs no word of a worker that has done nothing.
        with contextlib.suppress(StoreUnavailableError):
            await self.observe()
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.report()
                await self.observe()
            except StoreUnavailableError as error:
                logger.debug("the store cannot be told, or asked, how the worker does: %s", error)
            except Exception:
                # A worker that is not seen moves its runs all the same.
                logger.exception("reporting broke inside Outlast, trying again")
