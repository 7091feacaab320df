"""Where a real process is killed, which of these points are tried, and what must hold of the lives that follow each other.

`OUTLAST_CRASH` says how much is tried: a part, chosen by `OUTLAST_CRASH_SEED` (by default); `all`, every point of the workflows that
are small; `soak`, every point of all, and every point of each recovery.
"""

from __future__ import annotations

import os
import random
import signal
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from crash_bench import OUTCOMES, Bench, check_journal

from outlast.store.protocol import RunImage


def amount_in(environment: Mapping[str, str]) -> str:
    """Return how much is to be tried: an empty string, `all` or `soak`; anything else is refused."""
    amount = environment.get("OUTLAST_CRASH", "")
    if amount not in {"", "all", "soak"}:
        raise ValueError(
            f"OUTLAST_CRASH={amount} says nothing: leave it empty to try a part, or set it to all or to soak"
        )
    return amount


AMOUNT = amount_in(os.environ)
SOAK = AMOUNT == "soak"
ALL = AMOUNT in {"all", "soak"}
SEED = int(os.environ.get("OUTLAST_CRASH_SEED") or 0) or zlib.crc32(
    # All processes of one test run must choose the same points.
    os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode()
)


class Point(NamedTuple):
    """Before or after the write or call of that name, the `number`-th of it in the process's life."""

    side: str
    name: str
    number: int

    def __str__(self) -> str:
        """Name it in a test's id."""
        return f"{self.side}-{self.name}-{self.number}"


def points_of(events: Iterable[str]) -> list[Point]:
    """Return every point of a life.

    Args:
        events: What the life's process wrote and called, in order; a write of several entries has a name for each.
    """
    seen: Counter[str] = Counter()
    found: list[Point] = []
    for name in (name for event in events for name in event.split()):
        seen[name] += 1
        # Before a claim nothing has been written since the write that came before it.
        sides = ("after",) if name == "claim" else ("before", "after")
        found += [Point(side, name, seen[name]) for side in sides]
    return found


def chosen(events: Sequence[str], count: int, *, all: bool = ALL) -> list[Any]:
    """Return the points to try as test parameters: all, or `count` that the seed chooses."""
    points = points_of(events)
    picked = range(len(points))
    if not all:
        picked = sorted(random.Random(f"{SEED} {events}").sample(picked, min(count, len(points))))
    return [pytest.param(points[one], id=str(points[one])) for one in picked]


@dataclass(frozen=True)
class Life:
    """One process.

    Args:
        found: The run as the process found it; None when there was none.
        left: The run as it left it.
    """

    pid: int
    found: RunImage | None
    left: RunImage | None


@dataclass
class Play:
    """One run on one database, played by process after process.

    Args:
        name: What each process plays: `demo`, or a workflow of `kill_flow`.
    """

    bench: Bench
    name: str
    run_id: str

    def __post_init__(self) -> None:
        self.lives: list[Life] = []
        print(f"OUTLAST_CRASH_SEED={SEED}")

    def kill_at(self, point: Point) -> Life:
        """Play until killed there."""
        at = ("--at", f"{point.name}#{point.number}", "--side", point.side)
        life = self._live(-signal.SIGKILL, *at)
        last = self.bench.events(life.pid)[-1]
        # In parallel branches another body may have begun meanwhile.
        assert point.name in last.split() or point.side == "after", (point, last)
        return life

    def finish(self) -> Life:
        """Play until the process ends by itself."""
        return self._live(0)

    def _live(self, status: int, *options: str) -> Life:
        # What is in doubt is left to an operator when the run leaves memory; one that is only slow must not leave it.
        idle = "0.3" if self.lives else "30"
        process = self.bench.launch("--play", self.name, "--idle", idle, *options)
        found = self.lives[-1].left if self.lives else None
        assert self.bench.finish(process) == status, self.bench.words()
        life = Life(process.pid, found, self.bench.left_behind(self.run_id))
        self.lives.append(life)
        return life

    def events(self) -> list[str]:
        """Return what the last process wrote and called."""
        return self.bench.events(self.lives[-1].pid)

    def check(self) -> RunImage:
        """Nothing recorded changed or happened again, nothing was called before it was intended, every call has one key.

        And each death costs a body at most one more call.
        """
        after = self.bench.image(self.run_id)
        assert after is not None
        check_journal(after.rows)
        self.bench.check_intact()
        keys: dict[str, set[str]] = {}
        for life in self.lives:
            self._check_life(life, after)
            for call in self._calls(life):
                keys.setdefault(call["operation"], set()).add(call["key"])
        assert all(len(one) == 1 for one in keys.values()), keys
        return after

    def _check_life(self, life: Life, after: RunImage) -> None:
        for image in filter(None, (life.found, life.left)):
            assert after.rows[: len(image.rows)] == image.rows
        settled = operations(life.found, OUTCOMES)
        calls = self._calls(life)
        again = [one for one in calls if one["operation"] in settled]
        assert not again, f"recorded, and run again: {again}"
        intended = operations(life.left, {"effect_intended"})
        early = [
            one
            for one in calls
            if one["call"].startswith("effect:") and one["operation"] not in intended
        ]
        assert not early, f"called before the intent was written: {early}"

    def _calls(self, life: Life) -> list[dict[str, Any]]:
        """Return the calls that a process made for the run; for its children it makes others."""
        return [one for one in self.bench.calls(life.pid) if one["run"] == self.run_id]


def operations(image: RunImage | None, kinds: set[str]) -> set[str]:
    """Return the operations that have an entry of one of these kinds."""
    return {one.row.operation for one in image.rows if one.row.kind in kinds} if image else set()


def recoveries(first: Play, point: Point) -> Iterator[Point]:
    """Kill a run at a point, let it recover undisturbed, and return every point of that recovery."""
    first.kill_at(point)
    first.finish()
    yield from (one for one in points_of(first.events()) if is_certain(one))


def is_certain(point: Point) -> bool:
    """Whether every life comes to it: a run that waits leaves memory, and is claimed again, only when the machine is slow."""
    return point.name != "head:waiting" and (point.name, point.number) != ("claim", 2)
