"""Whether a worker is well: each thing that can be wrong, by itself, and what a restart could mend."""

import asyncio

import pytest
from msgspec.structs import replace

import outlast
from outlast.store.change import WorkerId
from outlast.testing import Simulation, WorkerOptions
from outlast.worker.vital import LIVE_SECONDS, READY_SECONDS, Vitals, livez, readyz

WELL = Vitals(WorkerId("w"), "b1", "1.0", True, 0.1, 14.0, 0.2, 3, 0)
BITE = 0.001


@pytest.mark.parametrize(
    ("change", "is_live", "is_ready"),
    [
        ({}, True, True),
        ({"still_seconds": LIVE_SECONDS}, True, True),
        ({"still_seconds": LIVE_SECONDS + BITE}, False, False),
        ({"is_accepting": False}, True, False),
        ({"lease_seconds_left": 0.0}, True, False),
        ({"lease_seconds_left": -LIVE_SECONDS}, False, False),
        ({"lease_seconds_left": -LIVE_SECONDS, "is_store_away": True}, True, False),
        ({"looked_seconds": READY_SECONDS}, True, True),
        ({"looked_seconds": READY_SECONDS + BITE}, True, False),
    ],
)
def test_each_fault(change, is_live, is_ready):
    """A store that is away makes no worker worth a restart; a loop that stands still does."""
    vitals = replace(WELL, **change)
    assert (livez(vitals).is_ok, readyz(vitals).is_ok) == (is_live, is_ready)
    assert readyz(vitals).status == ("ok" if is_ready else "unavailable")
    assert bool(readyz(vitals).reasons) is not is_ready


@outlast.workflow
async def waits() -> None:
    """Wait."""
    await outlast.wait_condition(lambda: False)


def test_vitals_of_a_worker():
    """It accepts from its start to its stop, and counts what it has in memory."""

    async def main():
        async with outlast.open("memory://", workflows=[waits]) as app:
            await app.start(waits(), id="a")
            vitals = app.worker.vitals
            assert readyz(vitals).is_ok
            assert (vitals.worker, vitals.runs, vitals.tasks) == (app.worker.id, 1, 0)
            assert 0 < vitals.lease_seconds_left <= 15
        assert not app.worker.vitals.is_accepting
        assert livez(app.worker.vitals).is_ok

    asyncio.run(main())


def test_a_store_that_is_away_is_not_the_workers_fault():
    """While it is away the worker is not ready, and worth no restart; when it is back all is well."""

    async def scenario(sim: Simulation) -> None:
        started = await sim.start_worker(options=WorkerOptions(library="simulated"))
        worker = started.worker
        await asyncio.sleep(1)
        assert readyz(worker.vitals).is_ok
        started.store.faults = replace_faults(started.store.faults, down=True)
        await asyncio.sleep(60)
        assert livez(worker.vitals).is_ok
        found = readyz(worker.vitals)
        assert "the lease is over" in found.reasons
        assert "the store has not answered a look for work" in found.reasons
        started.store.faults = replace_faults(started.store.faults, down=False)
        await asyncio.sleep(10)
        assert readyz(worker.vitals).is_ok

    from dataclasses import replace as replace_faults

    Simulation([waits]).run(scenario)
