"""Hands committed entries to the replay machine: turn by turn, from plain callbacks, in slices.

The machine must not be driven from inside a task, and the replay of one long journal must not stop every other run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias, TypeVar

from outlast.journal.entry import Entry, StampedRow
from outlast.replay.machine import Machine

T = TypeVar("T")

SLICE_SECONDS = 0.005
"""Replay gives the event loop back after so long: 50,000 entries must not stop every other run."""

Turn: TypeAlias = tuple[list[Entry], datetime, int]
"""The entries of one turn, when they were committed, and the turn's number."""


class Stopwatch(Protocol):
    """What tells how long a slice has taken: a clock, or an event loop's time."""

    def monotonic(self) -> float:
        """Return seconds since a fixed moment."""
        ...


class TurnCheck(Protocol):
    """Looks at the machine after each turn, in the callback that delivered it; for tests."""

    def __call__(self, turn: Turn, *, compare: bool, more: bool = False) -> None:
        """See a turn that was delivered.

        Args:
            compare: Look now. False for the turns of a run that is taken up, the last one apart.
            more: It was delivered as one after which others of a former time follow.

        Raises:
            NonDeterminismError: Something is wrong; nothing more is delivered.
        """
        ...


class Delivery:
    """The way of entries into one machine.

    Args:
        machine: Driven by nothing else.
        clock: Measures the slices.
        check: Called after each turn.
    """

    def __init__(self, machine: Machine, clock: Stopwatch, check: TurnCheck | None = None) -> None:
        self._machine = machine
        self._clock = clock
        self._check = check
        self.next_turn = 0
        """The number of the turn after those that were delivered."""

    async def deliver(
        self,
        entries: Sequence[tuple[Entry, StampedRow]],
        *,
        live: bool = False,
        heard: bool = False,
    ) -> None:
        """Deliver entries, and return when the workflow waits again.

        Args:
            live: What was written just now, in answer to this very machine.
            heard: Nobody has delivered them before: what the code logs is said. What is live is heard.

        Raises:
            NonDeterminismError: The code does not ask for what the entries answer.
            DecodeError: A recorded value does not fit the type that the code names.
        """
        if not entries:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        last = entries[-1][1].row.turn
        waiting = each_turn(self._machine, entries, live=live)
        taking_up = self.next_turn == 0

        def deliver_slice() -> None:
            until = self._clock.monotonic() + SLICE_SECONDS
            if done.done():
                return
            self._machine.is_heard = live or heard
            try:
                for turn, more in waiting:
                    self.next_turn = turn[2] + 1
                    if self._check is not None:
                        compare = not taking_up or turn[2] == last
                        self._check(turn, compare=compare, more=more)
                    if self._clock.monotonic() > until:
                        loop.call_soon(deliver_slice)
                        return
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                if not done.done():
                    done.set_exception(error)
                return
            finally:
                self._machine.is_heard = False
            if not done.done():
                done.set_result(None)

        loop.call_soon(deliver_slice)
        await done

    def deliver_now(self, entries: Sequence[tuple[Entry, StampedRow]]) -> None:
        """Deliver outcomes of steps, each a turn, that were written just now, in answer to this very machine; from a plain callback.

        Raises what `deliver` raises.
        """
        machine = self._machine
        machine.is_heard = True
        try:
            for entry, stamped in entries:
                machine.deliver([entry], stamped.at)
                self.next_turn = stamped.row.turn + 1
                if self._check is not None:
                    self._check(([entry], stamped.at, stamped.row.turn), compare=True)
        finally:
            machine.is_heard = False

    async def evict(self) -> None:
        """Take the run out of memory."""
        await in_callback(self._machine.evict)


def each_turn(
    machine: Machine, entries: Sequence[tuple[Entry, StampedRow]], *, live: bool = False
) -> Iterator[tuple[Turn, bool]]:
    """Deliver entries turn by turn. Whoever drives a machine does it by this: so nobody forgets what it must know beforehand.

    Args:
        live: What was written just now, in answer to this very machine: none of it can belong to the way that other code took.

    Yields: Each turn once it was delivered, and whether it was delivered as one after which others of a former time follow.
    """
    machine.foresee(entry for entry, _ in entries)
    turns = turns_of(entries)
    for turn in turns:
        more = not live and turn is not turns[-1]
        machine.deliver(turn[0], turn[1], more=more)
        yield turn, more


def deliver_all(machine: Machine, entries: Sequence[tuple[Entry, StampedRow]]) -> None:
    """Deliver a whole journal, as a worker does that takes a run up; from a plain callback, and at once."""
    for _ in each_turn(machine, entries):
        pass


def turns_of(entries: Sequence[tuple[Entry, StampedRow]]) -> list[Turn]:
    """Group entries by their turn."""
    turns: list[Turn] = []
    for entry, stamped in entries:
        if turns and turns[-1][2] == stamped.row.turn:
            turns[-1][0].append(entry)
        else:
            turns.append(([entry], stamped.at, stamped.row.turn))
    return turns


async def in_callback(function: Callable[[], T]) -> T:
    """Call a function that drives a machine from a plain callback, where no task runs, and return what it returned."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

    loop.call_soon(call)
    return await done
