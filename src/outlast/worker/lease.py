"""A worker's right to act: one lease for all its runs, renewed beside the event loop, judged by a local deadline.

The local deadline counts from the *sending* of a renewal, on a clock that runs while the machine is suspended, so it never
ends later than the store's. A worker whose deadline has passed begins nothing, whatever it still believes to own.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta

from outlast.clock import Clock, Threads
from outlast.errors import StoreUnavailableError
from outlast.store.change import WorkerId
from outlast.store.protocol import Store

logger = logging.getLogger("outlast.worker")

LEASE = timedelta(seconds=15)
LEAST_LEASE = timedelta(seconds=1)
"""A shorter one is over before a busy store, disk or processor has taken its renewal."""

MOST_LEASE = timedelta(days=30)
"""So long at most nobody takes over what a dead worker had, where its death cannot be proved."""

STALL_LIMIT = timedelta(minutes=5)
"""An event loop that has not turned for so long is held to be dead, and loses the lease that it could not use."""

STALL_WARNING = timedelta(seconds=2)
"""An event loop that has stood still for so long is worth a word: every run and timer of the process waits for it."""

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
        self.interval = self._seconds / RENEWALS_PER_LEASE
        """Seconds between two renewals."""
        self._clock = clock
        self._lapsed = lapsed
        self._acting = acting
        self._over = False
        self._is_last = False
        self._turned_at = clock.monotonic()
        self._still = 0
        """Ticks since the loop has last turned; -1 when that was said."""
        self._loop_thread = threading.get_ident()
        self._deadline = clock.monotonic() + self._seconds
        self._stop: Callable[[], None] | None = None

    def begin(self, threads: Threads) -> None:
        """Start to renew."""
        self._stop = threads.every(self.interval, self._tick, name="outlast-lease")

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

    @property
    def seconds_left(self) -> float:
        """For how long the worker may begin something, unless it is renewed; none or less when that is over. Callable from any thread."""
        left = self._deadline - self._clock.monotonic()
        return min(left, 0.0) if self._over else left

    @property
    def still_seconds(self) -> float:
        """How long ago the event loop was known to turn. Callable from any thread."""
        return self._clock.monotonic() - self._turned_at

    def loop_turned(self) -> None:
        """Note that the event loop is alive."""
        self._turned_at = self._clock.monotonic()
        self._still = 0

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
        self._warn_of_stall()
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

    def _warn_of_stall(self) -> None:
        """Say once where a loop stands that has not turned.

        Counts ticks of this thread, and no clock: in a process or a machine that was suspended nothing has ticked.
        """
        if self._is_last or self._still < 0:
            return
        seconds = self._still * self.interval
        if seconds < STALL_WARNING.total_seconds():
            self._still += 1
            return
        self._still = -1
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage] - documented, and nothing else says it
        logger.warning(
            "the event loop has stood still for %.1f s, and every run and timer of this process with it. "
            "What blocks belongs into a plain `def`, which gets a thread. It stands here:\n%s",
            seconds,
            "".join(traceback.format_stack(frame)) if frame else "(nowhere)",
        )
