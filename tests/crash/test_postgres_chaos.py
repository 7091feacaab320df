"""Worker processes on a PostgreSQL server with hundreds of runs in flight, a disturbance, and then every invariant.

Each disturbance comes by itself, and then all of them in an order that a seed says. What a blow falls upon depends on the machine; which blows
there are, and when, follows from `OUTLAST_CHAOS_SEED`, which a failure prints.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import postgres_strike
import pytest
from chaos_scene import SEED
from postgres_scene import Scene, play, staged

ALONE: dict[str, dict[str, object]] = {
    "strike_workers": {},
    "terminate_any": {},
    "terminate_commits": {"settings": {"commit_delay": "5000", "commit_siblings": "0"}},
    "terminate_waiting": {"standby": True},
    "restart": {},
    "fail_over": {"standby": True},
    "cancel_statements": {},
    "serialize": {},
    "limit_connections": {},
    "set_server_clock": {},
    "terminate_listeners": {},
}
SECONDS = 3.0


def disturbed(
    directory: Path, names: list[str], seed: int, seconds: float, *options: str, **stage: object
) -> None:
    """Play a scene with these disturbances, one after the other."""
    chance = random.Random(f"disturbed {seed}")
    with staged(directory, *options, **stage) as scene:  # type: ignore[arg-type]

        async def trouble(scene: Scene) -> None:
            for name in names:
                print(name)
                await getattr(postgres_strike, name)(scene, chance, seconds)

        count = asyncio.run(play(scene, trouble, seed=seed))
    print(f"{count} runs")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_lost_or_done_twice(tmp_path: Path, name: str) -> None:
    """Whatever strikes, every run that was accepted comes to its end, and nothing happens twice."""
    disturbed(tmp_path, [name], SEED, SECONDS, "--births", "4", **ALONE[name])
