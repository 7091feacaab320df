"""Laws of a request: in two stores, of any terms, exactly what may be said counts, and exactly what was granted is spent."""

import asyncio
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from searching import machine
from voting import RUNS, WORKERS, VotingRules, asked_by, runs

from outlast.store.change import ApprovalExpire, ApprovalWithdraw, WorkerRow
from outlast.store.memory import MemoryStore
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import ManualClock
from outlast.testing.conformance.bench import asking, following, starting


class Requests(VotingRules, RuleBasedStateMachine):
    """Three runs that are owned and ask, in a memory store and a SQLite file."""

    @initialize(asks=st.tuples(asked_by, asked_by, asked_by))
    def open(self, asks):
        """Open both on one clock, and ask."""
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.mkdtemp()
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.sqlite = self.loop.run_until_complete(
            open_sqlite(Path(self.folder) / "s.db", clock=self.clock)
        )
        worker = WorkerRow(WORKERS[0], "host", 1, "b", ("fix",), timedelta(days=9))
        self.both(lambda store: store.register(worker))
        for run, fields in zip(RUNS, asks, strict=True):
            self.commit(starting(run.run_id, tenant=run.tenant, worker=WORKERS[0]))
            self.ask(run, fields)

    def both(self, ask):
        """Ask both stores the same, and return the one answer."""
        first = self.loop.run_until_complete(ask(self.memory))
        second = self.loop.run_until_complete(ask(self.sqlite))
        assert first == second
        return first

    def commit(self, change):
        """Commit to both."""
        (verdict,) = self.both(lambda store: store.commit([change]))
        return verdict

    def ask(self, run, fields):
        """Put the request `a1`."""
        head = self.both(lambda store: store.head(run))
        self.commit(following(head, approvals=(asking(self.clock, **fields),)))

    @rule(run=runs, act=st.sampled_from([ApprovalExpire, ApprovalWithdraw]))
    def close(self, run, act):
        """Close the request, if it may be closed so: what was decided stays decided."""
        before = self.request_of(run)
        head = self.both(lambda store: store.head(run))
        self.commit(following(head, approvals=(act("a1"),)))
        after = self.request_of(run)
        assert after == before or before.state == "pending"
        assert after == before or after.state in ("expired", "withdrawn")

    @rule(seconds=st.sampled_from([1, 5, 1800, 3600]))
    def wait(self, seconds):
        """Let time pass."""
        self.clock.advance(timedelta(seconds=seconds))

    @invariant()
    def all_is_kept(self):
        """Both hold the same."""
        for run in RUNS if hasattr(self, "loop") else ():
            self.check_requests(run, self.both(lambda store, run=run: store.load(run)))

    def teardown(self):
        """Close both."""
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.sqlite.abandon())
            self.loop.close()
            shutil.rmtree(self.folder)


Requests.TestCase.settings = machine(0.3, steps=0.5)
TestRequests = Requests.TestCase
