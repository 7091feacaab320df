"""What this process knows of the runs that its workers hold, so that their commits need not read before they write.

A worker's own commits are nearly the only ones that write a run's rows. So the rows are known as the last commit has left them, a group is
judged on that, and the server is asked, in the same round trip as all the writing, whether it still is so: each run's row counts the
writes to anything of the run (`touched`), each control row has a version. If anything differs, nothing is written, and the group is read
and judged anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from outlast.store.change import (
    Change,
    ClearOutbox,
    Decide,
    PutControl,
    PutMessage,
    RevokeSticky,
    RunChange,
    RunKey,
    StartRun,
    WorkerId,
)
from outlast.store.moment import END_OF_TIME, to_micros
from outlast.store.notice import EndNotice, TakeNotices
from outlast.store.postgres.loaded import LoadedRows, LoadedRun
from outlast.store.postgres.look import Look, lock_number
from outlast.store.postgres.session import Session
from outlast.store.request import RequestChange

MOST_RUNS = 10_000
MOST_TOLD = 1_000
_LOCK_SHARED = "SELECT pg_advisory_xact_lock_shared(one) FROM unnest(%b::bigint[]) AS one"
_IS_NOW = "SELECT $s.must(%b BETWEEN one.now - 1000000 AND one.now AND one.now <= %b) FROM (SELECT $s.micros() AS now) AS one"
_WORKERS_LIVE = """
SELECT $s.must(count(*) = %b) FROM (
    SELECT 1 FROM $s.worker WHERE worker = ANY(%b::text[]) AND renewed + lease > $s.micros()
    ORDER BY worker FOR NO KEY UPDATE
) AS live
"""
_RUNS_UNTOUCHED = """
SELECT $s.must(count(*) = %b) FROM (
    SELECT 1 FROM unnest(%b::text[], %b::text[], %b::bigint[]) AS known (tenant, run_id, touched)
    JOIN $s.run AS run USING (tenant, run_id) WHERE run.touched = known.touched
    ORDER BY run.tenant, run.run_id FOR UPDATE OF run
) AS untouched
"""
_ENTRIES_THERE = """
SELECT count(*) FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[])
    AS told (tenant, run_id, generation, seq, at)
JOIN $s.entry AS entry USING (tenant, run_id, generation, seq) WHERE entry.at = told.at
"""
_CONTROLS_UNCHANGED = """
SELECT $s.must(NOT EXISTS (
    SELECT 1 FROM unnest(%b::text[], %b::text[], %b::bigint[]) AS known (tenant, name, version)
    LEFT JOIN $s.control AS control USING (tenant, name) WHERE coalesce(control.version, 0) <> known.version
))
"""


class Recall:
    """What is known of runs that are held here, and of control rows."""

    def __init__(self) -> None:
        self._runs: OrderedDict[RunKey, LoadedRun] = OrderedDict()
        self._controls: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._told: dict[RunKey, tuple[int, int, int]] = {}
        """The last entry of each run of which this process was told that it is written: generation, seq and time, which no other has."""

    def split(self, changes: Sequence[Change]) -> list[int]:
        """Return the places of the changes that can be judged on what is known."""
        if any(isinstance(change, _OF_CONTROLS) for change in changes):
            # What is guarded is judged by the rows as the same commit leaves them.
            return []
        known = [self._is_known(change) for change in changes]
        others = {
            _run_of(change) for change, is_known in zip(changes, known, strict=True) if not is_known
        }
        return [
            place
            for place, (change, is_known) in enumerate(zip(changes, known, strict=True))
            if is_known and _run_of(change) not in others
        ]

    def _is_known(self, change: Change) -> bool:
        match change:
            case RunChange():
                has_rows = change.run in self._runs and not change.tasks and change.hold is None
                # A deadline of people's is judged by the server's time as it is, not as it is known.
                is_timed = change.approvals or change.spends
                return has_rows and not is_timed and self._knows_guards(change)
            case StartRun():
                # One that nobody here knows is taken for new: a row that is there keeps it from being written.
                return change.run in self._runs or change.generation == 1
            case PutMessage() | ClearOutbox():
                return change.run in self._runs
            case _:
                return False

    def _knows_guards(self, change: RunChange) -> bool:
        return all(
            (one.tenant, one.name) in self._controls
            for permit in change.permits
            for one in (*permit.authority, *permit.stops)
        )

    def rows(self, look: Look) -> LoadedRows:
        """Return the rows that are known of what is looked at."""
        rows = LoadedRows()
        rows.alive = set(look.workers)
        for key in look.runs:
            rows.runs[key] = self._runs.get(key) or LoadedRun(key)
        for tenant, name in look.guards:
            rows.know_control(tenant, name, *self._controls[tenant, name])
        return rows

    def ask(
        self,
        session: Session,
        look: Look,
        rows: LoadedRows,
        micros: int,
        changes: Sequence[Change],
    ) -> None:
        """Lock what is looked at, and have the transaction stopped where something of it is not as it was known.

        Args:
            micros: The time by which it was judged: not ahead of the server's, nor long before it.
        """
        if look.guards:
            schema = session.statements.schema
            numbers = sorted({lock_number(schema, *key) for key in look.guards})
            session.send(_LOCK_SHARED, (numbers,))
            versions = [(*key, self._controls[key][0]) for key in sorted(look.guards)]
            session.send(_CONTROLS_UNCHANGED, [list(one) for one in zip(*versions, strict=True)])
        if look.workers:
            session.send(_WORKERS_LIVE, (len(look.workers), sorted(look.workers)))
        known = [run for _, run in sorted(rows.runs.items()) if run.exists]
        if known:
            columns = (
                [run.key.tenant for run in known],
                [run.key.run_id for run in known],
                [run.counts.touched for run in known],
            )
            session.send(_RUNS_UNTOUCHED, (len(known), *columns))
        # Last: what was waited for is time that has passed.
        session.send(_IS_NOW, (micros, _soonest(changes)))

    def written(self, rows: LoadedRows, workers: Iterable[WorkerId]) -> None:
        """Remember the runs of a commit that one of these workers holds, as it has left them, and forget the others."""
        mine = set(workers)
        for key, run in rows.runs.items():
            if run.entries:
                generation, last = run.entries[-1]
                self._told.pop(key, None)
                self._told[key] = (generation, last.row.seq, to_micros(last.at))
            state = run.state
            is_held = state is not None and state.head.owner in mine
            if run.error is not None or not is_held or not run.is_whole:
                self._runs.pop(key, None)
            else:
                self._runs[key] = run.settled()
                self._runs.move_to_end(key)
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        while len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)

    def know_controls(self, look: Look, rows: LoadedRows) -> None:
        """Remember the control rows that were read."""
        for key in look.controls:
            self._controls[key] = rows.control(*key)
        while len(self._controls) > MOST_RUNS:
            del self._controls[next(iter(self._controls))]

    def unknown(self, look: Look) -> set[RunKey]:
        """Return the runs whose owners write them, and of which nothing is known."""
        return {key for key in look.owned if key not in self._runs}

    def is_there(self, session: Session) -> bool:
        """Whether the entries of which this process was told last are in the store: from any thread."""
        known = list(self._told.items())
        if not known:
            return True
        rows = [(run.tenant, run.run_id, *entry) for run, entry in known]
        found = session.rows(_ENTRIES_THERE, [list(one) for one in zip(*rows, strict=True)])
        return bool(found[0][0] == len(known))

    def begin_anew(self) -> None:
        """Forget what was told: it was put back, and that is known."""
        self._told = {}

    def clear(self) -> None:
        """Forget the rows: the connection is another one, and perhaps the server."""
        self._runs.clear()
        self._controls.clear()

    def forget(self, look: Look) -> None:
        """Forget the runs that a group has looked at."""
        for key in look.runs:
            self._runs.pop(key, None)


_OF_CONTROLS = (PutControl, RevokeSticky, Decide)


def _run_of(change: Change) -> RunKey | None:
    if isinstance(change, RequestChange | TakeNotices | PutControl | RevokeSticky):
        return None
    if isinstance(change, EndNotice):
        return RunKey(change.tenant, change.run_id)
    return change.run


def _soonest(changes: Sequence[Change]) -> int:
    """Return until when all that was asked for permits counts, in microseconds."""
    permits = [
        permit for change in changes if isinstance(change, RunChange) for permit in change.permits
    ]
    return min((to_micros(one.checked_at + one.within) for one in permits), default=END_OF_TIME)
