"""Thousands of whole systems, each from a seed: whatever happens to them, the invariants hold after every event.

OUTLAST_SEEDS=100000 pytest tests/simulation/test_seeds.py      more of them
OUTLAST_FIRST_SEED=7000000 …                                    others
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from mended import MENDED
from mutation import broken

from outlast.testing.simulation.play import play
from outlast.testing.simulation.scenario import Scenario
from outlast.testing.simulation.search import search

FIRST = int(os.environ.get("OUTLAST_FIRST_SEED", "0"))
SEEDS = int(os.environ.get("OUTLAST_SEEDS", "1000"))
AT_ONCE = SEEDS if "OUTLAST_SEEDS" in os.environ else 200
"""So many of them are always played, or all that are asked for; the others by a soak."""
SOAK_SEEDS = int(os.environ.get("OUTLAST_SOAK_SEEDS", "100000"))
CHUNK = 50
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))


def look_at(first: int, count: int) -> None:
    """Play so many seeds from the first one; one that fails is made small and printed."""
    finding = search(range(first, first + count))
    if finding is not None:
        pytest.fail(str(finding), pytrace=False)


def chunks() -> list[Any]:
    """Return the first seed of each test."""
    return [
        pytest.param(FIRST + one, marks=[pytest.mark.soak] if one >= AT_ONCE else [])
        for one in range(0, SEEDS, CHUNK)
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", chunks())
def test_every_seed_keeps_the_invariants(first: int) -> None:
    """Random shapes, people, faults and disturbances; results fit, journals replay, the world was changed as recorded."""
    look_at(first, min(CHUNK, FIRST + SEEDS - first))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + SOAK_SEEDS, 1000))
def test_many_more_seeds_keep_the_invariants(first: int) -> None:
    """The same for a hundred thousand others, or as many as are asked for."""
    look_at(first, 1000)


def test_every_kept_scenario_says_what_was_mended() -> None:
    """None is kept without the line that it stands for, and none is missing."""
    assert {path.stem for path in KEPT} == set(MENDED)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_failed_once_holds(path: Path) -> None:
    """Every scenario that has found a fault is kept, as small as it could be made."""
    played = play(Scenario.from_json(path.read_text()))
    assert played.violation is None, f"{played.violation}\n" + "\n".join(played.trace[-40:])


@pytest.mark.slow
@pytest.mark.without_always_replay("what the simulator sees by itself is the question")
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_failed_once_fails_again_without_its_mend(path: Path) -> None:
    """A kept scenario still comes to the place where it has found its fault."""
    invariant, mend = MENDED[path.stem]
    with broken(mend):
        violation = play(Scenario.from_json(path.read_text())).violation
    assert violation is not None, "it shows nothing any more; keep another one instead"
    assert violation.invariant == invariant
