"""The memory store: what one change raises is its own."""

import asyncio

from outlast.store.change import Applied, Refused
from outlast.store.judge import Judge
from outlast.store.memory import MemoryStore
from outlast.testing.conformance import ManualClock
from outlast.testing.conformance.bench import starting


def test_error_of_one_change_takes_no_other_down(monkeypatch):
    """Those before and behind it are written and told; it is refused alone, as in a file."""
    store = MemoryStore(ManualClock())
    start = Judge._start

    def failing(self, change, run):
        if change.run.run_id == "bad":
            raise LookupError
        return start(self, change, run)

    monkeypatch.setattr(Judge, "_start", failing)
    verdicts = asyncio.run(store.commit([starting("a"), starting("bad"), starting("c")]))
    assert [type(verdict) for verdict in verdicts] == [Applied, Refused, Applied]
    assert verdicts[1] == Refused("corrupt", "LookupError")
    found = asyncio.run(store.heads("default"))
    assert {head.run.run_id for head in found} == {"a", "c"}
