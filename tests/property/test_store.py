"""Laws of a store: a file and a dict of plain Python say the same after any sequence of verbs, and nothing is ever lost."""

import asyncio
import shutil
import tempfile
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from searching import machine

from outlast.store.change import (
    Applied,
    ApprovalExpire,
    ApprovalWithdraw,
    Decide,
    FinishTask,
    GrantSpend,
    HeadUpdate,
    Message,
    MessageKind,
    OperationDrop,
    OperationPut,
    OutboxItem,
    PutMessage,
    RunChange,
    RunKey,
    StartRun,
    Status,
    TaskDrop,
    TaskPut,
    Terminate,
    WorkerId,
    WorkerRow,
    digest_of,
)
from outlast.store.memory import MemoryStore
from outlast.store.sqlite.store import open_sqlite
from outlast.store.task import TaskKey
from outlast.testing.conformance import ManualClock
from outlast.testing.conformance.bench import asking, letter, row, starting

RUNS = [RunKey("default", "a"), RunKey("default", "b"), RunKey("tenant", "a")]
WORKERS = [WorkerId("w1"), WorkerId("w2")]
MESSAGES = ["m1", "m2", "m3"]
STATUSES = [
    Status.READY,
    Status.RUNNING,
    Status.WAITING,
    Status.BLOCKED,
    Status.PAUSED,
    Status.COMPLETED,
]

runs = st.sampled_from(RUNS)
workers = st.sampled_from(WORKERS)
messages = st.sampled_from(MESSAGES)
seconds = st.sampled_from([1, 5, 14, 15, 3600])
updates = st.builds(
    lambda status, release, ignore, seen, unfit, wake: (status, release, ignore, seen, unfit, wake),
    st.sampled_from(STATUSES),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 3),
    st.sampled_from(["", "b1", "b2"]),
    st.none() | st.integers(-3, 9),
)


tasks = st.lists(
    st.builds(
        lambda number, attempt, queue, due: TaskPut(
            f"r:{number}", attempt, queue, "render", b"{}", due
        ),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from(["gpu", "cpu"]),
        st.none(),
    )
    | st.builds(
        lambda number, attempt, taken: TaskDrop(f"r:{number}", attempt, taken),
        st.integers(1, 2),
        st.none() | st.integers(1, 2),
        st.none() | st.integers(0, 2),
    ),
    max_size=2,
)


class TwoStores(RuleBasedStateMachine):
    """Every verb goes to a memory store and to a SQLite file; a dict counts what was accepted."""

    @initialize()
    def open(self):
        """Open both on one clock."""
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.mkdtemp()
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.sqlite = self.loop.run_until_complete(
            open_sqlite(Path(self.folder) / "s.db", clock=self.clock)
        )
        self.accepted = defaultdict(set)
        self.consumed = defaultdict(list)
        self.epochs = dict.fromkeys(RUNS, 0)
        self.rows = {}
        self.last = None
        self.working = {worker: set() for worker in WORKERS}
        for number, worker in enumerate(WORKERS, 1):
            self.join(worker, f"b{number}")

    def both(self, ask):
        """Ask both stores the same, and return the one answer."""
        first = self.loop.run_until_complete(ask(self.memory))
        second = self.loop.run_until_complete(ask(self.sqlite))
        assert first == second
        return first

    def commit(self, change):
        """Commit to both, and count what was accepted."""
        before = self.both(lambda store: store.head(change.run))
        (verdict,) = self.both(lambda store: store.commit([change]))
        if isinstance(verdict, Applied):
            self.count(change, before)
        return verdict

    def count(self, change, before):
        """Keep in the dict what an applied change means."""
        match change:
            case StartRun():
                self.rows[change.run, change.generation] = list(change.entries)
            case RunChange() if before.version == change.version:
                self.rows[change.run, before.generation] += change.entries
                self.consumed[change.run, before.generation] += change.consumed
            case PutMessage() | Decide():
                generation = 1 if before is None else before.generation
                self.accepted[change.run, generation].add(change.message.message_id)
            case FinishTask(message=Message(message_id=message_id)):
                self.accepted[change.run, before.generation].add(message_id)

    def join(self, worker, build):
        """Register a worker with both."""
        registration = WorkerRow(worker, "host", 1, build, ("fix",), timedelta(seconds=15))
        self.both(lambda store: store.register(registration))

    @rule(run=runs, generation=st.integers(1, 3), worker=st.none() | workers)
    def start(self, run, generation, worker):
        """Start a run or a generation."""
        change = starting(run.run_id, tenant=run.tenant, generation=generation, worker=worker)
        self.commit(change)

    @rule(run=runs, message=messages, early=st.booleans())
    def send(self, run, message, early):
        """Send a message, perhaps before the run, perhaps again."""
        self.commit(PutMessage(run, letter(message), early=early))

    @rule(run=runs)
    def terminate(self, run):
        """Terminate a run."""
        self.commit(Terminate(run, "root", "why"))

    @rule(
        run=runs,
        entries=st.integers(0, 2),
        update=st.none() | updates,
        consumed=st.lists(messages, max_size=2),
        stale=st.sampled_from([0, 0, 0, 1]),
        extra=st.integers(0, 7),
        acts=tasks,
        due=st.none() | st.integers(-3, 9),
    )
    def advance_run(self, run, entries, update, consumed, stale, extra, acts, due):
        """Write as the owner, sometimes with something that does not hold."""
        head = self.both(lambda store: store.head(run))
        if head is None:
            return
        fields = {}
        if update is not None:
            status, release, ignore, seen, unfit, wake = update
            wake_at = None if wake is None else self.clock.now() + timedelta(seconds=wake)
            fields["head"] = HeadUpdate(status, "r", wake_at, release, ignore, seen, unfit, b"n")
        if extra == 1:
            fields["operations"] = (
                OperationPut("r:1", "step", "n", 1, self.clock.now()),
                OperationDrop("r:2"),
            )
        if extra == 2:
            fields["approvals"] = (asking(self.clock),)
        if extra == 3:
            fields["approvals"] = (ApprovalExpire("a1"),)
        if extra == 4:
            fields["approvals"] = (ApprovalWithdraw("a1"),)
        if extra == 5:
            fields["spends"] = (GrantSpend("a1", 0, f"r:{entries}", "h1"),)
        if extra == 6:
            fields["outbox"] = (OutboxItem(head.next_seq, RUNS[0], letter()),)
        change = RunChange(
            run=run,
            worker=head.owner or WORKERS[0],
            epoch=head.epoch,
            version=head.version - stale,
            entries=tuple(row(head.next_seq + place) for place in range(entries)),
            consumed=tuple(consumed),
            tasks=tuple(self.timed(act, due) for act in acts),
            **fields,
        )
        self.last = replace(change, digest=digest_of(change))
        self.commit(self.last)

    def timed(self, act, due):
        """Give a task its due time."""
        if due is None or isinstance(act, TaskDrop):
            return act
        return replace(act, due_at=self.clock.now() + timedelta(seconds=due))

    @precondition(lambda self: self.last is not None)
    @rule()
    def send_again(self):
        """Send the last owned change again, as after a lost connection: it is never written twice."""
        change = self.last
        before = self.both(lambda store: store.journal(change.run))
        head = self.both(lambda store: store.head(change.run))
        (verdict,) = self.both(lambda store: store.commit([change]))
        if isinstance(verdict, Applied) and head.version == change.version:
            self.count(change, head)
        elif isinstance(verdict, Applied):
            assert self.both(lambda store: store.journal(change.run)) == before

    @rule(
        run=runs,
        seen=st.sampled_from(["s", "s", "t"]),
        number=st.integers(0, 1),
        approved=st.booleans(),
    )
    def decide(self, run, seen, number, approved):
        """Decide the request."""
        message = Message(f"d{number}", MessageKind.DECISION, "a1", "bob", b"{}")
        self.commit(Decide(run, "a1", seen, approved, "bob", message))

    @rule(worker=workers, limit=st.integers(0, 3))
    def claim(self, worker, limit):
        """Claim runs: each comes at a higher epoch."""
        claim = self.both(lambda store: store.claim(worker, frozenset({"fix"}), limit))
        assert len(claim.runs) <= limit
        for taken in claim.runs:
            assert taken.head.owner == worker
            assert taken.head.epoch > self.epochs[taken.head.run]

    @rule(worker=workers, limit=st.integers(0, 2), queues=st.sampled_from(["gpu", "gpu cpu"]))
    def claim_tasks(self, worker, limit, queues):
        """Take tasks: what a worker works on is what both stores say is its own."""
        known, served = self.working[worker], frozenset(queues.split())
        claim = self.both(
            lambda store: store.claim_tasks(
                worker, served, frozenset({"render"}), limit=limit, known=frozenset(known)
            )
        )
        known -= set(claim.lost)
        for task in claim.tasks:
            assert task.row.worker == worker
            assert task.row.key not in known
            known.add(task.row.key)

    @rule(
        worker=workers,
        run=runs,
        number=st.integers(1, 2),
        attempt=st.integers(1, 2),
        generation=st.integers(1, 3),
        gives_back=st.booleans(),
    )
    def finish_task(self, worker, run, number, attempt, generation, gives_back):
        """Finish a task, mostly one that the worker does not have: a message is put for one that is with it, and goes with the task."""
        key = TaskKey(run, generation, f"r:{number}", attempt)
        before = {row.key: row.worker for row in self.both(lambda store: store.tasks(run))}
        message = Message(f"t{number}/{attempt}", MessageKind.OUTCOME, "r:1", worker, b"{}")
        change = FinishTask(
            run, generation, key.operation, attempt, worker, None if gives_back else message
        )
        known = self.both(lambda store: store.mail(run))
        verdict = self.commit(change)
        if isinstance(verdict, Applied) and self.both(lambda store: store.mail(run)) != known:
            assert before[key] == worker

    @rule(worker=workers)
    def renew(self, worker):
        """Renew a lease."""
        assert self.memory.renew(worker) == self.sqlite.renew(worker)

    @rule(worker=workers, build=st.sampled_from(["b1", "b2"]))
    def rejoin(self, worker, build):
        """Register again."""
        self.join(worker, build)

    @rule(worker=workers)
    def retire(self, worker):
        """Retire a worker."""
        self.both(lambda store: store.retire(worker))

    @rule(step=seconds)
    def wait(self, step):
        """Let time pass."""
        self.clock.advance(timedelta(seconds=step))

    @rule(step=seconds)
    def set_back(self, step):
        """Set the wall clock back."""
        self.clock.set_wall(self.clock.now() - timedelta(seconds=step))

    @invariant()
    def all_is_kept(self):
        """Both hold the same, and exactly what was accepted."""
        if not hasattr(self, "loop"):
            return
        self.both(lambda store: store.workers())
        self.both(lambda store: store.outbox(100))
        for worker in WORKERS:
            owned = self.both(lambda store, worker=worker: store.owned(worker))
            assert [head.run for head in owned] == [
                run for run in RUNS if self.owner(run) == worker
            ]
        for status in STATUSES:
            self.both(
                lambda store, status=status: store.heads(
                    "default", statuses=frozenset({status, Status.RUNNING}), limit=1
                )
            )
        for run in RUNS:
            image = self.both(lambda store, run=run: store.load(run))
            for approvals_pending in (True, False):
                self.both(
                    lambda store, run=run, pending=approvals_pending: store.approvals(
                        run.tenant, pending=pending
                    )
                )
            mail = self.both(lambda store, run=run: store.mail(run))
            assert mail == (() if image is None else image.messages)
            assert self.both(lambda store, run=run: store.tasks(run)) == (
                () if image is None else image.tasks
            )
            if image is None:
                continue
            assert image.head.epoch >= self.epochs[run]
            self.epochs[run] = image.head.epoch
            self.check_image(run, image)

    def owner(self, run):
        """Return who owns a run."""
        head = self.both(lambda store: store.head(run))
        return None if head is None else head.owner

    def check_image(self, run, image):
        """Compare one run with the dict."""
        generation = image.head.generation
        assert [stamped.row for stamped in image.rows] == self.rows[run, generation]
        assert image.head.next_seq == len(image.rows)
        times = [stamped.at for stamped in image.rows]
        assert times == sorted(times)
        consumed = self.consumed[run, generation]
        assert len(consumed) == len(set(consumed))
        unread = {stamped.message.message_id for stamped in image.messages}
        assert image.head.mail == bool(unread)
        assert not unread & set(consumed)
        assert unread | set(consumed) == self.accepted[run, generation]
        if image.head.status.closed:
            assert (image.head.owner, image.head.wake_at, image.operations) == (None, None, ())
            assert image.tasks == ()
        assert all(one.key.generation == generation for one in image.tasks)

    def teardown(self):
        """Close both."""
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.sqlite.abandon())
            self.loop.close()
            shutil.rmtree(self.folder)


TwoStores.TestCase.settings = machine(0.4, steps=0.6)
TestTwoStores = TwoStores.TestCase
