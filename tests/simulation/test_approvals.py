"""People in whole systems from seeds: no effect begins on a yes that does not hold, whoever dies and whatever is lost (invariant 6).

OUTLAST_APPROVAL_SEEDS=10000 pytest tests/simulation/test_approvals.py      more of them
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from approval_system import BrokenPromiseError, look_at
from mutation import Break, broken

from outlast.client.approval import Approvals
from outlast.policy import binding
from outlast.replay import asking
from outlast.replay.machine import Machine
from outlast.store import condition
from outlast.worker import decision, permit, request
from outlast.worker.authorised import Authorised
from outlast.worker.clearance import Clearance
from outlast.worker.effect import EffectRun
from outlast.worker.gate import Gate
from outlast.worker.permit import Finder

CHUNK = 20
SEEDS = int(os.environ.get("OUTLAST_APPROVAL_SEEDS", "60"))
SOAK_SEEDS = int(os.environ.get("OUTLAST_SOAK_SEEDS", "100000")) // 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_begins_nothing_without_a_yes(first: int) -> None:
    """Random workflows, terms, people, roles and stops; deaths, pauses, lost and repeated messages; and all of that happens."""
    happened = look_at(range(first, min(first + CHUNK, SEEDS)))
    assert all(happened[one] for one in ("intended", "asked", "yes", "no", "edit", "stop"))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + SOAK_SEEDS, 500))
def test_many_more_seeds_begin_nothing(first: int) -> None:
    """The same for others."""
    look_at(range(first, min(first + 500, 1_000_000 + SOAK_SEEDS)))
