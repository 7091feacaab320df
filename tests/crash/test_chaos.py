"""Several worker processes on one file under load, killed, stopped and restarted by a seeded schedule; and then every invariant.

The schedule follows from `OUTLAST_CHAOS_SEED`, which a failure prints; where exactly a blow falls depends on the machine.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chaos_bench import Fleet, schedule
from chaos_load import Load
from chaos_scene import SEED, play


def rage(directory: Path, *, seed: int, seconds: float, workers: int) -> None:
    """Strike by a schedule."""
    strikes = schedule(seed, seconds, workers)
    print(*strikes, sep="\n")
    with Fleet.opened(directory, "--births", "4") as fleet:

        async def trouble(_: Load) -> None:
            await fleet.all_strikes(strikes)

        count = asyncio.run(play(fleet, trouble, seed=seed, workers=workers))
    print(f"{count} runs, {len(strikes)} strikes")


@pytest.mark.timeout(180)
def test_two_workers_under_kills_and_stops(tmp_path: Path) -> None:
    """Whatever strikes, every run that was accepted comes to its end, and nothing happens twice."""
    rage(tmp_path, seed=SEED, seconds=8, workers=2)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(10))
def test_four_workers_for_a_minute(tmp_path: Path, number: int) -> None:
    """The same for longer, with more workers."""
    rage(tmp_path, seed=SEED + number, seconds=60, workers=4)
