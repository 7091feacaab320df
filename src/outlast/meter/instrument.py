"""Every number that Outlast tells of itself, by name: the one list, from which documents, exporters and tests draw.

Names, units and kinds follow the conventions of OpenTelemetry: dotted, seconds, things in braces. No value of a run, and no id of one,
is ever a label: there are as many series as statuses, reasons, workflows and queues.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Label: TypeAlias = Literal["", "outcome", "status", "reason", "workflow", "queue", "state"]
"""What tells the series of one instrument apart; empty where there is one."""


class Instrument(Struct, frozen=True, eq=False):
    """One thing that is counted or measured; compared by identity, so that counting costs no comparison.

    Args:
        unit: As UCUM says it: `s`, or the thing in braces.
        text: One line for people.

    Example:
        ```python
        from outlast.meter.instrument import INSTRUMENTS

        units = {instrument.name: instrument.unit for instrument in INSTRUMENTS}
        assert units["outlast.store.commit.duration"] == "s"
        ```
    """

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    text: str
    label: Label = ""


def _counter(name: str, unit: str, text: str, label: Label = "") -> Instrument:
    return Instrument(f"outlast.{name}", "counter", f"{{{unit}}}", text, label)


def _gauge(name: str, unit: str, text: str, label: Label = "") -> Instrument:
    return Instrument(
        f"outlast.{name}", "gauge", unit if unit == "s" else f"{{{unit}}}", text, label
    )


# Of one worker

COMMITS_FAILED = _counter(
    "store.commit.failures",
    "commit",
    "Transactions for which the store was not there; they are sent again",
)
COMMIT_SECONDS = Instrument(
    "outlast.store.commit.duration", "histogram", "s", "From a transaction's sending to its answer"
)
COMMIT_SIZE = Instrument(
    "outlast.store.commit.size", "histogram", "{change}", "Changes in one transaction"
)
CHANGES = _counter(
    "store.changes",
    "change",
    "Verdicts on changes: applied, fenced, conflict, refused, unknown",
    "outcome",
)
CLAIMS = _counter("store.claims", "claim", "Looks for work")
RUNS_CLAIMED = _counter("run.claimed", "run", "Runs taken up")
RUNS_STARTED = _counter("run.started", "run", "Runs started through this worker")
RUNS_ENDED = _counter("run.ended", "run", "Runs brought to an end, by how", "status")
RUNS_BLOCKED = _counter("run.blocks", "run", "Runs that became blocked, by why", "reason")
STEPS = _counter("step.outcomes", "step", "Outcomes of steps: completed, failed", "outcome")
EFFECTS = _counter(
    "effect.outcomes",
    "effect",
    "What became of effects: intended, completed, failed, in_doubt, cleared, refused",
    "outcome",
)
APPROVALS = _counter(
    "approval.outcomes",
    "request",
    "What became of requests to people: requested, decided, edited, expired",
    "outcome",
)
ATTEMPTS_STARTED = _counter("attempt.started", "attempt", "Attempts of steps and effects begun")
ATTEMPTS_ENDED = _counter(
    "attempt.ended",
    "attempt",
    "Attempts ended: returned, raised, timed_out, handed_out, cancelled",
    "outcome",
)
RENEWALS = _counter("lease.renewals", "renewal", "Renewals of the lease beside commits")
LAPSES = _counter("lease.lapses", "lapse", "Leases lost: every run was let go")
RELAYED = _counter("relay.items", "item", "Words from run to run that were carried")
TASKS_TAKEN = _counter("task.taken", "task", "Steps taken from queues", "queue")
TASKS_FINISHED = _counter("task.finished", "task", "Steps of queues finished or given back")

# Of the whole store, whichever worker reads it

RUNS_OPEN = _gauge("run.open", "run", "Runs that have not ended", "status")
BLOCKED = _gauge("run.blocked", "run", "Runs that wait for an operator or for other code", "reason")
UNCLAIMED = _gauge("run.unclaimed", "run", "Runs that could go on and have no owner", "workflow")
UNCLAIMED_AGE = _gauge("run.unclaimed_age", "s", "Since the oldest of them could", "workflow")
ORPHANED = _gauge("run.orphaned", "run", "Runs whose owner is dead, not yet taken over")
LAPSED = _gauge("run.lapsed", "run", "Runs whose owners died without any progress")
UNREAD = _gauge("run.unread", "run", "Runs in a worker that has not read their messages")
IN_DOUBT = _gauge(
    "effect.in_doubt", "effect", "Effects of which somebody must say whether they happened"
)
REQUESTS_IN_DOUBT = _gauge(
    "request.in_doubt", "request", "The same of HTTP requests with an idempotency key"
)
PENDING = _gauge("approval.pending", "request", "Requests that wait for people")
PENDING_AGE = _gauge("approval.pending_age", "s", "Since the oldest of them was made")
NOTICES = _gauge("notice.overdue", "notice", "Word to people that is due and not sent")
NOTICES_AGE = _gauge("notice.overdue_age", "s", "Since the oldest of it is due")
OUTBOX = _gauge("outbox.late", "item", "Words from run to run that are late")
OUTBOX_AGE = _gauge("outbox.late_age", "s", "Since the oldest of them was written")
TASKS = _gauge("task.waiting", "task", "Steps that wait for a worker of their queue", "queue")
TASKS_AGE = _gauge("task.waiting_age", "s", "Since the oldest of them could be taken", "queue")
WORKERS = _gauge("worker.count", "worker", "Workers: live, lapsed", "state")

INSTRUMENTS = tuple(one for one in tuple(globals().values()) if isinstance(one, Instrument))
"""All of them, in the order of this page."""
