"""Does the harm that a scenario tells of, at times and at verbs."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

from outlast.testing.fault import Faults
from outlast.testing.simulation.kit import kit_of
from outlast.testing.simulation.scenario import Disturbance, Scenario
from outlast.testing.simulation.system import SimulatedWorker, Simulation

_LAST_SECONDS = 5.0
"""How long what waits for its verb may still wait for it."""


class Disturber:
    """Kills, freezes, cuts off and stops workers, and moves the clock."""

    def __init__(self, sim: Simulation, scenario: Scenario) -> None:
        self._sim = sim
        self._scenario = scenario
        self._armed: list[tuple[SimulatedWorker, Disturbance]] = []
        self._over = False
        self._until = 0.0
        """When the last of what was begun ends, by the loop's time."""
        sim.invariants.happened = self._happened

    async def replace(self) -> SimulatedWorker:
        """Start a worker; its way to the store becomes bad as soon as it lives."""
        builds = self._scenario.builds
        kit = kit_of(len(self._sim.workers) % builds) if builds > 1 else None
        worker = await self._sim.start_worker(definitions=kit, faults=Faults())
        worker.threads.crowded = self._scenario.crowded
        worker.store.faults = self._faults()
        worker.store.at_verb = partial(self._strike, worker)
        return worker

    async def disturb(self) -> None:
        """Do everything, each at its time."""
        elapsed = 0.0
        for one in self._scenario.disturbances:
            await asyncio.sleep(max(0.0, one.at - elapsed))
            elapsed = max(elapsed, one.at)
            alive = [worker for worker in self._sim.workers if not worker.process.dead]
            if not alive:
                alive = [await self.replace()]
            victim = alive[one.victim % len(alive)]
            if one.verb:
                self._armed.append((victim, one))
            else:
                self._harm(victim, one)
        await asyncio.sleep(_LAST_SECONDS)
        self._over = True
        self._armed.clear()
        # What was begun is carried through: a process that is thawed too soon has missed nothing.
        await asyncio.sleep(max(0.0, self._until - asyncio.get_running_loop().time()))

    def _faults(self) -> Faults:
        return Faults() if self._over else self._scenario.faults

    def _happened(self, process: str, what: str) -> None:
        for worker in self._sim.workers:
            if worker.process.name == process:
                self._strike(worker, "", what)

    def _strike(self, worker: SimulatedWorker, moment: str, verb: str) -> None:
        for armed in self._armed:
            victim, one = armed
            if victim is worker and one.verb == verb and moment in ("", one.moment):
                self._armed.remove(armed)
                self._harm(victim, one)
                return

    def _harm(self, victim: SimulatedWorker, one: Disturbance) -> None:
        match one.harm:
            case "kill":
                victim.kill()
                self._after(one.seconds / 3, lambda: self._spawn(self.replace()))
            case "freeze":
                victim.freeze()
                self._after(one.seconds, victim.thaw)
            case "stall":
                victim.stall()
                self._after(one.seconds, victim.thaw)
            case "cut":
                self._cut(victim, one.seconds)
            case "outage":
                for worker in self._sim.workers:
                    self._cut(worker, one.seconds)
            case "stop":
                self._spawn(self._stop(victim, timedelta(seconds=one.seconds)))
                self._spawn(self.replace())
            case "forth" | "back":
                sign = 1 if one.harm == "forth" else -1
                self._sim.clock.jump(sign * timedelta(seconds=one.seconds * 3))

    async def _stop(self, victim: SimulatedWorker, grace: timedelta) -> None:
        """Stop a worker gracefully, unless something else has stopped it by now."""
        if not victim.process.stopped:
            await victim.stop(grace)

    def _cut(self, worker: SimulatedWorker, seconds: float) -> None:
        worker.store.faults = Faults(down=True)

        def mend() -> None:
            worker.store.faults = self._faults()

        self._after(seconds, mend)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside the scenario that must not fail."""

        def check(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._sim.loop.fail(error)

        self._sim.spawn(work).add_done_callback(check)

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        """Do something later, whatever happens to the processes meanwhile."""
        loop = asyncio.get_running_loop()
        self._until = max(self._until, loop.time() + seconds)
        loop.call_later(seconds, act, context=contextvars.Context())
