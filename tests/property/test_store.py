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
from voting import RUNS, WORKERS, VotingRules, asked_by, runs

from outlast.store.change import (
    CHILD_ABANDON,
    CHILD_TERMINATE,
    WATCHED,
    Answer,
    Applied,
    ApprovalExpire,
    ApprovalWithdraw,
    BeatOperation,
    BeatTask,
    ClearOutbox,
    Decide,
    DropWatch,
    FinishTask,
    GrantSpend,
    HeadUpdate,
    Message,
    MessageKind,
    OperationDrop,
    OperationPut,
    OutboxItem,
    OutboxKind,
    PutMessage,
    PutWatch,
    Refused,
    RunChange,
    StartRun,
    Status,
    TaskDrop,
    TaskPut,
    Terminate,
    Watch,
    WorkerRow,
    digest_of,
)
from outlast.store.memory import MemoryStore
from outlast.store.notice import EndNotice, TakeNotices
from outlast.store.protocol import RELAY_AFTER
from outlast.store.request import (
    BeginRequest,
    EndRequest,
    HoldRequest,
    PurgeRequests,
    RequestState,
    ResolveRequest,
)
from outlast.store.sqlite.store import open_sqlite
from outlast.store.task import TaskKey
from outlast.testing.conformance import ManualClock
from outlast.testing.conformance.bench import asking, letter, row, starting

KINDS = ["step_completed", "published"]
MESSAGES = ["m1", "m2", "m3"]
UPDATES = ["u1", "u2"]
REASONS = ["r", "history"]
STATUSES = [
    Status.READY,
    Status.RUNNING,
    Status.WAITING,
    Status.BLOCKED,
    Status.PAUSED,
    Status.COMPLETED,
]

workers = st.sampled_from(WORKERS)
messages = st.sampled_from(MESSAGES)
kinds = st.sampled_from(
    [MessageKind.SIGNAL, MessageKind.RESUME, MessageKind.CANCEL, MessageKind.ACCEPT]
)
asked = st.sampled_from(UPDATES)
origins = st.sampled_from(["", "", "p~1~r:1"])
watches = st.builds(Watch, runs, st.integers(1, 2), st.sampled_from(["r:1", "r:2"]))
seconds = st.sampled_from([1, 5, 14, 15, 3600])
updates = st.builds(
    lambda *parts: parts,
    st.sampled_from(STATUSES),
    st.sampled_from(REASONS),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 3),
    st.sampled_from(["", "b1", "b2"]),
    st.none() | st.integers(-3, 9),
    st.booleans(),
)


def asking_for(message_id):
    """Return an update."""
    return Message(message_id, MessageKind.UPDATE, "go", "alice", b"1")


tasks = st.lists(
    st.builds(
        lambda number, attempt, queue, due, progress: TaskPut(
            f"r:{number}", attempt, queue, "render", b"{}", due, progress
        ),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from(["gpu", "cpu"]),
        st.none(),
        st.sampled_from([b"", b"", b"3"]),
    )
    | st.builds(
        lambda number, attempt, taken: TaskDrop(f"r:{number}", attempt, taken),
        st.integers(1, 2),
        st.none() | st.integers(1, 2),
        st.none() | st.integers(0, 2),
    ),
    max_size=2,
)


class TwoStores(VotingRules, RuleBasedStateMachine):
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
        self.answers = {}
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
                names = {message.message_id for message in change.messages}
                self.accepted[change.run, change.generation] |= names
            case RunChange() if before.version == change.version:
                self.rows[change.run, before.generation] += change.entries
                for answer in change.answers:
                    assert (change.run, before.incarnation, answer.message_id) not in self.answers
                    self.answers[change.run, before.incarnation, answer.message_id] = answer.body
                self.consumed[change.run, before.incarnation] += change.consumed
                if change.next:
                    self.rows[change.run, before.generation + 1] = list(change.next)
            case PutMessage() | Decide():
                incarnation = 1 if before is None else before.incarnation
                self.accepted[change.run, incarnation].add(change.message.message_id)
            case ClearOutbox() if before and not before.status.closed:
                if change.generation == before.generation:
                    told = {one.message_id for one in change.answers}
                    self.accepted[change.run, before.incarnation] |= told
            case FinishTask(message=Message(message_id=message_id)):
                self.accepted[change.run, before.incarnation].add(message_id)

    def join(self, worker, build):
        """Register a worker with both."""
        registration = WorkerRow(worker, "host", 1, build, ("fix",), timedelta(seconds=15))
        self.both(lambda store: store.register(registration))

    @rule(
        run=runs,
        generation=st.integers(1, 4),
        worker=st.none() | workers,
        brings=st.lists(
            st.sampled_from([letter("m1"), letter("m2"), asking_for("u1")]), max_size=2
        ),
        origin=origins,
        watch=st.none() | watches,
    )
    def start(self, run, generation, worker, brings, origin, watch):
        """Start a run or a generation, perhaps with messages, perhaps twice the same, perhaps as a child that is watched."""
        fields = {"tenant": run.tenant, "generation": generation, "worker": worker}
        brought = tuple(brings)
        self.commit(starting(run.run_id, messages=brought, origin=origin, watch=watch, **fields))

    @rule(run=runs, message=asked)
    def ask(self, run, message):
        """Send an update."""
        self.commit(PutMessage(run, asking_for(message)))

    @rule(
        run=runs,
        message=messages,
        kind=kinds,
        early=st.booleans(),
        generation=st.integers(0, 2),
        origin=origins,
    )
    def send(self, run, message, kind, early, generation, origin):
        """Send a message of some kind, perhaps before the run, perhaps again, perhaps to another use of its id."""
        fields = {"early": early, "generation": generation, "origin": origin}
        self.commit(PutMessage(run, replace(letter(message), kind=kind), **fields))

    @rule(run=runs, origin=origins)
    def terminate(self, run, origin):
        """Terminate a run."""
        self.commit(Terminate(run, "root", "why", origin))

    @rule(run=runs, watch=watches, drop=st.booleans())
    def watch(self, run, watch, drop):
        """Watch a run, or no longer."""
        self.commit((DropWatch if drop else PutWatch)(run, watch))

    @rule(run=runs, numbers=st.sets(st.integers(1, 6)), generation=st.integers(1, 2), told=messages)
    def clear(self, run, numbers, generation, told):
        """Clear items of an outbox, and tell the run."""
        self.commit(ClearOutbox(run, tuple(sorted(numbers)), (letter(told),), generation))

    @rule(
        run=runs,
        entries=st.integers(0, 2),
        update=st.none() | updates,
        consumed=st.lists(messages | asked, max_size=2),
        answered=st.just([]) | st.lists(asked, max_size=2),
        stale=st.sampled_from([0, 0, 0, 1]),
        extra=st.integers(0, 11),
        acts=tasks,
        due=st.none() | st.integers(-3, 9),
        hold=st.sampled_from([None, None, True, False]),
        seen=st.just([]) | st.lists(st.integers(-1, 6), max_size=3).map(sorted),
        asks=asked_by,
    )
    def advance_run(
        self, run, entries, update, consumed, answered, stale, extra, acts, due, hold, seen, asks
    ):
        """Write as the owner, sometimes with something that does not hold."""
        head = self.both(lambda store: store.head(run))
        if head is None:
            return
        fields = {}
        if update is not None:
            status, reason, release, ignore, mail_seen, unfit, wake, ending = update
            wake_at = None if wake is None else self.clock.now() + timedelta(seconds=wake)
            fields["head"] = HeadUpdate(
                status, reason, wake_at, release, ignore, mail_seen, unfit, b"n", ending
            )
        fields["times"] = tuple(head.changed_at + timedelta(seconds=one) for one in seen)
        if extra == 1:
            fields["operations"] = (
                OperationPut("r:1", "step", "n", 1, self.clock.now(), b"d", b"p", awaits=True),
                OperationDrop("r:2"),
            )
        if extra == 2:
            fields["approvals"] = (asking(self.clock, **asks),)
        if extra == 3:
            fields["approvals"] = (ApprovalExpire("a1"),)
        if extra == 4:
            fields["approvals"] = (ApprovalWithdraw("a1"),)
        if extra == 5:
            fields["spends"] = (GrantSpend("a1", 0, f"r:{entries}", "h1"),)
        if extra == 6:
            fields["outbox"] = (OutboxItem(RUNS[0], OutboxKind.SIGNAL, origin="o"),) * (entries + 1)
        if extra in (7, 8, 9):
            kind = (CHILD_TERMINATE, CHILD_ABANDON, WATCHED)[extra - 7]
            fields["operations"] = (OperationPut(f"r:{extra}", kind, "b"),)
        if extra in (10, 11):
            fields["next"] = tuple(row(place) for place in range(entries + 1))
            if extra == 11:
                fields["head"] = HeadUpdate(Status.READY, release=True)
        change = RunChange(
            run=run,
            worker=head.owner or WORKERS[0],
            epoch=head.epoch,
            version=head.version - stale,
            entries=tuple(
                row(head.next_seq + place, kind=KINDS[place % 2]) for place in range(entries)
            ),
            consumed=tuple(consumed),
            answers=tuple(Answer(one, b"%d" % head.version) for one in answered),
            tasks=tuple(self.timed(act, due) for act in acts),
            hold=hold,
            **fields,
        )
        self.last = replace(change, digest=digest_of(change))
        self.commit(self.last)

    @rule(
        worker=workers,
        run=runs,
        number=st.integers(1, 2),
        attempt=st.integers(1, 2),
        generation=st.sampled_from([1, 1, 1, 2]),
        progress=st.sampled_from([b"1", b"2"]),
    )
    def beat(self, worker, run, number, attempt, generation, progress):
        """Say something of an attempt, mostly one that the worker does not have."""
        self.commit(BeatTask(run, generation, f"r:{number}", attempt, worker, progress))

    @rule(
        run=runs,
        awaits=st.sampled_from([True, True, False, None]),
        missed=st.sampled_from([0, 0, 1]),
        silence=st.none() | st.just(timedelta(seconds=1)),
    )
    def judge(self, run, awaits, missed, silence):
        """Hand a step out, or end what was, as the owner: what is decided without a beat does not hold."""
        head = self.both(lambda store: store.head(run))
        if head is None:
            return
        row, now = self.both(lambda store: store.operation(run, "r:1")), self.clock.now()
        known = missed + (row.beats if row else 0)
        act = OperationDrop("r:1", known)
        if awaits is not None:
            act = OperationPut("r:1", "step", "n", 1, awaits=awaits, beats=known)
            act = replace(act, heard_at=now, silence=silence)
        change = RunChange(
            run, head.owner or WORKERS[0], head.epoch, head.version, operations=(act,)
        )
        self.last = replace(change, digest=digest_of(change))
        if isinstance(self.commit(self.last), Applied):
            assert not (missed and row and row.awaits)
            after = self.both(lambda store: store.operation(run, "r:1"))
            assert after == (act if awaits is not None else None)

    @rule(
        run=runs,
        number=st.sampled_from([1, 1, 2]),
        generation=st.sampled_from([1, 1, 1, 2]),
        progress=st.sampled_from([b"", b"1", b"2"]),
    )
    def beat_outside(self, run, number, generation, progress):
        """Say from outside that a step is alive: that changes its row, if it was handed out, and nothing else."""
        operation = f"r:{number}"
        before = self.both(lambda store: store.load(run))
        row = self.both(lambda store: store.operation(run, operation))
        verdict = self.commit(BeatOperation(run, generation, operation, progress))
        now = self.both(lambda store: store.load(run))
        if isinstance(verdict, Refused):
            assert now == before
            return
        assert row.awaits
        assert before.head.generation == generation
        said = progress or row.progress
        after = replace(row, beats=row.beats + 1, heard_at=verdict.at, progress=said)
        rows = tuple(after if one == row else one for one in before.operations)
        assert now == replace(before, operations=rows)

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
        listed = self.both(lambda store: store.generations(change.run))
        head = self.both(lambda store: store.head(change.run))
        (verdict,) = self.both(lambda store: store.commit([change]))
        if isinstance(verdict, Applied) and head.version == change.version:
            self.count(change, head)
        elif isinstance(verdict, Applied):
            assert self.both(lambda store: store.journal(change.run)) == before
            assert self.both(lambda store: store.generations(change.run)) == listed

    @rule(worker=workers, limit=st.integers(0, 3))
    def claim(self, worker, limit):
        """Claim runs: each comes at a higher epoch."""
        claim = self.both(lambda store: store.claim(worker, frozenset({"fix"}), limit))
        assert len(claim.runs) <= limit
        assert claim.held in {0, len(self.both(lambda store: store.owned(worker)))}
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

    @rule(
        tenant=st.sampled_from(["default", "tenant"]),
        key=st.sampled_from(["k1", "k2"]),
        token=st.sampled_from(["t1", "t2"]),
        act=st.sampled_from([BeginRequest, BeginRequest, HoldRequest, EndRequest, ResolveRequest]),
        happened=st.booleans(),
        length=seconds,
        text=st.sampled_from(["a", "b"]),
    )
    def request(self, tenant, key, token, act, happened, length, text):
        """Begin, hold, end or resolve a request, mostly one that is somebody else's."""
        time, place = timedelta(seconds=length), (tenant, key)
        change = {
            BeginRequest: BeginRequest(*place, text, token, time, 2 * time, text.encode()),
            HoldRequest: HoldRequest(*place, token, time),
            EndRequest: EndRequest(*place, token, happened, time, text.encode()),
            ResolveRequest: ResolveRequest(*place, token, happened, text, "why", text.encode()),
        }[act]
        (first,) = self.both(lambda store: store.commit([change]))
        standing = self.both(lambda store: store.request(*place))
        (again,) = self.both(lambda store: store.commit([change]))
        assert type(again) is type(first)
        if act is not HoldRequest:
            assert self.both(lambda store: store.request(*place)) == standing

    @rule(tenant=st.sampled_from(["default", "tenant"]), limit=st.integers(-1, 2))
    def purge(self, tenant, limit):
        """Remove expired requests."""
        self.both(lambda store: store.commit([PurgeRequests(tenant, limit)]))

    @rule(
        tenant=st.sampled_from(["", "default", "tenant"]),
        limit=st.integers(-1, 2),
        hold=seconds,
        ends=st.sampled_from(["sent", "again", "given up", "left"]),
    )
    def send_notices(self, tenant, limit, hold, ends):
        """Take what people are to be told of, and say what became of it, or die of it."""
        change = TakeNotices(tenant, limit, timedelta(seconds=hold))
        (taken,) = self.both(lambda store: store.commit([change]))
        for due in taken.notices:
            one = due.notice
            place = (one.tenant, one.run_id, one.generation, one.approval_id, one.notice)
            gap = timedelta(seconds=hold) if ends == "again" else None
            end = EndNotice(*place, one.tries, ends == "sent", ("mail",), gap, b"why")
            if ends != "left":
                (first,) = self.both(lambda store, end=end: store.commit([end]))
                assert isinstance(first, Applied)

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
    def nobody_is_told_of_what_is_over(self):
        """Both hold the same notices, of requests that nobody has closed."""
        if not hasattr(self, "loop"):
            return
        for tenant in ("", "default", "tenant"):
            self.both(lambda store, tenant=tenant: store.next_notice(tenant))
        for run in RUNS:
            rows = self.both(
                lambda store, run=run: store.approvals(run.tenant, pending=False, run=run)
            )
            waiting = {row.put.approval_id for row in rows if row.state in ("pending", "expired")}
            notices = self.both(lambda store, run=run: store.notices(run))
            assert {one.approval_id for one in notices} <= waiting

    @invariant()
    def all_is_kept(self):
        """Both hold the same, and exactly what was accepted."""
        if not hasattr(self, "loop"):
            return
        self.both(lambda store: store.workers())
        waiting = self.both(lambda store: store.outbox(100))
        self.both(lambda store: store.outbox(2, age=RELAY_AFTER))
        for run in RUNS:
            mine = self.both(lambda store, run=run: store.outbox(100, run=run))
            assert [one for sender, one in waiting if sender == run] == [one for _, one in mine]
            numbers = [one.number for _, one in mine]
            assert numbers == sorted(set(numbers))
        for tenant in ("default", "tenant"):
            every = frozenset(RequestState)
            listed = self.both(lambda store, tenant=tenant: store.requests(tenant, states=every))
            for one in listed:
                place = (tenant, one.request_id)
                assert (
                    replace(self.both(lambda store, p=place: store.request(*p)), answer=b"") == one
                )
            for state in RequestState:
                some = self.both(
                    lambda store, one=frozenset({state}), tenant=tenant: store.requests(
                        tenant, states=one, limit=1
                    )
                )
                assert some == [row for row in listed if row.state is state][:1]
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
            self.check_requests(run, image)
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
        middle = len(image.rows) // 2
        rest = self.both(lambda store: store.journal(run, after=middle - 1))
        assert rest == image.rows[middle:]
        for kind in KINDS:
            last = self.both(lambda store, kind=kind: store.latest(run, kind, "name"))
            assert last == next((one for one in image.rows[::-1] if one.row.kind == kind), None)
        times = [stamped.at for stamped in image.rows]
        assert times == sorted(times)
        listed = self.both(lambda store: store.generations(run))
        assert {one.generation: one.entries for one in listed} == {
            number: len(rows) for (of, number), rows in self.rows.items() if of == run
        }
        incarnation = image.head.incarnation
        consumed = self.consumed[run, incarnation]
        assert len(consumed) == len(set(consumed))
        unread = {stamped.message.message_id for stamped in image.messages}
        assert image.head.mail == bool(unread)
        assert not unread & set(consumed)
        assert unread | set(consumed) == self.accepted[run, incarnation]
        for one in UPDATES:
            state = self.both(lambda store: store.answer(run, one))
            known = [
                number
                for (key, number), names in self.accepted.items()
                if key == run and one in names
            ]
            assert (state is None) is (not known)
            if state is not None:
                assert state.generation == max(known)
                assert state.consumed is (one in self.consumed[run, state.generation])
                answer = self.answers.get((run, state.generation, one))
                assert (state.answered, state.answer) == (answer is not None, answer or b"")
                assert state.over is (image.head.status.closed or state.generation < incarnation)
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
