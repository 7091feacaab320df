"""One write transaction: many changes of many runs, each with a verdict of its own.

Each change runs in a savepoint: what does not hold, cannot be stored, or meets a row that cannot be read, is undone alone.
Errors of the file itself (disk, lock, damaged pages) are nobody's verdict; they go up, and nothing was written.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outlast.store.bound import UNSTORABLE, unstorable_part
from outlast.store.change import (
    Applied,
    Change,
    Fenced,
    PutControl,
    Refused,
    Release,
    RevokeSticky,
    RunChange,
    StartRun,
    Verdict,
    WorkerId,
)
from outlast.store.condition import place_of
from outlast.store.notice import EndNotice, NoticeChange, TakeNotices
from outlast.store.request import PurgeRequests, RequestChange
from outlast.store.sqlite import notice, owned, request, unowned
from outlast.store.sqlite.failure import concerns_all, refusal_of
from outlast.store.sqlite.scope import Writing

logger = logging.getLogger("outlast.store")


def write_all(writing: Writing, changes: Sequence[Change]) -> list[Verdict]:
    """Write the changes within an open transaction, run by run in one order, and return their verdicts."""
    verdicts: list[Verdict] = [Applied(writing.now)] * len(changes)
    renewing: set[WorkerId] = set()
    for index in sorted(range(len(changes)), key=lambda index: place_of(changes[index])):
        change = changes[index]
        verdict = verdicts[index] = _write_one(writing, change)
        if (
            isinstance(verdict, Applied)
            and isinstance(change, RunChange | StartRun)
            and change.worker
        ):
            renewing.add(change.worker)
    if renewing:
        writing.renew(renewing)
    return verdicts


def _write_one(writing: Writing, change: Change) -> Verdict:
    part = unstorable_part(change)
    if part:
        return Refused(UNSTORABLE, part)
    run = writing.database.run
    run("SAVEPOINT change")
    try:
        verdict = _apply(writing, change)
    except Exception as error:
        # Whatever one change, or one damaged row, leads to is the verdict of that change alone.
        if concerns_all(error) or not writing.database.in_transaction:
            raise
        verdict = refusal_of(error)
        logger.exception("a change of %s is refused", _name(change))
    if not isinstance(verdict, Applied):
        run("ROLLBACK TO change")
    run("RELEASE change")
    return verdict


def _apply(writing: Writing, change: Change) -> Verdict:
    if isinstance(change, RunChange):
        if not writing.live(change.worker):
            return Fenced("the worker's lease has lapsed")
        return owned.write(writing, change)
    if isinstance(change, StartRun):
        return unowned.start(writing, change)
    if isinstance(change, Release):
        return unowned.release(writing, change)
    if isinstance(change, RequestChange):
        return request.write(writing, change)
    if isinstance(change, NoticeChange):
        return notice.write(writing, change)
    return unowned.write(writing, change)


def _name(change: Change) -> str:
    match change:
        case PutControl():
            return f"control {change.name}"
        case TakeNotices():
            return "the notices that are due"
        case EndNotice():
            return f"a notice of run {change.run_id}"
        case RevokeSticky():
            return f"decision {change.sticky_id} that sticks"
        case PurgeRequests():
            return f"the requests of {change.tenant}"
        case _:
            is_request = isinstance(change, RequestChange)
            return f"request {change.request_id}" if is_request else f"run {change.run}"
