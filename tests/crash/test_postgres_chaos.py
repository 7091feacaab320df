"""Worker processes on a PostgreSQL server, runs in flight, a disturbance, and then every invariant.

Each disturbance comes by itself, and then several in an order that a seed says, while workers die and stand still all the time. What a blow
falls upon depends on the machine; which blows there are, and when, follows from `OUTLAST_CHAOS_SEED`, which a failure prints.

In each run of the tests a disturbance by itself has 30 runs at once and those that are started meanwhile, the mixture 200; `make slow` and
`make soak` have more.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import postgres_strike
import pytest
from chaos_scene import SEED
from postgres_scene import Scene, play, staged

SLOW_COMMITS = {"commit_delay": "5000", "commit_siblings": "0"}
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "workers are killed and stand still": ("strike_workers", {}),
    "sessions are ended": ("terminate_any", {}),
    "sessions are ended in COMMIT": ("terminate_commits", {"settings": SLOW_COMMITS}),
    "sessions are ended while a standby is waited for": ("terminate_waiting", {"standby": True}),
    "the server is stopped, and killed": ("restart", {}),
    "the primary is killed, the standby promoted": ("fail_over", {"standby": True}),
    "statements are cancelled": ("cancel_statements", {}),
    "isolation and deadlocks": ("serialize", {"query": "pooler=transaction"}),
    "no more connections": ("limit_connections", {}),
    "clocks of machines are wrong": ("strike_workers", {"offs": (60.0, -60.0)}),
    "the server's clock is set": ("set_server_clock", {}),
    "the session that listens is ended": ("terminate_listeners", {}),
    "no notifications": ("nothing", {"query": "listen=off"}),
}
MIXED = (
    *("terminate_any", "terminate_commits", "terminate_waiting", "restart", "cancel_statements"),
    *("serialize", "limit_connections", "set_server_clock", "terminate_listeners"),
)


def disturbed(
    directory: Path, names: list[str], seconds: float, seed: int, stage: dict[str, Any], **how: Any
) -> None:
    """Play a scene with these disturbances, one after the other."""
    with staged(directory, "--births", "4", **stage) as scene:

        async def trouble(scene: Scene) -> None:
            # By itself each one strikes; among others there may be nobody to strike.
            assert 0 not in await in_order(scene, names, seconds, seed)

        count = asyncio.run(play(scene, trouble, seed=seed, **how))
    print(f"{count} runs")


async def in_order(scene: Scene, names: list[str], seconds: float, seed: int) -> list[int | None]:
    """Let disturbances come one after the other; return how many each has struck, where it counts that."""
    struck: list[int | None] = []
    for number, name in enumerate(names):
        print(name)
        chance = random.Random(f"disturbed {seed} {number}")
        struck.append(await getattr(postgres_strike, name)(scene, chance, seconds))
    return struck


def mixed(directory: Path, count: int, seconds: float, seed: int, **how: Any) -> None:
    """Play a scene with a seed's choice of disturbances, while workers are struck; at last the primary is killed."""
    chance = random.Random(f"mixed {seed}")
    names = [*chance.sample(MIXED, count), "fail_over"]
    stage = {"standby": True, "settings": SLOW_COMMITS, "offs": (0.0, 60.0, -60.0)}
    with staged(directory, "--births", "4", **stage) as scene:

        async def trouble(scene: Scene) -> None:
            await asyncio.gather(
                in_order(scene, names, seconds, seed),
                postgres_strike.strike_workers(scene, chance, seconds * len(names)),
            )

        played = asyncio.run(play(scene, trouble, seed=seed, **how))
    print(f"{played} runs")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ALONE)
def test_one_disturbance(tmp_path: Path, name: str) -> None:
    """Whatever strikes, every run that was accepted comes to its end, and nothing happens twice."""
    disturbance, stage = ALONE[name]
    disturbed(tmp_path, [disturbance], 1.2, SEED, stage, workers=2, at_once=30)


@pytest.mark.timeout(240)
def test_some_disturbances(tmp_path: Path) -> None:
    """The same, when they come one upon the other."""
    mixed(tmp_path, 2, 1.5, SEED, workers=3, at_once=200)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ALONE)
def test_one_disturbance_of_hundreds_of_runs(tmp_path: Path, name: str) -> None:
    """The same as for few."""
    disturbance, stage = ALONE[name]
    disturbed(tmp_path, [disturbance], 5.0, SEED, stage, workers=3, at_once=250)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(10))
def test_all_disturbances(tmp_path: Path, number: int) -> None:
    """The same for longer, with more of everything."""
    mixed(tmp_path, len(MIXED), 6.0, SEED + number, workers=4, at_once=300)
