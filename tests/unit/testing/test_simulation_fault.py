"""A network that repeats itself: an owned change arrives a second time, when others may have followed it."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

from msgspec.structs import replace

from outlast.store.change import (
    Applied,
    Change,
    HeadUpdate,
    RunChange,
    RunKey,
    StartRun,
    Status,
    Verdict,
    WorkerId,
    WorkerRow,
    digest_of,
)
from outlast.store.memory import MemoryStore
from outlast.testing import Faults, FaultyStore, SimulatedClock, SimulatedLoop
from outlast.testing.conformance.bench import row

RUN, WORKER = RunKey("default", "r"), WorkerId("w")


class Noting(MemoryStore):
    """A store that remembers what it was sent, and what it answered."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(clock)
        self.seen: list[tuple[Change, Verdict]] = []

    async def commit(self, changes):
        """Write, and remember."""
        verdicts = await super().commit(changes)
        self.seen += zip(changes, verdicts, strict=True)
        return verdicts


def change(version: int) -> RunChange:
    """Return the change that follows so many."""
    head = HeadUpdate(status=Status.RUNNING, note=b"%d" % version)
    plain = RunChange(RUN, WORKER, 1, version, head=head)
    return replace(plain, digest=digest_of(plain))


def test_an_echo_is_an_owned_change_again_and_changes_nothing() -> None:
    """The last change is recognised, one that others have followed is refused, and a start is never repeated."""
    clock = SimulatedClock()
    noting = Noting(clock)
    store = FaultyStore(noting, random.Random(5), faults=Faults(echoes=1.0))

    async def main() -> bytes:
        await store.register(WorkerRow(WORKER, "h", 1, "b", ("w",), timedelta(minutes=1)))
        await store.commit([StartRun(RUN, "w", "f", (row(0),), worker=WORKER)])
        for version in range(3):
            (verdict,) = await store.commit([change(version)])
            assert isinstance(verdict, Applied)
        await asyncio.sleep(30)
        head = await noting.head(RUN)
        assert head is not None
        return head.note

    loop = SimulatedLoop(clock)
    assert loop.run_until_complete(main()) == b"2"
    loop.drain()
    echoed = noting.seen[4:]
    assert {one.version: type(verdict).__name__ for one, verdict in echoed} == {
        0: "Conflict",
        1: "Conflict",
        2: "Applied",
    }
