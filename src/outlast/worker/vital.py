"""Whether a worker is well: what is known of it without asking it anything, and what follows from that.

It is judged from numbers that any thread can read, so that the answer comes also while the event loop stands still.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from outlast.store.change import WorkerId

LIVE_SECONDS = 30.0
"""An event loop that has not turned for so long, or a lease that is over for so long, is worth a restart: it has not come back by itself."""

READY_SECONDS = 10.0
"""A worker looks for work twice a second; one that has not found the store for so long takes nothing up."""


class Vitals(Struct, frozen=True):
    """How a worker is.

    Args:
        worker: Its present life.
        is_accepting: It takes runs up: it was started, is not stopping, and has not just lost its lease.
        still_seconds: How long ago its event loop was known to turn.
        lease_seconds_left: For how long it may begin something, unless the lease is renewed; none or less when that is over.
        looked_seconds: How long ago it has looked into the store with success.
        runs: How many it has in memory.
        tasks: How many steps of its queues it works on.
        is_store_away: Its last look failed for that.
    """

    worker: WorkerId
    build: str
    library: str
    is_accepting: bool
    still_seconds: float
    lease_seconds_left: float
    looked_seconds: float
    runs: int
    tasks: int
    is_store_away: bool = False


class Health(Struct, frozen=True):
    """What is answered to whoever asks for a worker's health. Nothing in it is of a run, but how many there are.

    Args:
        status: `ok`, or `unavailable` with reasons.
    """

    status: str
    reasons: tuple[str, ...]
    worker: str
    build: str
    library: str
    lease_seconds_left: float
    still_seconds: float
    looked_seconds: float
    runs: int
    tasks: int

    @property
    def is_ok(self) -> bool:
        """Whether all is well."""
        return not self.reasons


def livez(vitals: Vitals) -> Health:
    """Say whether the process is worth keeping: its loop turns, and it has a lease or is about to have one.

    A store that is away takes the lease, and no restart brings it back: that is for `readyz` to say.
    """
    reasons: list[str] = []
    if vitals.still_seconds > LIVE_SECONDS:
        reasons.append("the event loop stands still")
    if vitals.lease_seconds_left <= -LIVE_SECONDS and not vitals.is_store_away:
        reasons.append("the lease is over, and no new one was taken")
    return _health(vitals, reasons)


def readyz(vitals: Vitals) -> Health:
    """Say whether the worker takes work up: it accepts, has a lease, and the store has answered its last look."""
    reasons = list(livez(vitals).reasons)
    if not vitals.is_accepting:
        reasons.append("no run is taken up: it starts, stops or begins a new life")
    if vitals.lease_seconds_left <= 0:
        reasons.append("the lease is over")
    if vitals.looked_seconds > READY_SECONDS:
        reasons.append("the store has not answered a look for work")
    return _health(vitals, reasons)


def _health(vitals: Vitals, reasons: list[str]) -> Health:
    fields = msgspec.structs.asdict(vitals)
    del fields["is_accepting"], fields["is_store_away"]
    for name, value in fields.items():
        if isinstance(value, float):
            fields[name] = round(value, 3) if math.isfinite(value) else 0.0
    return Health(status="unavailable" if reasons else "ok", reasons=tuple(reasons), **fields)
