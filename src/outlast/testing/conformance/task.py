"""What a store promises of tasks: each is with one living worker, comes back when that one dies, and ends in one message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from outlast.store.change import (
    Applied,
    BeatTask,
    Fenced,
    FinishTask,
    Message,
    MessageKind,
    Refused,
    RunHead,
    RunKey,
    Status,
    TaskDrop,
    TaskPut,
    Terminate,
    WorkerId,
    WorkerRow,
)
from outlast.store.protocol import SUSPECT_LAPSES
from outlast.store.task import ClaimedTask, TaskClaim, TaskKey, TaskRow
from outlast.testing.conformance.bench import (
    LEASE,
    Bench,
    ending,
    following,
    parking,
    scenario,
)
from outlast.testing.conformance.rollover import rolling

SECOND = timedelta(seconds=1)
QUEUES = frozenset({"gpu"})
STEPS = frozenset({"render"})


def putting(operation: str = "r:1", **fields: Any) -> TaskPut:
    """Return a task of the step `render` in the queue `gpu`."""
    given: dict[str, Any] = {
        "attempt": 1,
        "queue": "gpu",
        "name": "render",
        "arguments": b'{"n": 1}',
    }
    return TaskPut(operation, **{**given, **fields})


def finishing(row: TaskRow, *, body: bytes | None = b'{"value": 2}') -> FinishTask:
    """Return the end of a task, by the worker that has it; given back when there is no body."""
    key = row.key
    assert row.worker is not None
    message = None
    if body is not None:
        message_id = f"task/{key.operation}/{key.attempt}/{row.worker}"
        message = Message(message_id, MessageKind.OUTCOME, key.operation, row.worker, body)
    return FinishTask(key.run, key.generation, key.operation, key.attempt, row.worker, message)


def beating(row: TaskRow, progress: bytes = b'"half"') -> BeatTask:
    """Return what an attempt says of itself, by the worker that has its task."""
    key = row.key
    assert row.worker is not None
    return BeatTask(key.run, key.generation, key.operation, key.attempt, row.worker, progress)


async def take(bench: Bench, worker: WorkerId, limit: int = 10, **fields: Any) -> TaskClaim:
    """Take tasks of the suite's queue and step."""
    return await bench.store.claim_tasks(worker, QUEUES, STEPS, limit=limit, **fields)


async def take_one(bench: Bench, worker: WorkerId) -> TaskRow:
    """Take exactly one task."""
    claim = await take(bench, worker)
    assert len(claim.tasks) == 1, claim
    return claim.tasks[0].row


async def offered(bench: Bench, run_id: str = "run", /, **fields: Any) -> RunHead:
    """Return the head of a new run of the worker `w1` that has put one task."""
    worker = WorkerId("w1")
    if all(one.row.worker != worker for one in await bench.store.workers()):
        await bench.worker("w1", lease=timedelta(days=1))
    run = await bench.start(run_id, worker=worker)
    await bench.apply(following(await bench.head(run), entries=0, tasks=(putting(**fields),)))
    return await bench.head(run)


class TaskConformance:
    """Tasks of remote steps."""

    @scenario
    async def test_task_is_taken_once(self, bench: Bench) -> None:
        """A task goes to one worker, with its arguments; it needs none of the run's workflows."""
        head = await offered(bench)
        second = WorkerId("w2")
        await bench.store.register(WorkerRow(second, "host", 8, "b", (), LEASE, ("gpu",)))
        bench.clock.advance(SECOND)
        claim = await take(bench, second)
        key = TaskKey(head.run, 1, "r:1", 1)
        row = TaskRow(key, "gpu", "render", second, bench.clock.now(), taken=1)
        assert claim == TaskClaim((ClaimedTask(row, b'{"n": 1}'),), (), None, bench.clock.now())
        assert await bench.store.tasks(head.run) == (row,)
        assert (await take(bench, await bench.worker("w3"))).tasks == ()

    @scenario
    async def test_waiting_task_is_seen(self, bench: Bench) -> None:
        """Owner and onlookers see a task that waits, since when, and with whom it is; other runs' are not among them."""
        head = await offered(bench)
        since = bench.clock.now()
        await offered(bench, "other")
        bench.clock.advance(SECOND)
        (row,) = await bench.store.tasks(head.run)
        assert row == TaskRow(TaskKey(head.run, 1, "r:1", 1), "gpu", "render", None, since)
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.tasks == (row,)
        assert await bench.store.tasks(RunKey("default", "no")) == ()

    @scenario
    async def test_only_served_queues_and_registered_steps(self, bench: Bench) -> None:
        """A task of another queue, or of a step that the worker does not have, is left alone."""
        await offered(bench)
        second = await bench.worker("w2")
        none: frozenset[str] = frozenset()
        others = (
            (frozenset({"cpu"}), STEPS),
            (QUEUES, frozenset({"crop"})),
            (none, STEPS),
            (QUEUES, none),
        )
        for queues, steps in others:
            claim = await bench.store.claim_tasks(second, queues, steps, limit=9)
            assert claim.tasks == ()
        wide = await bench.store.claim_tasks(second, QUEUES | {"a"}, STEPS | {"b"}, limit=9)
        assert len(wide.tasks) == 1

    @scenario
    async def test_oldest_task_first_and_limit(self, bench: Bench) -> None:
        """Tasks are taken in the order in which they could have been, over runs and steps, up to the limit."""
        for name, step in (("c", "render"), ("a", "crop"), ("b", "render")):
            await offered(bench, name, name=step)
            bench.clock.advance(SECOND)
        second = await bench.worker("w2")
        steps = STEPS | {"crop"}
        assert (await bench.store.claim_tasks(second, QUEUES, steps, limit=0)).tasks == ()
        names: list[str] = []
        for limit in (2, 5):
            claim = await bench.store.claim_tasks(second, QUEUES, steps, limit=limit)
            names += [task.row.key.run.run_id for task in claim.tasks if task.row.taken]
            known = frozenset(task.row.key for task in claim.tasks)
            assert (await take(bench, second, 0, known=known)).lost == ()
        assert list(dict.fromkeys(names)) == ["c", "a", "b"]

    @scenario
    async def test_due_task(self, bench: Bench) -> None:
        """A task with a due time is taken from then on, and looks say when."""
        due = bench.clock.now() + 5 * SECOND
        await offered(bench, due_at=due)
        second = await bench.worker("w2")
        claim = await take(bench, second)
        assert (claim.tasks, claim.next_due) == ((), due)
        bench.clock.advance(5 * SECOND)
        claim = await take(bench, second)
        assert (len(claim.tasks), claim.next_due) == (1, None)

    @scenario
    async def test_clock_that_was_ahead_hides_no_task(self, bench: Bench) -> None:
        """What was put while the wall clock was ahead can be taken when it is right again."""
        right = bench.clock.now()
        bench.clock.set_wall(right + timedelta(days=365))
        await offered(bench, "now")
        await offered(bench, "later", due_at=bench.clock.now() + SECOND)
        bench.clock.set_wall(right)
        claim = await take(bench, await bench.worker("w2"))
        assert {task.row.key.run.run_id for task in claim.tasks} == {"now", "later"}
        assert claim.next_due is None

    @scenario
    async def test_finished_task_is_a_message(self, bench: Bench) -> None:
        """The outcome is in the run's inbox with the end of the task, and offers a parked run."""
        head = await offered(bench)
        second = await bench.worker("w2")
        row = await take_one(bench, second)
        await bench.apply(parking(head))
        assert (await bench.claim(WorkerId("w1"))).runs == ()
        at = (await bench.apply(finishing(row))).at
        assert await bench.store.tasks(head.run) == ()
        (stamped,) = await bench.store.mail(head.run)
        assert (stamped.message, stamped.at) == (finishing(row).message, at)
        assert (await bench.claim_one(WorkerId("w1"))).mail

    @scenario
    async def test_finishing_again_is_harmless(self, bench: Bench) -> None:
        """The same end sent again is applied without effect, also when the run has read it, or the lease is over by then."""
        head = await offered(bench)
        second = await bench.worker("w2")
        row = await take_one(bench, second)
        first = await bench.apply(finishing(row))
        bench.clock.advance(SECOND)
        assert await bench.one(finishing(row)) == first
        (stamped,) = await bench.store.mail(head.run)
        await bench.apply(following(head, consumed=(stamped.message.message_id,)))
        bench.clock.advance(LEASE)
        assert await bench.one(finishing(row)) == Applied(first.at)
        assert await bench.store.mail(head.run) == ()

    @scenario
    async def test_only_its_worker_finishes_a_task(self, bench: Bench) -> None:
        """Another worker, another attempt, another generation, and a task that nobody has: fenced, and no message is put."""
        head = await offered(bench)
        second, third = await bench.worker("w2"), await bench.worker("w3")
        (waiting,) = await bench.store.tasks(head.run)
        assert isinstance(await bench.one(finishing(replace(waiting, worker=second))), Fenced)
        row = await take_one(bench, second)
        for wrong in (
            replace(finishing(row), worker=third),
            replace(finishing(row), attempt=2),
            replace(finishing(row), generation=2),
            replace(finishing(row), operation="r:2"),
            replace(finishing(row), run=RunKey("default", "no")),
        ):
            assert isinstance(await bench.one(wrong), Fenced)
        assert await bench.store.mail(head.run) == ()
        await bench.apply(finishing(row))

    @scenario
    async def test_lapsed_worker_finishes_nothing(self, bench: Bench) -> None:
        """A worker whose lease is over is fenced even before anybody has noticed; the task goes to another."""
        head = await offered(bench)
        row = await take_one(bench, await bench.worker("w2"))
        bench.clock.advance(LEASE)
        assert isinstance(await bench.one(finishing(row)), Fenced)
        third = await bench.worker("w3")
        again = await take_one(bench, third)
        assert (again.key, again.worker, again.taken, again.lapses) == (row.key, third, 2, 1)
        assert isinstance(await bench.one(finishing(row)), Fenced)
        await bench.apply(finishing(again))
        assert len(await bench.store.mail(head.run)) == 1

    @scenario
    async def test_lapsed_worker_takes_no_task(self, bench: Bench) -> None:
        """A worker whose lease is over, or whom nobody knows, takes nothing."""
        await offered(bench)
        second = await bench.worker("w2")
        bench.clock.advance(LEASE)
        assert (await take(bench, second)).tasks == ()
        assert (await take(bench, WorkerId("nobody"))).tasks == ()

    @scenario
    async def test_task_of_a_dead_worker_keeps_its_place(self, bench: Bench) -> None:
        """A task that comes back is taken before those that were put later; who looks for runs alone gives it back too."""
        for name in ("old", "new"):
            await offered(bench, name)
            bench.clock.advance(SECOND)
        (old,) = (await take(bench, await bench.worker("w2"), 1)).tasks
        assert old.row.key.run.run_id == "old"
        bench.clock.advance(LEASE)
        assert (await bench.claim(WorkerId("w1"))).runs == ()
        claim = await take(bench, await bench.worker("w3"))
        assert [task.row.key.run.run_id for task in claim.tasks] == ["old", "new"]
        assert [task.row.lapses for task in claim.tasks] == [1, 0]

    @scenario
    async def test_retired_worker_leaves_its_tasks(self, bench: Bench) -> None:
        """Tasks of a worker that retires are offered at once, and no lapse is counted."""
        head = await offered(bench)
        await take_one(bench, await bench.worker("w2"))
        bench.clock.advance(SECOND)
        await bench.store.retire(WorkerId("w2"))
        (row,) = await bench.store.tasks(head.run)
        assert (row.worker, row.since, row.taken, row.lapses) == (None, bench.clock.now(), 1, 0)
        await take_one(bench, await bench.worker("w3"))

    @scenario
    async def test_task_given_back(self, bench: Bench) -> None:
        """A worker may give a task back by name: it is offered again, and the former worker is fenced."""
        head = await offered(bench)
        second = await bench.worker("w2")
        row = await take_one(bench, second)
        await bench.apply(finishing(row, body=None))
        assert isinstance(await bench.one(finishing(row)), Fenced)
        again = await take_one(bench, second)
        assert (again.key, again.taken) == (row.key, 2)
        assert await bench.store.mail(head.run) == ()

    @scenario
    async def test_worker_learns_what_is_its_own(self, bench: Bench) -> None:
        """A worker is told of tasks that it has without knowing, and of those that it works on and has no longer."""
        head = await offered(bench)
        second = await bench.worker("w2")
        first = await take(bench, second)
        again = await take(bench, second)
        assert again.tasks == first.tasks
        key = first.tasks[0].row.key
        claim = await take(bench, second, known=frozenset({key}))
        assert (claim.tasks, claim.lost) == ((), ())
        await bench.apply(following(head, entries=0, tasks=(TaskDrop("r:1"),)))
        claim = await take(bench, second, known=frozenset({key}))
        assert (claim.tasks, claim.lost) == ((), (key,))

    @scenario
    async def test_replaced_task(self, bench: Bench) -> None:
        """A task put over another one is another attempt: whoever had the former has it no longer."""
        head = await offered(bench)
        second = await bench.worker("w2")
        row = await take_one(bench, second)
        await bench.apply(following(head, entries=0, tasks=(putting(attempt=2),)))
        assert isinstance(await bench.one(finishing(row)), Fenced)
        claim = await take(bench, second, known=frozenset({row.key}))
        assert claim.lost == (row.key,)
        assert [(task.row.key.attempt, task.row.taken) for task in claim.tasks] == [(2, 1)]

    @scenario
    async def test_task_that_was_given_back_and_is_taken_anew(self, bench: Bench) -> None:
        """Who still works on the former taking is told of both: that it has lost this one, and that it has the other."""
        await offered(bench)
        second = await bench.worker("w2")
        row = await take_one(bench, second)
        await bench.apply(finishing(row, body=None))
        claim = await take(bench, second, known=frozenset({row.key}))
        assert claim.lost == (row.key,)
        assert [(task.row.key, task.row.taken) for task in claim.tasks] == [(row.key, 2)]
        claim = await take(bench, second, known=frozenset({row.key}))
        assert (claim.tasks, claim.lost) == ((), ())

    @scenario
    async def test_conditional_drop(self, bench: Bench) -> None:
        """A drop on a condition is refused, with the whole change, once the task is gone, another, with somebody, or was taken since."""
        head = await offered(bench)
        second = await bench.worker("w2")
        refused = Refused("task", "r:1")

        async def dropping(**fields: Any) -> object:
            return await bench.one(following(head, tasks=(TaskDrop("r:1", **fields),)))

        assert await dropping(attempt=2) == refused
        assert await dropping(attempt=1, taken=1) == refused
        row = await take_one(bench, second)
        assert await dropping(attempt=1, taken=0) == refused
        assert await dropping(attempt=1, taken=1) == refused
        await bench.apply(finishing(row, body=None))
        assert await dropping(attempt=1, taken=0) == refused
        assert await bench.head(head.run) == head
        assert isinstance(await dropping(attempt=1, taken=1), Applied)
        head = await bench.head(head.run)
        assert await dropping(attempt=1) == refused
        assert isinstance(await dropping(), Applied)

    @scenario
    async def test_tasks_of_one_change_follow_each_other(self, bench: Bench) -> None:
        """What stands earlier in a change is seen by what stands later."""
        head = await bench.owned()
        wrong = (putting(), TaskDrop("r:1"), TaskDrop("r:1", attempt=1))
        assert await bench.one(following(head, tasks=wrong)) == Refused("task", "r:1")
        assert await bench.store.tasks(head.run) == ()
        right = (putting(), putting(attempt=2), TaskDrop("r:1", attempt=2, taken=0))
        await bench.apply(following(head, tasks=right))
        assert await bench.store.tasks(head.run) == ()

    @scenario
    async def test_tasks_go_with_their_run(self, bench: Bench) -> None:
        """The end of a run, by its owner or from outside, takes its tasks along; a restart of the id begins without any."""
        second = await bench.worker("w2", lease=timedelta(days=1))
        for number, name in enumerate(("ended", "terminated")):
            head = await offered(bench, name)
            taken = await take_one(bench, second)
            change = Terminate(head.run, "root", "why") if number else ending(head)
            await bench.apply(change)
            assert await bench.store.tasks(head.run) == ()
            assert isinstance(await bench.one(finishing(taken)), Fenced)
            claim = await take(bench, second, known=frozenset({taken.key}))
            assert (claim.tasks, claim.lost) == ((), (taken.key,))
            await bench.start(name, generation=2, worker=WorkerId("w1"))
            assert await bench.store.tasks(head.run) == ()
            assert await bench.store.mail(head.run) == ()

    @scenario
    async def test_tasks_go_with_their_generation(self, bench: Bench) -> None:
        """A roll-over takes the tasks along in its own commit, also one that it puts itself; whoever works on one has it no longer."""
        head = await offered(bench)
        second = await bench.worker("w2", lease=timedelta(days=1))
        old = await take_one(bench, second)
        await bench.apply(following(head, entries=0, tasks=(putting("r:2"),)))
        await bench.apply(rolling(await bench.head(head.run), tasks=(putting("r:3"),)))
        assert await bench.store.tasks(head.run) == ()
        claim = await take(bench, second, known=frozenset({old.key}))
        assert (claim.tasks, claim.lost) == ((), (old.key,))
        now = await bench.claim_one(WorkerId("w1"))
        await bench.apply(following(now, entries=0, tasks=(putting(),)))
        assert isinstance(await bench.one(finishing(old)), Fenced)
        new = await take_one(bench, second)
        assert (new.key.generation, new.key.operation) == (2, old.key.operation)
        assert await bench.store.mail(head.run) == ()

    @scenario
    async def test_task_of_the_generation_before(self, bench: Bench) -> None:
        """A worker that still works for a run which has ended does not finish the same operation of the id's next run."""
        head = await offered(bench)
        second = await bench.worker("w2")
        old = await take_one(bench, second)
        await bench.apply(Terminate(head.run, "root", "why"))
        await bench.start(generation=2, worker=WorkerId("w1"))
        now = await bench.head(head.run)
        await bench.apply(following(now, entries=0, tasks=(putting(),)))
        new = await take_one(bench, second)
        assert (new.key.generation, new.key.attempt) == (2, old.key.attempt)
        assert isinstance(await bench.one(finishing(old)), Fenced)
        await bench.apply(finishing(new))
        assert len(await bench.store.mail(head.run)) == 1

    @scenario
    async def test_what_an_attempt_said_is_kept(self, bench: Bench) -> None:
        """Whoever takes the task next finds it, be it given back, left by the dead, or the worker's own without its knowing."""
        head = await offered(bench, progress=b"1")
        second = await bench.worker("w2")
        (first,) = (await take(bench, second)).tasks
        assert first.progress == b"1"
        for said in (b"2", b"3", b"3"):
            await bench.apply(beating(first.row, said))
        (again,) = (await take(bench, second)).tasks
        assert (again.row, again.progress) == (first.row, b"3")
        await bench.apply(finishing(first.row, body=None))
        (third,) = (await take(bench, await bench.worker("w3"))).tasks
        assert third.progress == b"3"
        await bench.apply(beating(third.row, b"4"))
        bench.clock.advance(LEASE)
        (fourth,) = (await take(bench, await bench.worker("w4"))).tasks
        assert (fourth.row.key, fourth.progress) == (first.row.key, b"4")
        assert await bench.store.mail(head.run) == ()

    @scenario
    async def test_only_its_worker_speaks_of_a_task(self, bench: Bench) -> None:
        """Another worker, another attempt, a lapsed one, and one of a task that is gone or was put anew are fenced."""
        head = await offered(bench, progress=b"1")
        second, third = await bench.worker("w2"), await bench.worker("w3")
        (waiting,) = await bench.store.tasks(head.run)
        assert isinstance(await bench.one(beating(replace(waiting, worker=second))), Fenced)
        row = await take_one(bench, second)
        beat = beating(row)
        for wrong in (
            replace(beat, worker=third),
            replace(beat, attempt=2),
            replace(beat, generation=2),
            replace(beat, operation="r:2"),
            replace(beat, run=RunKey("default", "no")),
        ):
            assert isinstance(await bench.one(wrong), Fenced)
        (known,) = (await take(bench, second)).tasks
        assert known.progress == b"1"
        bench.clock.advance(LEASE)
        assert isinstance(await bench.one(beat), Fenced)
        last = await take_one(bench, await bench.worker("w4"))
        await bench.apply(following(head, entries=0, tasks=(putting(),)))
        assert isinstance(await bench.one(beating(last)), Fenced)
        await bench.apply(following(await bench.head(head.run), tasks=(TaskDrop("r:1"),)))
        assert isinstance(await bench.one(beating(last)), Fenced)

    @scenario
    async def test_what_was_said_moves_with_a_task_that_is_put_anew(self, bench: Bench) -> None:
        """A task in the place of another keeps what was said, unless it brings something newer; after a drop there is nothing."""
        head = await offered(bench)
        second = await bench.worker("w2", lease=timedelta(days=1))
        row = await take_one(bench, second)
        await bench.apply(beating(row))
        found: list[bytes] = []
        for tasks in (
            (putting(attempt=2),),
            (putting(attempt=3, progress=b"new"),),
            (putting(attempt=5, progress=b"old"), TaskDrop("r:1"), putting(attempt=6)),
        ):
            head = await bench.head(head.run)
            await bench.apply(following(head, entries=0, tasks=tasks))
            (task,) = (await take(bench, second)).tasks
            found.append(task.progress)
        assert found == [b'"half"', b"new", b""]

    @scenario
    async def test_held_tasks_wait(self, bench: Bench) -> None:
        """No task that is held is taken, nor announced, whatever becomes of its run meanwhile; another run's is."""
        head = await offered(bench)
        later = (putting("r:2", due_at=bench.clock.now() + SECOND), putting("r:3"))
        await bench.apply(following(head, entries=0, tasks=later, hold=True))
        await offered(bench, "other")
        second = await bench.worker("w2")
        (other,) = (await take(bench, second)).tasks
        assert other.row.key.run.run_id == "other"
        await bench.apply(parking(await bench.head(head.run), status=Status.PAUSED))
        bench.clock.advance(2 * SECOND)
        claim = await take(bench, second, known=frozenset({other.row.key}))
        assert (claim.tasks, claim.next_due) == ((), None)
        assert len(await bench.store.tasks(head.run)) == 3

    @scenario
    async def test_task_that_comes_back_is_held(self, bench: Bench) -> None:
        """A hold takes a task from nobody; one that its worker gives back, or leaves behind at its death, is not taken again."""
        head = await offered(bench)
        await bench.apply(following(head, entries=0, tasks=(putting("r:2"),)))
        second, third = await bench.worker("w2"), await bench.worker("w3")
        (given,) = (await take(bench, second, 1)).tasks
        (left,) = (await take(bench, third, 1)).tasks
        await bench.apply(following(await bench.head(head.run), entries=0, hold=True))
        assert (await take(bench, third, known=frozenset({left.row.key}))).lost == ()
        await bench.apply(finishing(given.row, body=None))
        bench.clock.advance(LEASE)
        assert (await take(bench, await bench.worker("w4"))).tasks == ()
        assert [row.worker for row in await bench.store.tasks(head.run)] == [None, None]

    @scenario
    async def test_held_task_waits_anew(self, bench: Bench) -> None:
        """When a hold ends its tasks wait from then on, in their old places; what is with a worker, or was never held, is as it was."""
        for name in ("held", "free"):
            await offered(bench, name)
            bench.clock.advance(SECOND)
        key = RunKey("default", "held")
        due = bench.clock.now() + timedelta(hours=1)
        more = (putting("r:2"), putting("r:3", due_at=due))
        await bench.apply(following(await bench.head(key), entries=0, tasks=more))
        second = await bench.worker("w2", lease=timedelta(days=1))
        (taken,) = (await take(bench, second, 1)).tasks
        assert taken.row.key.operation == "r:1"
        (before,) = await bench.store.tasks(RunKey("default", "free"))
        await bench.apply(following(await bench.head(key), entries=0, hold=True))
        bench.clock.advance(10 * SECOND)
        at = bench.clock.now()
        for hold in (False, None, False):
            await bench.apply(following(await bench.head(key), entries=0, hold=hold))
            bench.clock.advance(SECOND)
        rows = await bench.store.tasks(key)
        assert [row.since for row in rows] == [taken.row.since, at, due]
        assert await bench.store.tasks(before.key.run) == (before,)
        claim = await take(bench, second, known=frozenset({taken.row.key}))
        names = [(one.row.key.run.run_id, one.row.key.operation) for one in claim.tasks]
        assert names == [("free", "r:1"), ("held", "r:2")]
        assert claim.next_due == due

    @scenario
    async def test_suspect_tasks_are_taken_one_at_a_time(self, bench: Bench) -> None:
        """Of tasks whose workers died again and again a worker has one, beside any number of others."""
        for name in ("a", "b"):
            await offered(bench, name)
            bench.clock.advance(SECOND)
        for number in range(SUSPECT_LAPSES):
            claim = await take(bench, await bench.worker(f"dying-{number}"))
            assert len(claim.tasks) == 2
            bench.clock.advance(LEASE)
        await offered(bench, "innocent")
        second = await bench.worker("w2")
        claim = await take(bench, second)
        assert [task.row.key.run.run_id for task in claim.tasks] == ["a", "innocent"]
        known = frozenset(task.row.key for task in claim.tasks)
        assert (await take(bench, second, known=known)).tasks == ()
        assert (await take_one(bench, await bench.worker("w3"))).key.run.run_id == "b"
        await bench.apply(finishing(claim.tasks[0].row))

    @scenario
    async def test_tasks_keep_tenants_apart(self, bench: Bench) -> None:
        """Runs of the same id in two tenants have tasks of their own."""
        owner = await bench.worker("w1", lease=timedelta(days=1))
        for tenant in ("a", "b"):
            run = await bench.start(tenant=tenant, worker=owner)
            await bench.apply(following(await bench.head(run), entries=0, tasks=(putting(),)))
        claim = await take(bench, await bench.worker("w2"))
        runs = [task.row.key.run for task in claim.tasks]
        assert runs == [RunKey("a", "run"), RunKey("b", "run")]
        await bench.apply(finishing(claim.tasks[0].row))
        assert len(await bench.store.tasks(RunKey("b", "run"))) == 1
        assert await bench.store.mail(RunKey("b", "run")) == ()

    @scenario
    async def test_fenced_owner_puts_no_task(self, bench: Bench) -> None:
        """Tasks are part of an owned change: who has lost the run writes none, and a change sent again writes none twice."""
        head = await bench.owned()
        change = following(head, tasks=(putting(),))
        await bench.apply(change)
        second = await bench.worker("w2")
        await take_one(bench, second)
        await bench.apply(change)
        (row,) = await bench.store.tasks(head.run)
        assert row.worker == second
        bench.clock.advance(LEASE)
        third = await bench.worker("w3")
        await bench.claim_one(third)
        stale = following(
            await bench.head(head.run), worker=WorkerId("w1"), tasks=(putting(attempt=2),)
        )
        assert isinstance(await bench.one(stale), Fenced)
        assert [row.key.attempt for row in await bench.store.tasks(head.run)] == [1]

    @scenario
    async def test_worker_shows_its_queues(self, bench: Bench) -> None:
        """A worker is listed with the queues that it serves."""
        await bench.store.register(
            WorkerRow(WorkerId("w2"), "host", 8, "b", (), LEASE, ("cpu", "gpu"))
        )
        (listed,) = await bench.store.workers()
        assert (listed.row.workflows, listed.row.queues) == ((), ("cpu", "gpu"))
