"""What a worker does about its tasks, with a store that says what the test wants."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from outlast.store.change import Applied, FinishTask, RunKey, WorkerId
from outlast.store.task import ClaimedTask, TaskClaim, TaskKey, TaskRow
from outlast.worker.executor import Returned
from outlast.worker.task import TaskRunner

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WORKER = WorkerId("w")


def claimed(attempt: int = 1) -> ClaimedTask:
    """Return a task that the worker has."""
    key = TaskKey(RunKey("default", "r"), 1, "r:1", attempt)
    return ClaimedTask(TaskRow(key, "gpu", "render", WORKER, NOW, 1), b"{}")


class World:
    """A store that gives what it is told to give, and bodies that are slow to end."""

    def __init__(self, *claims: TaskClaim) -> None:
        self.claims = list(claims)
        self.asked: list[tuple[int, frozenset[TaskKey]]] = []
        self.log: list[str] = []
        self.finished: list[FinishTask] = []

    async def claim_tasks(
        self, worker: WorkerId, queues: Any, steps: Any, *, limit: int, known: frozenset[TaskKey]
    ) -> TaskClaim:
        """Give the next answer."""
        self.asked.append((limit, known))
        return self.claims.pop(0) if self.claims else TaskClaim((), (), None, NOW)

    async def attempt(
        self, step: Any, arguments: bytes, attempt: Any, check: Any, *, beats: Any
    ) -> Returned:
        """Run for ever; clean up slowly."""
        check()
        self.log.append(f"begin {attempt.number}")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.log.append(f"end {attempt.number}")
            raise
        raise AssertionError

    def left(self, names: Any) -> int:
        """None goes on."""
        return 0

    def left_of(self, attempt: Any) -> None:
        """No body of these goes on."""

    async def submit(self, change: FinishTask) -> Applied:
        """Take everything."""
        self.finished.append(change)
        return Applied(NOW)

    def runner(self, limit: int = 5) -> TaskRunner:
        """Return a runner of this world."""
        step = SimpleNamespace(
            name="render",
            placement=SimpleNamespace(queue="gpu"),
            options=SimpleNamespace(heartbeat_timeout=None),
        )
        deck: Any = SimpleNamespace(
            store=self,
            writer=self,
            executor=self,
            worker=WORKER,
            clock=SimpleNamespace(monotonic=lambda: 0.0),
            lease=SimpleNamespace(valid=True),
            registry=SimpleNamespace(steps={"render": step}),
        )
        return TaskRunner(deck, ("gpu",), limit, lambda: None)


def test_a_task_that_is_taken_again_waits_for_its_former_attempt() -> None:
    """What was replaced and comes back to the same worker never runs beside what it replaces."""
    again = TaskClaim((claimed(),), (), None, NOW)
    world = World(again, again)

    async def main() -> None:
        runner = world.runner()
        await runner.look()
        await asyncio.sleep(0)
        await runner.look()
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.log == ["begin 1", "end 1", "begin 1"]
        assert runner.tasks == [claimed().row.key]
        await asyncio.gather(*runner.cancel(), return_exceptions=True)
        assert runner.tasks == []
        assert world.finished == []

    asyncio.run(main())


def test_a_look_says_what_is_worked_on_and_asks_for_what_there_is_room_for() -> None:
    """So the store can tell what is lost, and what is the worker's without its knowing."""
    one, two = claimed(1), claimed(2)
    world = World(TaskClaim((one, two), (), None, NOW), TaskClaim((), (one.row.key,), None, NOW))

    async def main() -> None:
        runner = world.runner(3)
        for _ in range(2):
            await runner.look()
            for _ in range(10):
                await asyncio.sleep(0)
        keys = frozenset({one.row.key, two.row.key})
        assert world.asked == [(3, frozenset()), (1, keys)]
        assert world.log == ["begin 1", "begin 2", "end 1"]
        assert runner.tasks == [two.row.key]
        await asyncio.gather(*runner.cancel(), return_exceptions=True)

    asyncio.run(main())


def test_a_stop_gives_back_what_it_cuts_off() -> None:
    """By name, without a message: the next worker need not wait for a lease."""
    world = World(TaskClaim((claimed(),), (), None, NOW))

    async def main() -> None:
        runner = world.runner()
        await runner.look()
        await asyncio.sleep(0)
        await runner.stop(0.0, 5.0)

    asyncio.run(main())
    assert [(one.operation, one.message) for one in world.finished] == [("r:1", None)]
    assert world.log == ["begin 1", "end 1"]
