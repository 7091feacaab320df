"""Runs and journals as tables and as JSON documents with stable field names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outlast.cli.output import plain, print_table, say, say_lines
from outlast.cli.text import ago, at, json_text
from outlast.client import JournalEntry, RunDetail, RunStatus, Status

LAST_ENTRIES = 10
BODY_WIDTH = 160
"""How much of an entry `runs show` prints; `runs journal` prints all of it."""


def runs(found: Sequence[RunStatus]) -> None:
    """Print a table of runs."""
    if not found:
        say("no runs")
        return
    print_table(
        ("RUN", "WORKFLOW", "STATUS", "CHANGED", "WAITS FOR"),
        [
            (one.run_id, one.workflow, one.status, at(one.changed_at), _waits_for(one))
            for one in found
        ],
    )


def run(detail: RunDetail, command: Callable[..., str]) -> None:
    """Print one run."""
    status, now = detail.status, detail.now
    lines = [
        ("run", status.run_id),
        ("workflow", status.workflow),
        ("status", status.status + (f": {status.reason}" if status.reason else "")),
        ("started", ago(status.created_at, now)),
        ("changed", ago(status.changed_at, now)),
        ("worker", status.worker or "none has it in memory"),
        ("entries", f"{status.entries} in generation {status.generation}"),
    ]
    if not status.status.closed:
        lines.append(("waits for", _waits_for(status) or "see explain"))
    if status.wake_at is not None and not status.status.closed:
        lines.append(("goes on", ago(status.wake_at, now)))
    if detail.unread:
        lines.append(("messages", f"{detail.unread} not taken in yet"))
    if detail.unreadable:
        lines.append(("unreadable", f"{detail.unreadable} entries"))
    for name, text in lines:
        say(f"{name:<11}{text}")
    for one in detail.operations:
        tried = f", failed {one.failures}x, last {one.failure}" if one.failures else ""
        say(f"{'open':<11}{one.kind} {one.name} ({one.operation}): {one.state}{tried}")
    document = run_document(detail)
    if document["failure"] is not None:
        say(f"{'failure':<11}{document['failure']['type']}: {document['failure']['message']}")
    elif status.status is Status.COMPLETED:
        say_lines(f"{'result':<11}{json_text(document['result'])}")
    say("")
    journal(detail.entries[-LAST_ENTRIES:], width=BODY_WIDTH)
    if not status.status.closed:
        say("")
        say(f"why it is there: {command('runs', 'explain', status.run_id)}")


def run_document(detail: RunDetail) -> dict[str, Any]:
    """Return one run as a JSON document."""
    last = entry_document(detail.entries[-1]) if detail.entries else {}
    ended: dict[str, Any] = {}
    if last.get("kind") in {"completed", "failed", "cancelled"}:
        ended = last["body"]
    status: dict[str, Any] = plain(detail.status)
    return {
        **status,
        "operations": plain(detail.operations),
        "pending_approvals": [one.approval_id for one in detail.approvals],
        "unread_messages": detail.unread,
        "unreadable_entries": detail.unreadable,
        "live_workers": detail.fitting,
        "result": ended.get("value"),
        "failure": ended.get("failure"),
        "last_entries": [entry_document(one) for one in detail.entries[-LAST_ENTRIES:]],
    }


def entry_document(one: JournalEntry) -> dict[str, Any]:
    """Return one journal entry as a JSON document."""
    document: dict[str, Any] = plain(one)
    body: dict[str, Any] = document.pop("entry")
    kind = body.pop("type")
    return {
        **document,
        "kind": kind,
        "operation": body.pop("operation", ""),
        "name": body.pop("name", ""),
        "body": body,
    }


def journal(entries: Sequence[JournalEntry], *, width: int | None = None) -> None:
    """Print entries as a table.

    Args:
        width: Bodies are cut after so many characters.
    """
    documents = [entry_document(one) for one in entries]
    print_table(
        ("SEQ", "TIME (UTC)", "KIND", "OPERATION", "NAME", "BODY"),
        [
            (
                str(one["seq"]),
                f"{entry.at:%Y-%m-%d %H:%M:%S.%f}"[:-3],
                one["kind"],
                one["operation"],
                one["name"],
                _cut(json_text(one["body"], indent=None), width),
            )
            for one, entry in zip(documents, entries, strict=True)
        ],
    )


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else f"{text[:width]} …"


def _waits_for(status: RunStatus) -> str:
    """Return a few words on what a run waits for, as its worker noted them when it left memory."""
    if status.status.closed:
        return status.reason
    if status.worker is not None:
        return ""
    waits = status.waits
    parts = [f"message {name}" for name in waits.get("signals", [])]
    parts += [f"approval {one}" for one in waits.get("approvals", {})]
    parts += [f"in doubt {one}" for one in waits.get("in_doubt", {})]
    parts += [f"retry {one} at {due}" for one, due in waits.get("retries", {}).items()]
    parts += [f"timer {one} at {due}" for one, due in waits.get("timers", {}).items()]
    if status.reason and "in doubt" not in status.reason:
        parts.insert(0, status.reason)
    return ", ".join(parts)
