"""Sagas in whole systems from seeds: what an aborted one did is undone once, newest first, whoever dies and whatever is lost.

OUTLAST_SAGA_SEEDS=10000 pytest tests/simulation/test_sagas.py      more of them
"""

from __future__ import annotations

import os

import pytest
from mutation import Break, broken
from saga_system import BrokenPromiseError, look_at

from outlast.replay.effects import Effects
from outlast.replay.saga import Sagas

CHUNK = 25
SEEDS = int(os.environ.get("OUTLAST_SAGA_SEEDS", "75"))
SOAK_SEEDS = int(os.environ.get("OUTLAST_SOAK_SEEDS", "100000")) // 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_undoes_what_is_to_be_undone(first: int) -> None:
    """Random workflows of sagas, declarations and compensations; deaths, cancels, lost answers, operators."""
    look_at(range(first, min(first + CHUNK, SEEDS)))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + SOAK_SEEDS, 500))
def test_many_more_seeds_undo_it(first: int) -> None:
    """The same for others."""
    look_at(range(first, min(first + 500, 1_000_000 + SOAK_SEEDS)))


MUTANTS = {
    "newest first": Break(Sagas, "_unwind", "in reversed(acts):", "in acts:"),
    "what is under way is waited for": Break(
        Sagas, "_unwind", "while act.fate is Fate.OPEN:", "while False:"
    ),
    "what an inner saga undoes is undone once": Break(
        Sagas, "_unwind", "act.fate in TO_UNDO", "act.fate not in (Fate.VOID, Fate.OPEN)"
    ),
    "a saga that returned keeps what it did": Break(
        Sagas, "leave", "if error is None:", "if False:"
    ),
    "nothing begins in a saga that is being undone": Break(
        Sagas, "_check_open", "if closed is not None:", "if False:"
    ),
    "what is noted of a saga is noted once": Break(
        Sagas, "settle", "self._notes.popleft()", "pass"
    ),
    "what an operator has undone is known to be": Break(
        Effects, "_compensated", "self._sagas.undone(effect.act, whole=succeeded)", "pass"
    ),
    "what it would have returned is handed on": Break(
        Sagas, "compensate", "bytes(entry.value)", "None"
    ),
    "the end says what was undone": Break(Sagas, "undone", "self._has_undone = True", "pass"),
}


# Seeds that see what the first sixty do not.
RARE = {"nothing begins in a saga that is being undone": (98, 114, 255)}


@pytest.mark.slow
@pytest.mark.without_always_replay("what the simulator sees by itself is the question")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_saga_is_found(name: str) -> None:
    """Each line is needed, and a seed says so soon."""
    with broken(MUTANTS[name]), pytest.raises(BrokenPromiseError):
        look_at(RARE.get(name, range(60)))
