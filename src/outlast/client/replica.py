"""Runs in the memory of a process that only looks: machines that were replayed from the store, kept to be asked again.

Invariant: a machine holds a prefix of its run's journal, up to the end of a turn, and leaves memory by being evicted, never by being
forgotten. One task at a time drives it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from outlast.errors import DecodeError
from outlast.journal.entry import Entry, StampedRow, Started, from_row
from outlast.replay.delivery import Delivery, in_callback
from outlast.replay.machine import Machine, Program
from outlast.store.change import RunKey

T = TypeVar("T")

MOST_REPLICAS = 64
"""How many runs a client keeps in memory to be asked again; the one asked longest ago leaves first."""

_PIECE = 256
"""Rows that are decoded at once; between two pieces the event loop goes on."""


class _LoopTime:
    """The event loop's own clock: it measures slices, and nothing that is recorded."""

    def monotonic(self) -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()


class Replica:
    """One run, replayed.

    Args:
        program: The workflow of this process.
        generation: Of the journal that is delivered.
    """

    def __init__(self, program: Program, run: RunKey, generation: int) -> None:
        self.program = program
        self.run = run
        self.generation = generation
        self.lock = asyncio.Lock()
        self.entries = 0
        """How many entries were delivered to it."""
        self.dropped = False
        """It is not to be used any more."""
        self._machine = Machine(
            program, tenant=run.tenant, run_id=run.run_id, generation=generation
        )
        self._delivery = Delivery(self._machine, _LoopTime())
        self._read: list[tuple[Entry, StampedRow]] = []

    @property
    def last(self) -> int:
        """The position of the last row that it was given; -1 when it was given none."""
        return self.entries + len(self._read) - 1

    async def catch_up(self, rows: Sequence[StampedRow]) -> None:
        """Decode the rows that follow, and deliver all at once: what code is told may depend on what comes after it.

        When this is cancelled, what was decoded and delivered stays so, and is not to be given again.

        Raises:
            NonDeterminismError: The code does not ask for what the entries answer. The replica is of no use then.
            DecodeError: An entry cannot be read, or does not fit the type that the code names. As above.
        """
        for begin in range(0, len(rows), _PIECE):
            if begin:
                await asyncio.sleep(0)
            piece = rows[begin : begin + _PIECE]
            self._read += [(from_row(one.row), one) for one in piece]
        if self.entries == 0 and self._read and not isinstance(self._read[0][0], Started):
            raise DecodeError(
                "the run's journal does not begin with its start",
                run=self.run.run_id,
                hint="the store was changed by hand or is damaged",
            )
        try:
            await self._delivery.deliver(self._read)
        finally:
            left = [one for one in self._read if one[1].row.turn >= self._delivery.next_turn]
            self.entries += len(self._read) - len(left)
            self._read = left

    async def answer(self, name: str, value: bytes) -> bytes:
        """Answer a query; see `Machine.query`."""
        return await in_callback(lambda: self._machine.query(name, value))

    def evict_soon(self) -> None:
        """Take it out of memory, from the next plain callback."""
        asyncio.get_running_loop().call_soon(self._machine.evict)


class Replicas:
    """The replicas of one client.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int = MOST_REPLICAS) -> None:
        self._most = most
        self._kept: OrderedDict[RunKey, Replica] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    async def use(
        self,
        run: RunKey,
        generation: int,
        program: Program,
        work: Callable[[Replica], Awaitable[T]],
        *,
        afresh: bool = False,
    ) -> T:
        """Do something with the replica of a run, which is made when there is none; nobody else uses it meanwhile.

        It is dropped when `work` drops it; when another generation or other code is asked for; or when room is needed.

        Args:
            afresh: Make a new one, whatever there is.
        """
        kept = self._kept.get(run)
        if afresh and kept is not None:
            self.drop(kept)
        while True:
            replica = self._obtain(run, generation, program)
            async with replica.lock:
                if replica.dropped:
                    continue
                try:
                    return await work(replica)
                finally:
                    if replica.dropped:
                        replica.evict_soon()

    def drop(self, replica: Replica) -> None:
        """Let a replica go, at once or when it is not used any more."""
        replica.dropped = True
        if self._kept.get(replica.run) is replica:
            del self._kept[replica.run]
        if not replica.lock.locked():
            replica.evict_soon()

    async def close(self) -> None:
        """Take all of them out of memory; those in use leave when they are not used any more."""
        for replica in list(self._kept.values()):
            self.drop(replica)
        await in_callback(lambda: None)  # when it comes to this callback, it has come to theirs

    def _obtain(self, run: RunKey, generation: int, program: Program) -> Replica:
        replica = self._kept.get(run)
        if replica is not None and (
            replica.generation != generation or replica.program is not program
        ):
            self.drop(replica)
            replica = None
        if replica is None:
            replica = self._kept[run] = Replica(program, run, generation)
        self._kept.move_to_end(run)
        while len(self._kept) > self._most:
            self.drop(next(iter(self._kept.values())))
        return replica
