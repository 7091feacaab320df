"""The second model that watches a simulation: what a fork must never do is told to it, and it says so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from outlast.journal.entry import (
    EffectCompleted,
    EffectInDoubt,
    EffectIntended,
    Entry,
    Forked,
    KnownEffect,
    OperationId,
    RunName,
    Started,
    to_row,
)
from outlast.store.change import (
    Applied,
    RunChange,
    RunKey,
    StartRun,
    WorkerId,
    WorkerRow,
    digest_of,
)
from outlast.testing import SimulatedClock
from outlast.testing.simulation.invariant import Invariants
from outlast.workflows.attempt import Attempt

RUN, ONE = RunKey("default", "f"), WorkerId("one")
BEFORE, AT = OperationId("r:1"), OperationId("r:2")
DONE, NEW, LOST = (
    EffectIntended(AT, "deed", "key", Raw(b"{}"), Raw(b"{}"), sha, epoch=1)
    for sha in ("done", "new", "lost")
)
KNOWN = EffectCompleted(AT, "deed", Raw(b'"done"'), source="fork")
SETTLED = [replace(NEW, operation=BEFORE), replace(KNOWN, operation=BEFORE, source="attempt")]


class Bench:
    """A fork that `one` holds: it kept one settled effect, and knows one that was done and one that was lost."""

    def __init__(self, effects: Any = "refuse") -> None:
        self.clock = SimulatedClock()
        self.violations: list[int] = []
        self.invariants = Invariants(
            self.clock, lambda error: self.violations.append(error.invariant)
        )
        self.invariants.written.knows_keys = False
        self.invariants.bodies.quiet["deed"] = 5.0
        row = WorkerRow(ONE, "p", 1, "b", ("w",), timedelta(seconds=100))
        self.invariants.registered(row)
        known = (
            KnownEffect("deed", "done", 1, "o", AT, "key", "completed", Raw(b'"done"')),
            KnownEffect("deed", "lost", 1, "o", AT, "key", "unknown"),
        )
        started = Started("w", Raw(b"{}"), b"s" * 16, "f", effects=effects, keys="o")
        forked = Forked(RunName("f"), RunName("o"), 3, "", "why", effects, known=known)
        entries = [started, *SETTLED, forked]
        self.rows = len(entries)
        rows = tuple(to_row(one, at, at) for at, one in enumerate(entries))
        start = StartRun(RUN, "w", "f", rows, worker=ONE, times=(self.clock.now(),) * 3)
        self.invariants.committed([(start, Applied(self.clock.now(), 1))], self.clock.now())

    def write(self, *entries: Entry) -> None:
        """Write a change that the store takes."""
        run = self.invariants.runs[RUN]
        rows = tuple(to_row(one, self.rows + at, self.rows + at) for at, one in enumerate(entries))
        self.rows += len(rows)
        change = RunChange(RUN, ONE, run.epoch, run.version, entries=rows)
        change = replace(change, digest=digest_of(change))
        now = self.clock.now()
        self.invariants.committed([(change, Applied(now))], now)

    def attempt(self) -> None:
        """Begin and end an attempt."""
        attempt = Attempt("default", "f", AT, "deed", 1, "key")
        with self.invariants.bodies.running(attempt, "effect", "p"):
            pass


def test_what_a_fork_may_do_is_no_violation() -> None:
    """A known outcome beside its intent; an effect that was allowed; the entries that came with it."""
    bench = Bench()
    bench.write(DONE, KNOWN)
    allowed = Bench("same_key")
    allowed.write(NEW)
    allowed.attempt()
    allowed.write(EffectCompleted(AT, "deed", Raw(b"1")))
    assert bench.violations == allowed.violations == []


def test_an_effect_of_a_fork_that_refuses_does_not_begin() -> None:
    """Whatever is recorded of it."""
    bench = Bench()
    bench.write(NEW)
    bench.attempt()
    assert bench.violations == [3]


@pytest.mark.parametrize(
    ("intent", "end"),
    [
        (DONE, replace(KNOWN, value=Raw(b'"other"'))),
        (NEW, KNOWN),
        (LOST, KNOWN),
        (DONE, replace(KNOWN, operation=BEFORE)),
    ],
    ids=["another value", "another call", "nobody knows it", "settled before"],
)
def test_an_outcome_that_the_origin_did_not_have_is_seen(
    intent: EffectIntended, end: EffectCompleted
) -> None:
    """Only what stands among the known is known, once."""
    bench = Bench()
    bench.write(intent, end)
    assert 1 in bench.violations
    twice = Bench()
    twice.write(DONE, KNOWN)
    other = OperationId("r:9")
    twice.write(replace(DONE, operation=other), replace(KNOWN, operation=other))
    assert twice.violations == [1]


def test_a_known_effect_that_was_attempted_is_seen() -> None:
    """Its outcome was known before it began."""
    bench = Bench("same_key")
    bench.write(DONE)
    bench.attempt()
    bench.write(KNOWN)
    assert bench.violations == [1]


def test_a_lost_attempt_of_the_origin_has_its_time() -> None:
    """Nobody says what became of it before."""
    early, late = Bench("same_key"), Bench("same_key")
    for bench, seconds in ((early, 1.0), (late, 6.0)):
        bench.write(LOST)
        bench.clock.advance(seconds)
        bench.write(EffectInDoubt(AT, "deed", "lost"))
    assert (early.violations, late.violations) == ([3], [])


def test_an_outcome_that_was_kept_is_recorded_once() -> None:
    """The entries that came with the fork count."""
    bench = Bench()
    bench.write(replace(KNOWN, operation=BEFORE, source="attempt"))
    assert 1 in bench.violations
