"""The simulator finds what it is there to find: lines of the engine are broken one after another, and a seed must fail soon."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from mutation import Break, broken

from outlast.replay import ledger, mailbox
from outlast.store import condition
from outlast.store.memory import MemoryStore
from outlast.testing.simulation.scenario import Scenario
from outlast.testing.simulation.search import Finding, search
from outlast.worker.effect import EffectRun
from outlast.worker.pilot import Pilot

MUTANTS: dict[str, tuple[int, set[int], tuple[Break, ...]]] = {
    "the epoch check": (
        300,
        {1, 7},
        (
            Break(
                MemoryStore,
                "_apply_owned",
                "if head.owner != change.worker or head.epoch != change.epoch:",
                "if False:",
            ),
        ),
    ),
    "the lease check": (
        300,
        {7},
        (Break(MemoryStore, "_apply_owned", "if not self._live(change.worker):", "if False:"),),
    ),
    "the single acceptance of a message": (
        100,
        {5},
        (Break(MemoryStore, "_put_message", "if known is not None:", "if False:"),),
    ),
    "the single delivery of a message": (
        100,
        {5},
        (Break(MemoryStore, "_write_owned", "item.consumed = True", "pass"),),
    ),
    "the order of delivery": (
        300,
        {5},
        (
            Break(
                MemoryStore,
                "mail",
                "tuple(item.stamped for item in self._unconsumed(found))",
                "tuple(item.stamped for item in reversed(self._unconsumed(found)))",
            ),
        ),
    ),
    "the order of delivery to the workflow": (
        300,
        {2},
        (Break(mailbox.Mailbox, "receive", "popleft()", "pop()"),),
    ),
    "the intent before the call": (
        100,
        {1},
        (
            Break(
                Pilot,
                "_intend",
                "self.post(Proposal(Rank.INTENT",
                "settle = SettleEffect(command.operation, command.name, leave.intent)\n"
                "    known = self._deck.registry.effects[command.name]\n"
                "    run = EffectRun(self, settle, known, fresh=True)\n"
                "    self._crew.begin(command.operation, run.run())\n"
                "    self.post(Proposal(Rank.INTENT",
            ),
        ),
    ),
    "the single use of a grant": (
        200,
        {6},
        (
            Break(condition, "spend_refusal", 'not in ("", spend.operation)', "in ()"),
            Break(ledger.EffectLedger, "find_cover", "if one.spent_by is None:", "if True:"),
        ),
    ),
    "the digest on the head": (
        100,
        {7},
        (
            Break(
                MemoryStore,
                "_apply_owned",
                "if change.digest and head.version == change.version + 1 and head.digest == change.digest:",
                "if False:",
            ),
        ),
    ),
    "the wait until a lost attempt can no longer act": (
        300,
        {3, 4},
        (Break(EffectRun, "_quiet", "if wait > timedelta(0):", "if False:"),),
    ),
    "the last look at the lease": (
        1000,
        {7, 1},
        (Break(Pilot, "check_lease", "if self._lost or not self._deck.lease.valid:", "if False:"),),
    ),
}


def found(budget: int, prepare=lambda scenario: scenario) -> Finding | None:
    """Search the first seeds, without making what is found small."""
    return search(range(budget), prepare=prepare, small=False)


def impatient(scenario: Scenario) -> Scenario:
    """Let what was sent arrive up to six times later than assumption A allows."""
    return replace(scenario, fates=replace(scenario.fates, late=0.3, patience=6.0))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_engine_is_found_within_so_many_seeds(name: str) -> None:
    """Each line is there for an invariant, and without it that one is seen to fail within the stated number of seeds."""
    budget, invariants, breaks = MUTANTS[name]
    with broken(*breaks):
        finding = found(budget)
    assert finding is not None
    print(f"{name}: seed {finding.seed}, {finding.violation}")
    assert finding.violation.invariant in invariants


def test_a_world_that_breaks_assumption_a_is_seen_to_do_harm() -> None:
    """The promises hold under the assumption only: requests that are carried out later than it says happen twice."""
    finding = found(200, impatient)
    assert finding is not None
    print(f"seed {finding.seed}, {finding.violation}")
    assert finding.violation.invariant in {3, 4}
