"""The simulator finds what it is there to find: lines of the engine are broken one after another, and a seed must fail soon."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace
from mutation import Break, broken

from outlast.client.client import Client
from outlast.replay import ledger, mailbox
from outlast.replay.machine import Machine
from outlast.store import condition
from outlast.store.memory import MemoryStore
from outlast.store.moment import EPOCH
from outlast.testing.fault import Faults
from outlast.testing.simulation.scenario import Disturbance, Scenario
from outlast.testing.simulation.search import Finding, search
from outlast.worker import pilot
from outlast.worker.delivery import Delivery
from outlast.worker.effect import EffectRun
from outlast.worker.lease import Lease
from outlast.worker.pilot import Pilot
from outlast.worker.wait import Waits
from outlast.worker.worker import Worker
from outlast.worker.writer import Writer

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.without_always_replay("what the simulator sees by itself is the question"),
]

MUTANTS: dict[str, tuple[int, set[int], tuple[Break, ...]]] = {
    "the epoch check": (
        50,
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
        60,
        {5},
        (Break(MemoryStore, "_put_message", "if known is not None:", "if False:"),),
    ),
    "the single delivery of a message": (
        10,
        {5},
        (Break(MemoryStore, "_write_owned", "item.consumed = True", "pass"),),
    ),
    "the order of delivery": (
        10,
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
        10,
        {2},
        (Break(mailbox.Mailbox, "receive", "popleft()", "pop()"),),
    ),
    "the intent before the call": (
        10,
        {1, 3},
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
        100,
        {6},
        (
            Break(condition, "spend_refusal", 'not in ("", spend.operation)', "in ()"),
            Break(ledger.EffectLedger, "find_cover", "if one.spent_by is None:", "if True:"),
        ),
    ),
    "the digest on the head": (
        40,
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
        10,
        {3, 4},
        (Break(EffectRun, "_quiet", "if wait > timedelta(0):", "if False:"),),
    ),
    "the last look at the lease": (
        200,
        {7, 1},
        (Break(Pilot, "check_lease", "if self._lost or not self._deck.lease.valid:", "if False:"),),
    ),
    "a lease that counts from the sending": (
        150,
        {1, 7},
        (
            Break(
                Lease, "sending", "sent + self._seconds", "self._clock.monotonic() + self._seconds"
            ),
        ),
    ),
    "an unknown verdict is asked about again": (
        80,
        {1, 2, 5, 7},
        (
            Break(
                Writer,
                "_send",
                "if isinstance(verdict, Unknown):",
                "if isinstance(verdict, Unknown) and isinstance(one.change, RunChange):\n"
                "            verdict = Applied(EPOCH)\n"
                "        if isinstance(verdict, Unknown):",
                {"EPOCH": EPOCH},
            ),
        ),
    ),
    "what a former owner may have begun": (
        150,
        {3, 4},
        (Break(Pilot, "_carry_out", "fresh = operation in self._intended_here", "fresh = True"),),
    ),
    "a next attempt that is announced": (
        1500,
        {3, 4, 7},
        (Break(EffectRun, "_attempt", "await self._announce()", "pass"),),
    ),
    "an effect that no cancel interrupts": (
        1000,
        {1, 3, 4},
        (Break(Machine, "_apply_intent", "future.uncancellable = True", "pass"),),
    ),
    "one success of equal calls": (
        150,
        {3, 4},
        (
            Break(
                ledger.EffectLedger,
                "number",
                "if calls is not None and calls.successes and not request.repeats:",
                "if False:",
            ),
        ),
    ),
    "keys of a generation of their own": (
        10,
        {3},
        (
            Break(
                Client,
                "_start",
                "namespace(run.tenant, run.run_id, generation)",
                "namespace(run.tenant, run.run_id, 1)",
            ),
        ),
    ),
    "failed attempts are counted across a crash": (
        60,
        {1},
        (Break(pilot, "run_step", "failures = row.failures if row else 0", "failures = 0"),),
    ),
    "messages in order although the clock is set back": (
        400,
        {5},
        (
            Break(
                Pilot,
                "_gather",
                "latest = proposal.at = max(proposal.at, latest or proposal.at)",
                "pass",
            ),
        ),
    ),
    "no end with unread messages": (
        400,
        {5},
        (Break(MemoryStore, "_refusal", "if not unread <= set(change.consumed):", "if False:"),),
    ),
    "an approval that was decided does not expire": (
        200,
        {1, 5},
        (Break(condition, "expiry_refusal", "if row.state in (APPROVED, DENIED):", "if False:"),),
    ),
    "a grant that is used in time": (
        200,
        {6},
        (Break(condition, "spend_refusal", "if now >= row.put.use_by:", "if False:"),),
    ),
    "timers that do not fire early": (
        60,
        {2},
        (
            Break(
                Waits,
                "take_due",
                "if timer.due <= now:",
                "if timer.due - timedelta(seconds=1) <= now:",
                {"timedelta": timedelta},
            ),
        ),
    ),
    "a live run that computes what its replay does": (
        50,
        {2},
        (
            Break(
                Delivery,
                "deliver",
                "self._machine.deliver(turn[0], turn[1])",
                "self._machine.deliver(turn[0], turn[1] + timedelta(seconds=not taking_up))",
                {"timedelta": timedelta},
            ),
        ),
    ),
    "a claim or birth whose answer was lost": (
        30,
        {2},
        (Break(Worker, "_look", "await self._find_owned()", "self._unsure = False"),),
    ),
    "owners that were lost are counted": (
        60,
        {0},
        (Break(MemoryStore, "_bury", "lapses=1", "lapses=0"),),
    ),
}


def found(budget: int, prepare=lambda scenario: scenario) -> Finding | None:
    """Search the first seeds, without making what is found small."""
    return search(range(budget), prepare=prepare, small=False)


def impatient(scenario: Scenario) -> Scenario:
    """Let what was sent arrive up to six times later than assumption A allows."""
    return replace(scenario, fates=replace(scenario.fates, late=0.3, patience=6.0))


def strained(scenario: Scenario) -> Scenario:
    """Let leases be short, and threads be rare: what is looked at only once, at the last moment, is needed then."""
    return replace(scenario, lease=1.5, crowded=3.0)


def frozen(scenario: Scenario) -> Scenario:
    """Let the first worker stand still, for longer than its lease, when it has just written an intent and does not know it.

    The store is often away, so that no renewal tells it either.
    """
    freeze = Disturbance("freeze", 0.0, 0, 20.0, "intent")
    return replace(scenario, disturbances=(freeze,), faults=Faults(unavailable=0.5))


PREPARED = {
    "the last look at the lease": strained,
    "a lease that counts from the sending": frozen,
    "a grant that is used in time": strained,
}
"""Those that are searched in scenarios of a kind."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_engine_is_found_within_so_many_seeds(name: str) -> None:
    """Each line is there for an invariant, and without it that one is seen to fail within the stated number of seeds."""
    budget, invariants, breaks = MUTANTS[name]
    with broken(*breaks):
        finding = found(budget, PREPARED.get(name, lambda scenario: scenario))
    assert finding is not None
    print(f"{name}: seed {finding.seed}, {finding.violation}")
    assert finding.violation.invariant in invariants


def test_a_world_that_breaks_assumption_a_is_seen_to_do_harm() -> None:
    """The promises hold under the assumption only: requests that are carried out later than it says happen twice."""
    finding = found(200, impatient)
    assert finding is not None
    print(f"seed {finding.seed}, {finding.violation}")
    assert finding.violation.invariant in {3, 4}
