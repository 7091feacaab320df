"""Runs and journals as tables and as JSON documents with stable field names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from outlast.cli.output import plain, print_table, say, say_lines
from outlast.cli.text import ago, at, json_text
from outlast.client import (
    Alarm,
    Doubt,
    Explanation,
    Generation,
    JournalEntry,
    RunDetail,
    RunStatus,
    Standing,
    Status,
)
from outlast.client.undoing import doing_again, undoing
from outlast.effects.standing import Clearing
from outlast.journal.entry import Forked

LAST_ENTRIES = 10
_UNTOLD = frozenset({"seed", "epoch", "policy_version"})
BODY_WIDTH = 160
"""How much of an entry `runs show` prints; `runs journal` prints all of it."""


def runs(found: Sequence[RunStatus]) -> None:
    """Print a table of runs."""
    if not found:
        say("no runs")
        return
    print_table(
        ("RUN", "WORKFLOW", "STATUS", "CHANGED", "WAITS FOR / REASON"),
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
        ("status", _status_text(detail)),
        ("started", ago(status.created_at, now)),
        ("changed", ago(status.changed_at, now)),
        ("worker", _worker_text(detail)),
        ("entries", f"{status.entries} in generation {status.generation}"),
        *([("durability", detail.durability)] if detail.durability else []),
        *(("before", _generation_text(one)) for one in detail.generations[1:]),
    ]
    if forked := forked_from(detail.entries):
        lines.append(("fork", forked))
    if detail.retry is not None:
        lines.append(("retry", f"{detail.retry.run_id}, {detail.retry.status}"))
    if not status.status.closed:
        lines += _open_lines(detail)
    if detail.unread:
        lines.append(("messages", f"{detail.unread} not taken in yet"))
    lines += [("put aside", _alarm_text(one)) for one in detail.alarms]
    if detail.unreadable:
        lines.append(("unreadable", f"{detail.unreadable} entries"))
    for name, text in lines:
        say(f"{name:<11}{text}")
    for one in detail.operations:
        # What is in doubt tells of each attempt by itself.
        is_tried = one.failures and one.doubt is None
        tried = f", failed {one.failures}x, last {one.failure}" if is_tried else ""
        undoes = f", which undoes {one.compensates}" if one.compensates else ""
        state = "has given up" if one.has_given_up else one.state
        say(f"{'open':<11}{one.kind} {one.name} ({one.operation}){undoes}: {state}{tried}")
        if one.doubt is not None or one.cleared:
            _print_known(one)
    _print_end(detail)
    say("")
    journal(detail.entries[-LAST_ENTRIES:], width=BODY_WIDTH, with_end=False)
    _print_commands(detail, command)


def doubts(
    found: Sequence[Doubt], command: Callable[..., str], *, with_commands: bool = True
) -> None:
    """Print effects in doubt, one after another."""
    if not found:
        say("no effect is in doubt")
        return
    for one in found:
        say(f"run {one.run_id} of {one.workflow}: effect {one.effect} ({one.operation}): {one.why}")
        _print_known(one)
    if with_commands:
        say("")
        resolve = command("runs", "resolve", "RUN", "--operation", "OPERATION", "--reason", "TEXT")
        outcomes = "--applied JSON | --not-applied | --failed TEXT"
        say(f"to say what became of one: {resolve} {outcomes}")
        if undone := [one for one in found if one.compensation]:
            takes = {
                one.effect: " with --result JSON" if one.needs_result else "" for one in undone
            }
            names = ", ".join(f"{name}{what}" for name, what in sorted(takes.items()))
            say(f"to have one undone ({names}): {resolve} --compensate")
        every = f"{command('runs', 'resolve')} --all --effect NAME --not-applied --reason TEXT"
        say(f"of all calls of an effect: {every}")


def _print_known(one: Doubt | Standing) -> None:
    """Print what is known of an effect in doubt, or that was."""
    say(f"{'':<11}called with {json_text(one.arguments, indent=None)} under the key {one.key}")
    for over in one.cleared:
        _print_attempts(over)
        why = f": {over.reason}" if over.reason else ""
        say(f"{'':<11}{over.by or 'somebody'} said at {at(over.at)} that it had not happened{why}")
    _print_attempts(one)


def _print_attempts(of: Doubt | Standing | Clearing) -> None:
    """Print how attempts ended, and what the probe said of them."""
    for attempt in of.attempts:
        began = f", begun at {at(attempt.began_at)}" if attempt.began_at else ""
        say(f"{'':<11}attempt {attempt.number}{began}: {attempt.ended or 'nobody knows its end'}")
    for probe in of.probes:
        say(f"{'':<11}the probe at {at(probe.at)}: {probe.said}")


def _print_commands(detail: RunDetail, command: Callable[..., str]) -> None:
    """Print what can be typed next."""
    status = detail.status
    if len(detail.generations) > 1:
        say("")
        former = command("runs", "journal", status.run_id, "--generation", "N")
        say(f"what was before: {former}")
    if not status.status.closed:
        say("")
        say(f"why it is there: {command('runs', 'explain', status.run_id)}")
    elif detail.retry is None and (again := doing_again(detail, command)) is not None:
        say("")
        say(f"to {again[1]}: {again[0]}")


def _print_end(detail: RunDetail) -> None:
    """Print the result, or the failure with where it was raised and what to do about it."""
    if detail.status.status is Status.COMPLETED:
        say_lines(f"{'result':<11}{json_text(run_document(detail)['result'])}")
    elif not detail.cancelled_by and (failure := run_document(detail)["failure"]):
        say(f"{'failure':<11}{failure['type']}: {failure['message']}")
        for note in failure.get("notes", ()):
            say(f"{'':<11}{note}")
        if detail.place:
            say(f"{'raised':<11}{detail.place}")
        if failure.get("details", {}).get("hint"):
            say(f"{'':<11}→ {failure['details']['hint']}")


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
        "mail": plain(detail.mail),
        "unreadable_entries": detail.unreadable,
        "live_workers": detail.fitting,
        "alarms": plain(detail.alarms),
        "raised": detail.place,
        "cancelled_by": detail.cancelled_by,
        "terminated_by": detail.terminated_by,
        "paused_by": detail.paused_by,
        "deadline": plain(detail.deadline),
        "durability": detail.durability,
        "forked_from": forked_from(detail.entries),
        "retry": plain(detail.retry),
        "generations": plain(detail.generations),
        "result": ended.get("value"),
        "failure": ended.get("failure"),
        "last_entries": [entry_document(one) for one in detail.entries[-LAST_ENTRIES:]],
    }


def forked_from(entries: Sequence[JournalEntry]) -> str:
    """Return of what a run is a fork, where, by whom, why, and what becomes of its effects; empty for other runs."""
    last = next((one.entry for one in reversed(entries) if isinstance(one.entry, Forked)), None)
    if last is None:
        return ""
    origin = last.origin.run_id
    of = (
        origin if last.origin.generation == 1 else f"{origin}, generation {last.origin.generation},"
    )
    where = f"with another outcome of {last.changed}" if last.changed else f"at {last.position}"
    by = f" by {last.by}" if last.by else ""
    effects = last.effects.replace("_", "-")
    retried = [one.as_run for one in last.children if one.as_run]
    children = f"; children retried with it: {', '.join(retried)}" if retried else ""
    child_of = f"; a child of {last.parent.run_id}" if last.parent is not None else ""
    return (
        f"of {of} {where}{by}: {last.reason}; effects, children and messages that it does not know: {effects}"
        f"{children}{child_of}"
    )


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


def explanation(told: Explanation) -> None:
    """Print why a run is where it is: sentences, then what can be typed, each on a line of its own."""
    say_lines(str(told))


def journal(
    entries: Sequence[JournalEntry], *, width: int | None = None, with_end: bool = True
) -> None:
    """Print entries as a table; fields that say nothing to a reader are left out.

    Args:
        width: Bodies are cut after so many characters.
        with_end: Print how the run failed again, in its last entry.
    """
    documents = [entry_document(one) for one in entries]
    for one in documents:
        if not with_end and one["kind"] in {"failed", "cancelled", "completed"}:
            one["body"] = {}
    print_table(
        ("SEQ", "TIME", "KIND", "OPERATION", "NAME", "BODY"),
        [
            (
                str(one["seq"]),
                at(entry.at),
                one["kind"],
                one["operation"],
                one["name"],
                _cut(_body_text(one["body"]), width),
            )
            for one, entry in zip(documents, entries, strict=True)
        ],
    )


def _body_text(body: dict[str, Any]) -> str:
    """Return what a reader wants of an entry; a value is one even when it is empty or zero."""
    told = {
        name: value
        for name, value in body.items()
        if (name == "value" and not body.get("failure"))
        or (name not in _UNTOLD and (value is False or value))
    }
    return json_text(told, indent=None) if told else ""


def _status_text(detail: RunDetail) -> str:
    status = detail.status
    if status.status is Status.CANCELLED and detail.cancelled_by:
        return f"{status.status} {detail.cancelled_by}"
    # A failure has a line of its own.
    is_told = status.status in {Status.FAILED, Status.CANCELLED} and detail.entries
    by = f" by {detail.terminated_by}" if detail.terminated_by else ""
    return f"{status.status}{by}" + (f": {status.reason}" if status.reason and not is_told else "")


def _open_lines(detail: RunDetail) -> Iterator[tuple[str, str]]:
    """Yield what is to be told of a run that has not ended."""
    status, now = detail.status, detail.now
    yield "waits for", _waits_for(status, alarms=False) or "see explain"
    if (undone := undoing(detail)) is not None:
        yield "undoes", f"what it did in its saga ({undone.saga}), because of {undone.why}"
    if detail.paused_by:
        yield "paused", detail.paused_by
    if detail.deadline is not None:
        yield "done by", ago(detail.deadline, now)
    if status.wake_at is not None:
        yield "goes on", ago(status.wake_at, now)


def _worker_text(detail: RunDetail) -> str:
    worker = detail.status.worker
    if worker is None:
        return "none has it in memory"
    return worker if detail.attended else f"{worker}, which is gone"


def _generation_text(one: Generation) -> str:
    return f"generation {one.generation}: {one.entries} {'entry' if one.entries == 1 else 'entries'}, {one.ended} at {at(one.at)}"


def _alarm_text(one: Alarm) -> str:
    by = f" from {one.by}" if one.by else ""
    why = f": {one.why}" if one.why else ""
    return f"{one.what} {one.about}{by} at {at(one.at)}{why}"


def _due(time: Any) -> str:
    return at(msgspec.convert(time, datetime, strict=False))


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else f"{text[:width]} …"


def _waits_for(status: RunStatus, *, alarms: bool = True) -> str:
    """Return a few words on what a run waits for, as its worker noted them when it left memory."""
    if status.status.closed:
        return status.reason
    if status.worker is not None:
        return ""
    waits = status.waits
    parts = [f"message {name}" for name in waits.get("signals", [])]
    parts += [f"update {name}" for name in waits.get("updates", [])]
    parts += [f"approval {one}" for one in waits.get("approvals", {})]
    parts += [f"in doubt {one}" for one in waits.get("in_doubt", {})]
    parts += [f"step {one} in queue {queue}" for one, queue in waits.get("tasks", {}).items()]
    parts += [f"retry {one} at {_due(due)}" for one, due in waits.get("retries", {}).items()]
    parts += [
        f"completion {one}" + (f" until {_due(due)}" if due else "")
        for one, due in waits.get("completions", {}).items()
    ]
    parts += [f"run {run_id}" for run_id in waits.get("runs", {}).values()]
    parts += [f"timer {one} at {_due(due)}" for one, due in waits.get("timers", {}).items()]
    if waits.get("deadline"):
        parts.append(f"to be done by {_due(waits['deadline'])}")
    if alarms:
        parts += [f"put aside: {one}" for one in waits.get("alarms", [])]
    if status.reason and "in doubt" not in status.reason:
        parts.insert(0, status.reason)
    return ", ".join(parts)
