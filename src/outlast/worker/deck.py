"""What all runs of one worker life share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from outlast.clock import Clock
from outlast.store.change import WorkerId
from outlast.store.protocol import Store
from outlast.worker.executor import Executor
from outlast.worker.lease import Lease
from outlast.worker.writer import Writer
from outlast.workflows.registry import Registry


@dataclass(frozen=True, slots=True)
class Deck:
    """What a pilot is given.

    Args:
        idle: How long a run that only waits stays in memory.
    """

    store: Store
    writer: Writer
    lease: Lease
    executor: Executor
    clock: Clock
    registry: Registry
    worker: WorkerId
    build: str
    library: str
    idle: timedelta
