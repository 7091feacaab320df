"""A wrapper of a store that counts what a worker writes and takes. Nothing of what runs say is read: kinds of entries, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from outlast.errors import StoreUnavailableError
from outlast.meter import instrument as of
from outlast.meter.instrument import Instrument
from outlast.meter.meters import Meters
from outlast.store.change import (
    Applied,
    Change,
    ClearOutbox,
    Conflict,
    Fenced,
    FinishTask,
    HeadUpdate,
    Refused,
    RunChange,
    StartRun,
    Status,
    Terminate,
    Unknown,
    Verdict,
    WorkerId,
)
from outlast.store.protocol import Claim, Store
from outlast.store.task import TaskClaim, TaskKey

_VERDICTS: dict[type[Verdict], str] = {
    Fenced: "fenced",
    Conflict: "conflict",
    Refused: "refused",
    Unknown: "unknown",
}
_ENTRIES: dict[str, tuple[Instrument, str]] = {
    "step_completed": (of.STEPS, "completed"),
    "step_failed": (of.STEPS, "failed"),
    "effect_intended": (of.EFFECTS, "intended"),
    "effect_completed": (of.EFFECTS, "completed"),
    "effect_failed": (of.EFFECTS, "failed"),
    "effect_in_doubt": (of.EFFECTS, "in_doubt"),
    "effect_cleared": (of.EFFECTS, "cleared"),
    "effect_refused": (of.EFFECTS, "refused"),
    "approval_requested": (of.APPROVALS, "requested"),
    "approval_decided": (of.APPROVALS, "decided"),
    "approval_edited": (of.APPROVALS, "edited"),
    "approval_expired": (of.APPROVALS, "expired"),
}


def metered(store: Store, meters: Meters, monotonic: Callable[[], float]) -> Store:
    """Return `store` as one that tells `meters` what is written and taken through it.

    Args:
        monotonic: Returns seconds since a fixed moment.
    """
    return cast("Store", MeteredStore(store, meters, monotonic))


class MeteredStore:
    """What `metered` returns; every other verb is the inner store's own."""

    def __init__(self, inner: Store, meters: Meters, monotonic: Callable[[], float]) -> None:
        self._inner = inner
        self._meters = meters
        self._monotonic = monotonic

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write, and count; see `Store.commit`."""
        meters = self._meters
        began = self._monotonic()
        try:
            verdicts = await self._inner.commit(changes)
        except StoreUnavailableError:
            meters.add(of.COMMITS_FAILED)
            raise
        meters.record(of.COMMIT_SECONDS, self._monotonic() - began)
        meters.record(of.COMMIT_SIZE, len(changes))
        kinds: dict[str, int] = {}
        applied = 0
        for change, verdict in zip(changes, verdicts, strict=True):
            if type(verdict) is not Applied:
                meters.add(of.CHANGES, 1, _VERDICTS.get(type(verdict), "unknown"))
                continue
            applied += 1
            if type(change) is not RunChange:
                self._note(change)
                continue
            for row in change.entries:
                kinds[row.kind] = kinds.get(row.kind, 0) + 1
            if change.head is not None:
                self._note_head(change.head)
        if applied:
            meters.add(of.CHANGES, applied, "applied")
        for kind, count in kinds.items():
            if (place := _ENTRIES.get(kind)) is not None:
                meters.add(place[0], count, place[1])
        return verdicts

    def _note(self, change: Change) -> None:
        if isinstance(change, StartRun):
            self._meters.add(of.RUNS_STARTED)
        elif isinstance(change, Terminate):
            self._meters.add(of.RUNS_ENDED, 1, Status.TERMINATED.value)
        elif isinstance(change, ClearOutbox):
            self._meters.add(of.RELAYED, len(change.numbers))
        elif isinstance(change, FinishTask):
            self._meters.add(of.TASKS_FINISHED)

    def _note_head(self, head: HeadUpdate) -> None:
        if head.status.closed:
            self._meters.add(of.RUNS_ENDED, 1, head.status.value)
        elif head.status is Status.BLOCKED:
            self._meters.add(of.RUNS_BLOCKED, 1, head.reason)

    async def claim(
        self, worker: WorkerId, workflows: frozenset[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Take runs, and count them."""
        claim = await self._inner.claim(worker, workflows, limit, released=released)
        self._meters.add(of.CLAIMS)
        if claim.runs:
            self._meters.add(of.RUNS_CLAIMED, len(claim.runs))
        return claim

    async def claim_tasks(
        self,
        worker: WorkerId,
        queues: frozenset[str],
        steps: frozenset[str],
        *,
        limit: int,
        known: frozenset[TaskKey] = frozenset(),
    ) -> TaskClaim:
        """Take tasks, and count them."""
        claim = await self._inner.claim_tasks(worker, queues, steps, limit=limit, known=known)
        for task in claim.tasks:
            self._meters.add(of.TASKS_TAKEN, 1, task.row.queue)
        return claim

    def renew(self, worker: WorkerId) -> bool:
        """Renew a lease, and count that."""
        held = self._inner.renew(worker)
        if held:
            self._meters.add(of.RENEWALS)
        return held

    if not TYPE_CHECKING:  # the cast in `metered` says that it is a whole store

        def __getattr__(self, name: str) -> Any:
            """Return what the inner store has."""
            return getattr(self._inner, name)
