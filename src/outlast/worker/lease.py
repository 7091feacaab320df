"""A worker's right to act: one lease for all its runs, renewed beside the event loop, judged by a local deadline.

The local deadline counts from the *sending* of a renewal, on a clock that runs while the machine is suspended, so it never
ends later than the store's. A worker whose deadline has passed begins nothing, whatever it still believes to own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from outlast.clock import Clock, Threads
from outlast.errors import StoreUnavailableError
from outlast.store.change import WorkerId
from outlast.store.protocol import Store

logger = logging.getLogger("outlast.worker")

LEASE = timedelta(seconds=15)
STALL_LIMIT = timedelta(minutes=5)
"""An event loop that has not turned for so long is held to be dead, and loses the lease that it could not use."""

RENEWALS_PER_LEASE = 3


class Lease:
    """The lease of one worker life.

    Args:
        worker: Whose.
        length: How long the worker may be silent.
        lapsed: Called once, from any thread, when the store says that the lease is over.
        acting: Whether a thread is in the middle of an effect: then nobody else may take over, however long the loop stands.
    """

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        length: timedelta,
        clock: Clock,
        lapsed: Callable[[], object],
        acting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._worker = worker
        self._seconds = length.total_seconds()
        self._clock = clock
        self._lapsed = lapsed
        self._acting = acting
        self._over = False
        self._is_last = False
        self._turned_at = clock.monotonic()
        self._deadline = clock.monotonic() + self._seconds
        self._stop: Callable[[], None] | None = None

    def begin(self, threads: Threads) -> None:
        """Start to renew."""
        interval = self._seconds / RENEWALS_PER_LEASE
        self._stop = threads.every(interval, self._tick, name="outlast-lease")

    def end(self) -> None:
        """Stop renewing."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def wind_down(self) -> None:
        """Renew only as long as a thread is in the middle of an effect."""
        self._is_last = True

    @property
    def valid(self) -> bool:
        """Whether the worker may begin something now."""
        return not self._over and self._clock.monotonic() < self._deadline

    def loop_turned(self) -> None:
        """Note that the event loop is alive."""
        self._turned_at = self._clock.monotonic()

    def sending(self) -> Callable[[WorkerId], None]:
        """Note that something goes out that renews leases; call what is returned with the worker whose lease it renewed."""
        sent = self._clock.monotonic()

        def renewed(worker: WorkerId) -> None:
            if worker == self._worker:
                self._deadline = max(self._deadline, sent + self._seconds)

        return renewed

    def _tick(self) -> None:
        if self._is_last and not self._acting():
            self.end()
            return
        if self._over:
            return
        stalled = self._clock.monotonic() - self._turned_at > STALL_LIMIT.total_seconds()
        if stalled and not self._acting():
            logger.error(
                "the event loop has stood still for %s; the lease is not renewed", STALL_LIMIT
            )
            return
        renewed = self.sending()
        try:
            held = self._store.renew(self._worker)
        except StoreUnavailableError as error:
            # The store may be back before the lease is over; the local deadline protects us until then.
            logger.warning("the lease could not be renewed, trying again: %s", error)
            return
        except Exception:
            # A thread that ended here would never renew again.
            logger.exception("renewing the lease broke inside Outlast, trying again")
            return
        if held:
            renewed(self._worker)
        else:
            self._over = True
            self._lapsed()
