"""`outlast runs show`: what it says of a run that undoes, that has undone, and whose worker is gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from outlast.cli import show
from outlast.cli.session import Session
from outlast.client import JournalEntry, RunDetail, RunStatus, Status
from outlast.client.explain import explain
from outlast.effects.standing import Standing
from outlast.journal.entry import (
    Attempted,
    EffectCompleted,
    EffectIntended,
    Entry,
    OperationId,
    SagaAborted,
    SagaEnded,
)
from outlast.journal.failure import capture

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
COMMAND = Session().command
SAGA = OperationId("r:1")


def intent(operation: str, **fields: Any) -> EffectIntended:
    """Return the intent of an effect without arguments."""
    none = Raw(b"{}")
    return EffectIntended(OperationId(operation), "book", "k", none, none, "0" * 64, **fields)


BEGUN: list[Entry] = [
    intent("r:2", saga=SAGA, compensation="cancel"),
    EffectCompleted(OperationId("r:2"), "book", Raw(b"1")),
    SagaAborted(SAGA, capture(LookupError("no room in Oslo"))),
]
UNDONE: list[Entry] = [
    *BEGUN,
    intent("r:1u:1", compensates=OperationId("r:2")),
    EffectCompleted(OperationId("r:1u:1"), "book", Raw(b"null")),
    SagaEnded(SAGA, "compensated"),
]


def detail(status: Status, *entries: Entry, worker: str | None = None, **fields: Any) -> RunDetail:
    """Return a run as it is seen from outside."""
    run = RunStatus("a", "flow", status, "", 1, len(entries), NOON, NOON, None, worker, {})
    rows = [JournalEntry(seq, seq, NOON, one) for seq, one in enumerate(entries)]
    plain = RunDetail(run, rows, 0, [], [], 0, NOON, ["w"], attended=True)
    return replace(plain, **fields)


def shown(of: RunDetail, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is printed of a run."""
    show.run(of, COMMAND)
    return capsys.readouterr().out


def test_a_run_that_undoes_says_what_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of explain, as long as the saga has not ended; and which effect each compensation undoes."""
    cancel = Standing("r:1u:1", "effect", "cancel", "intended", since=NOON, compensates="r:2")
    undoing = detail(Status.RUNNING, *BEGUN, worker="w", operations=[cancel])
    why = "what it did in its saga (r:1), because of LookupError: no room in Oslo"
    text = shown(undoing, capsys)
    assert f"undoes     {why}\n" in text
    assert "open       effect cancel (r:1u:1), which undoes r:2: intended\n" in text
    told = explain(undoing, COMMAND)
    assert f"it undoes {why}." in told.text
    assert "Effect cancel (r:1u:1), which undoes r:2, was intended at" in told.text
    assert [one.kind for one in told.waits] == ["undoing", "effect"]
    assert "undoes " not in shown(detail(Status.RUNNING, *UNDONE, worker="w"), capsys)


def test_what_was_undone_is_offered_as_explain_offers_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No retry, which would be refused: a fork, from before it."""
    over = detail(Status.COMPENSATED, *UNDONE)
    text = shown(over, capsys)
    fork = "outlast runs fork a --at 0 --effects new-key --id NEW-ID --reason TEXT"
    assert f"to do it after all, in a run with new keys: {fork}\n" in text
    assert "runs retry" not in text
    assert explain(over, COMMAND).commands == ["outlast runs show a", fork]


def test_a_worker_that_is_gone_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody moves the run until another one takes it up."""
    running = detail(Status.RUNNING, worker="w")
    assert "worker     w\n" in shown(running, capsys)
    assert "worker     w, which is gone\n" in shown(replace(running, attended=False), capsys)


def test_attempts_in_doubt_are_not_counted_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is told by itself; the number of those recorded as failed is another one."""
    attempts = (Attempted(1, NOON, "failed"), Attempted(2, NOON, "cut off"))
    pay = Standing("r:1", "effect", "pay", "in doubt", since=NOON, failures=1, failure="failed")
    doubt = replace(pay, doubt=3, attempts=attempts, key="k", arguments={})
    text = shown(detail(Status.BLOCKED, operations=[doubt]), capsys)
    assert "open       effect pay (r:1): in doubt\n" in text
    assert "failed 1x" not in text
    retrying = replace(pay, state="retrying")
    assert "failed 1x, last failed" in shown(detail(Status.WAITING, operations=[retrying]), capsys)
