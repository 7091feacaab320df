"""What must hold when the body of a step or effect begins, and as long as it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

from msgspec.structs import replace

from outlast.journal.entry import EffectIntended
from outlast.store.beat import silent_at
from outlast.store.change import BeatOperation, OperationPut, RunChange, RunKey, WorkerId
from outlast.testing.clock import SimulatedClock
from outlast.testing.simulation.forked import repeats_unknown
from outlast.testing.simulation.model import EDGE, Check, Life, Run
from outlast.testing.simulation.task import Tasks
from outlast.workflows.attempt import Attempt
from outlast.workflows.heartbeat import Beats

_CLOSE = timedelta(milliseconds=1)


class Bodies:
    """The bodies that run, in all processes.

    Args:
        check: Reports what does not hold.
        runs: What is known of them.
        lives: What is known of the workers.
        begun: Called with its process when a body begins.
    """

    def __init__(
        self,
        clock: SimulatedClock,
        check: Check,
        runs: dict[RunKey, Run],
        lives: dict[WorkerId, Life],
        begun: Callable[[str], object],
    ) -> None:
        self._clock = clock
        self._check = check
        self._runs = runs
        self._lives = lives
        self._begun = begun
        self._acting: dict[tuple[str, RunKey, str], float] = {}
        """Effects whose body runs, by process: until when, by the clock."""
        self._kept: dict[str, float] = {}
        self.beats: set[tuple[str, str, bytes]] = set()
        """The beats from outside that were kept: run, operation, details."""
        self.said: dict[tuple[str, RunKey, str], bytes] = {}
        """Of each operation, by process: the details of the last heartbeat of its last attempt."""
        self.tasks: Tasks | None = None
        """What is known of tasks, whose bodies begin elsewhere than where the run is."""
        self.quiet: dict[str, float] = {}
        """Of each effect that is not idempotent: seconds after which no attempt acts any more."""
        self.proofs: dict[str, tuple[type[BaseException], ...]] = {}
        """Of each effect: what its body raises when it has done nothing."""

    @contextmanager
    def running(
        self, attempt: Attempt, kind: str, process: str, beats: Beats | None = None
    ) -> Generator[None]:
        """The body of a step or effect runs, in a process.

        Args:
            beats: What it says of itself.
        """
        self._begins(attempt, kind, process)
        if beats is not None:
            self._check_found(attempt, process, beats.former)
        key = (process, RunKey(attempt.tenant, attempt.run_id), attempt.operation)
        if kind == "effect":
            self._check(
                not self._acts(key), 3, "two attempts at once", run=key[1], at=attempt.operation
            )
            self._acting[key] = float("inf")
        try:
            yield
            self._ended_well(key)
        except self.proofs.get(attempt.name, ()):
            self._ended_well(key)
            raise
        finally:
            self._acting.pop(key, None)
            if beats is not None:
                self.said[key] = beats.latest
            kept = self._kept.pop(process, 0.0)
            if kept:
                self._acting[key] = self._clock.monotonic() + kept

    def _check_found(self, attempt: Attempt, process: str, details: bytes) -> None:
        """What was said and kept is found, unless the attempt is of somebody who has lost the run."""
        key, at = RunKey(attempt.tenant, attempt.run_id), attempt.operation
        run = self._runs[key]
        life = None if run.owner is None else self._lives.get(run.owner)
        here = life is not None and life.process == process and life.runs(self._clock.monotonic())
        self._check(
            not here or attempt.key in run.left_over or details == run.progress.get(at, b""),
            1,
            f"attempt {attempt.number} of {attempt.name} finds {details!r}, and {run.progress.get(at, b'')!r} was kept",
            run=key,
            at=at,
        )

    def heard(self, change: BeatOperation, now: datetime) -> None:
        """Somebody outside has said something of a step that was handed out, which was kept.

        Args:
            now: The store's time.
        """
        run, at = self._runs[change.run], change.operation
        self.beats.add((change.run.run_id, at, change.progress))
        if at in run.listening:
            run.listening[at] = replace(run.listening[at], heard_at=now)
        self._check(
            at in run.handed_out, 1, "a beat was kept of what is with nobody", run=change.run, at=at
        )
        if change.progress:
            run.progress[at] = change.progress
            for key in [key for key in self.said if key[1:] == (change.run, at)]:
                self.said[key] = change.progress

    def check_silent(self, key: RunKey, row: OperationPut, now: datetime) -> None:
        """A step that was handed out has failed: its time is over, or nothing was heard of it for too long.

        Args:
            row: What says that it was handed out; of the time when it was heard of last.
            now: The store's time.
        """
        silent = silent_at(row)
        ends = [one for one in (row.due_at, silent) if one is not None]
        self._check(
            self._clock.was_set or any(now >= one - _CLOSE for one in ends),
            1,
            f"it was given up, and was heard of at {row.heard_at}",
            run=key,
            at=row.operation,
        )

    def check_said(self, change: RunChange, row: OperationPut) -> None:
        """A failure is recorded with the last that the attempt has said of itself."""
        life = self._lives.get(change.worker)
        said = self.said.get((life.process if life else "", change.run, row.operation))
        self._check(
            said is None or said == row.progress,
            1,
            f"a failure is recorded with the details {row.progress!r}, and its attempt has said {said!r}",
            run=change.run,
            at=row.operation,
        )

    def _ended_well(self, key: tuple[str, RunKey, str]) -> None:
        """The end is known, to whoever waits for it."""
        run = self._runs[key[1]]
        life = None if run.owner is None else self._lives.get(run.owner)
        if life is not None and life.process == key[0]:
            run.risky.pop(key[2], None)

    def check_rested(self, run: Run, key: RunKey, at: str) -> None:
        """The next attempt of an operation begins, which was to wait until it is due."""
        due = run.resting.pop(at, None)
        if due is not None and not self._clock.was_set:
            rested = self._clock.now() >= due - _CLOSE
            self._check(rested, 1, "an attempt begins before it is due", run=key, at=at)

    def check_quiet(self, key: RunKey, at: str, name: str) -> None:
        """An attempt of an effect begins, or it is said what became of the one before, which cannot act any more."""
        began = self._runs[key].risky.get(at)
        if began is not None and name in self.quiet:
            self._check(
                self._clock.monotonic() >= began + self.quiet[name] - EDGE,
                3,
                f"somebody acts on {name} while an attempt of it may still act",
                run=key,
                at=at,
            )

    def keep_thread(self, process: str, seconds: float) -> None:
        """The body that runs now keeps its thread for so long after it has done everything."""
        self._kept[process] = seconds

    def _acts(self, key: tuple[str, RunKey, str]) -> bool:
        return self._acting.get(key, 0.0) > self._clock.monotonic() + EDGE

    def rests(self, process: str, run: RunKey) -> bool:
        """Whether no effect of a run acts in a process."""
        return not any(
            self._acts(key) for key in self._acting if key[0] == process and key[1] == run
        )

    def _begins(self, attempt: Attempt, kind: str, process: str) -> None:
        self._begun(process)
        if attempt.probing:
            # It only looks: nothing of it is recorded.
            return
        key, at = RunKey(attempt.tenant, attempt.run_id), attempt.operation
        run = self._runs[key]
        life = None if run.owner is None else self._lives.get(run.owner)
        here = life is not None and life.process == process and life.runs(self._clock.monotonic())
        if attempt.key in run.left_over:
            return
        run.attempted.add(at)
        run.begins(at, attempt.name)
        if self.tasks is not None and kind == "step" and attempt.name in self.tasks.remote:
            self.tasks.begins(attempt, process)
            return
        self._check(
            not here or attempt.number == run.failures.get(at, 0) + 1,
            1,
            f"attempt {attempt.number} of {attempt.name}, of which {run.failures.get(at, 0)} are recorded",
            run=key,
            at=at,
        )
        if here:
            self.check_rested(run, key, at)
            self._check(
                not run.paused, 0, "an attempt begins while the run is paused", run=key, at=at
            )
            self._check(
                at not in run.handed_out,
                1,
                f"step {attempt.name} begins although it was handed out",
                run=key,
                at=at,
            )
        if kind == "step":
            # A step of somebody who does not know yet that he has lost the run is harmless; what he makes of it is refused.
            self._check(
                not here or at not in run.outcomes,
                1,
                f"step {attempt.name} begins although its outcome is recorded",
                run=key,
                at=at,
            )
            return
        intent = run.intents.get(at)
        self._check_fork(run, key, intent, attempt)
        self._check(
            intent is not None and intent.key == attempt.key,
            1,
            f"effect {attempt.name} begins without an intent that names its key",
            run=key,
            at=at,
        )
        self._check(
            at not in run.outcomes and (at not in run.doubts or not here),
            1,
            f"effect {attempt.name} begins although its outcome is recorded, or in doubt",
            run=key,
            at=at,
        )
        if here:
            self.check_quiet(key, at, attempt.name)
            run.risky[at] = self._clock.monotonic()
        self._check(
            here or run.terminated,
            7,
            f"effect {attempt.name} begins in {process}, which does not hold the run",
            run=key,
            at=at,
        )

    def _check_fork(
        self, run: Run, key: RunKey, intent: EffectIntended | None, attempt: Attempt
    ) -> None:
        """A fork attempts what it may: nothing, where effects are refused; under new keys nothing that its origin has begun."""
        self._check(
            run.forked is None or run.forked.may_act,
            3,
            f"effect {attempt.name} begins in a fork whose effects are refused",
            run=key,
            at=attempt.operation,
        )
        self._check(
            intent is None or not repeats_unknown(run, intent),
            3,
            f"effect {attempt.name} begins in a fork, under a new key, and the origin's attempt may come to its end",
            run=key,
            at=attempt.operation,
        )
