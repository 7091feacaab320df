"""What numbers that were read from a store say to whoever operates it: the same words whatever the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from outlast.store.change import WorkerRow
from outlast.store.finding import Finding
from outlast.store.migrate import AT_OPENING, AppliedMigration, Migration, unknown
from outlast.store.restoration import Releases


def schema_finding(
    migrations: Sequence[Migration], applied: Mapping[int, AppliedMigration]
) -> Finding:
    """Judge which migrations a store has.

    Args:
        migrations: All that this version knows.
    """
    newest, known = max(applied, default=0), migrations[-1].number
    newer = unknown(migrations, applied)
    pending = [one for one in migrations if one.number not in applied]
    text = f"schema {newest}, and this version brings {known}"
    if any(applied[number].phase != "pre" for number in newer):
        text = f"schema {newest} is from a newer version of Outlast (this one knows {known})"
        return Finding("schema", "fail", text, "upgrade Outlast here")
    if any(
        one.checksum != applied[one.number].checksum for one in migrations if one not in pending
    ):
        text = f"schema {newest} was made by another text than this version's"
        return Finding("schema", "fail", text, "install the release that wrote it")
    if any(one.phase not in AT_OPENING for one in pending):
        hint = "`outlast migrate`, once no process of the former version is left"
        return Finding("schema", "warn", text, hint)
    if pending:
        return Finding("schema", "warn", text, "it is brought up to date when a worker starts")
    if newer:
        text = f"schema {newest} was prepared for a newer version of Outlast (this one knows {known}, and works on)"
        return Finding("schema", "warn", text, "deploy the newer version")
    return Finding("schema", "ok", f"schema {newest}")


def blocked_finding(open_runs: Mapping[str, int]) -> Finding:
    """Judge how many runs are open, by status."""
    blocked, total = open_runs.get("blocked", 0), sum(open_runs.values())
    if not blocked:
        return Finding("blocked", "ok", f"open runs: {total}, none blocked")
    hint = "`outlast runs list --status blocked`, then `outlast runs explain RUN`"
    return Finding("blocked", "warn", f"open runs: {total}, of them blocked: {blocked}", hint)


def doubt_finding(count: int) -> Finding:
    """Judge how many effects are in doubt."""
    if not count:
        return Finding("in_doubt", "ok", "no effect is in doubt")
    hint = "`outlast runs doubts` lists them, and what to type; `outlast runs explain RUN` says what to look up"
    return Finding("in_doubt", "warn", f"effects in doubt: {count}", hint)


def request_finding(doubtful: Sequence[tuple[str, int]]) -> Finding:
    """Judge how many requests with an idempotency key are in doubt, by tenant."""
    if not doubtful:
        return Finding("requests", "ok", "no request with an idempotency key is in doubt")
    total = sum(count for _, count in doubtful)
    tenants = ", ".join(f"{count} of tenant {tenant}" for tenant, count in doubtful)
    hint = "`outlast requests list --state in-doubt`, then `outlast requests show REQUEST`"
    is_default = [tenant for tenant, _ in doubtful] == ["default"]
    return Finding(
        "requests",
        "warn",
        f"requests in doubt: {total}" + ("" if is_default else f" ({tenants})"),
        hint if is_default else f"for each tenant, with --tenant: {hint}",
    )


def worker_finding(live: Sequence[WorkerRow], movable: Iterable[str]) -> Finding:
    """Judge whether somebody moves each open run.

    Args:
        movable: The workflows that have runs which somebody could move.
    """
    served = {name for row in live for name in row.workflows}
    orphans = [name for name in movable if name not in served]
    ids = ", ".join(f"{row.worker} (paused)" if row.paused else row.worker for row in live)
    ids = ids or "none"
    if orphans:
        text = f"live workers: {ids}; nobody moves the open runs of {', '.join(orphans)}"
        return Finding("workers", "warn", text, "start one: `outlast worker MODULE`")
    if live and all(row.paused for row in live):
        hint = "`outlast release RUN --reason WHY` lets a run go on, `outlast release --all --reason WHY` everything"
        return Finding("workers", "warn", f"live workers: {ids}; all of them are paused", hint)
    return Finding("workers", "ok", f"live workers: {ids}")


def queue_findings(
    live: Sequence[WorkerRow], waiting: Sequence[tuple[str, int, datetime]]
) -> Iterator[Finding]:
    """Judge whether each queue in which steps wait is served.

    Args:
        waiting: Of each queue how many, and since when.
    """
    served = {name for row in live for name in row.queues}
    orphans = [row for row in waiting if row[0] not in served]
    for queue, count, since in orphans:
        steps = "1 step waits" if count == 1 else f"{count} steps wait"
        yield Finding(
            "queues",
            "warn",
            f"{steps} for a worker of queue {queue!r} since {since:%Y-%m-%d %H:%M:%S} UTC, and nobody serves it",
            f"start one: `outlast worker MODULE --queue {queue}`",
        )
    if not orphans:
        count = sum(row[1] for row in waiting)
        yield Finding(
            "queues", "ok", f"steps that wait for a worker: {count}, all queues are served"
        )


def history_finding(timeline: str, row: Releases, doubtful: int) -> Finding:
    """Judge whether something may be forgotten, as the store was put back to an earlier state.

    Args:
        doubtful: How many open runs are of before that.
    """
    restored = row.restored
    if restored is None:
        return Finding("timeline", "ok", f"history {timeline[:8]} goes on from its beginning")
    text = f"restored at {restored.at:%Y-%m-%d %H:%M:%S} UTC ({restored.why}); nothing is forgotten of before {restored.until:%Y-%m-%d %H:%M:%S} UTC"
    if row.held:
        hint = (
            "workers move nothing: `outlast release RUN --reason WHY` lets a run go on with care, `outlast release --all --reason WHY` "
            "all of them; with --trust where you know that nothing was forgotten"
        )
        return Finding("timeline", "warn", f"{text}; open runs of before: {doubtful}", hint)
    if doubtful:
        hint = "their effects are held to have been attempted: `outlast runs doubts`; `outlast release RUN --trust --reason WHY` ends that"
        return Finding(
            "timeline", "warn", f"{text}; open runs that go on with care: {doubtful}", hint
        )
    return Finding("timeline", "ok", f"{text}; no open run is of before")
