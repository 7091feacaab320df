"""Scenarios as data: equal ones play equally, in every process; small ones stay as wrong as the big ones they come from."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from mutation import Break, broken

from outlast.store import judge_owned
from outlast.testing.simulation.play import play
from outlast.testing.simulation.scenario import Scenario, draw
from outlast.testing.simulation.search import search

pytestmark = pytest.mark.slow

SEEDS = range(40, 60)
DIGESTS = """
import hashlib, json, logging, sys
from outlast.testing.simulation.play import play
from outlast.testing.simulation.scenario import draw
logging.getLogger("outlast").setLevel(logging.ERROR)
traces = [play(draw(seed)).trace for seed in range(40, 60)]
print(json.dumps([hashlib.sha256("\\n".join(trace).encode()).hexdigest() for trace in traces]))
"""


def digest(trace: list[str]) -> str:
    """Return a trace in one word."""
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_replays_to_the_letter_in_another_process(hash_seed: str) -> None:
    """Neither the hashes of text, nor addresses, nor what was played before, are part of a trace."""
    there = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        timeout=100,
    )
    here = [digest(play(draw(seed)).trace) for seed in SEEDS]
    assert json.loads(there.stdout) == here
    assert len(set(here)) == len(here)


def test_a_scenario_is_text_and_back() -> None:
    """What is printed is all that is needed to play it again."""
    for seed in range(200):
        scenario = draw(seed)
        assert Scenario.from_json(scenario.to_json()) == scenario


def test_what_fails_is_made_small() -> None:
    """The smallest scenario fails in the same way, says so with its seed, and has not much left in it."""
    with broken(Break(judge_owned, "_write_inbox", "consumed=True", "consumed=False")):
        finding = search(range(100))
        assert finding is not None
        big = draw(finding.seed)
        assert len(finding.scenario.to_json()) < len(big.to_json()) / 2
        again = play(Scenario.from_json(finding.scenario.to_json()))
        assert again.violation is not None
        assert again.violation.invariant == finding.violation.invariant == 5
        assert again.trace == finding.trace
    assert f"seed {finding.seed}" in str(finding)
    assert finding.scenario.to_json() in str(finding)
    assert play(finding.scenario).violation is None
