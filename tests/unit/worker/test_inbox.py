"""Messages that mean nothing: each becomes an alarm, and none stops the run that reads it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from outlast.journal.entry import AlarmRaised
from outlast.replay.machine import Machine
from outlast.store.change import Message, MessageKind, StampedMessage
from outlast.worker.inbox import proposal_of
from outlast.worker.proposal import Rank

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("kind", list(MessageKind))
@pytest.mark.parametrize("body", [DEEP, b"{", b"\xff", b"", b"1"], ids=range(5))
def test_whatever_cannot_be_read_is_an_alarm(kind: MessageKind, body: bytes) -> None:
    """Nested too deep, cut off, no text, empty, of another shape: kept, named, and consumed."""
    message = Message("m", kind, "go", "someone", body)
    stamped = StampedMessage(message, datetime(2026, 1, 1, tzinfo=UTC), 1)
    proposal = proposal_of(stamped, Machine(None, tenant="default", run_id="r"), 1)
    if kind in {MessageKind.SIGNAL, MessageKind.UPDATE} and body == b"1":
        return
    assert isinstance(proposal.entry, AlarmRaised)
    assert proposal.entry.what == "unreadable_message"
    assert (proposal.rank, proposal.consumed) == (Rank.ARRIVAL, "m")
    assert msgspec.json.decode(proposal.entry.detail)["message"] == "m"
