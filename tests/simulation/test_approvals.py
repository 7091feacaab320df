"""People in whole systems from seeds: no effect begins on a yes that does not hold, whoever dies and whatever is lost (invariant 6).

OUTLAST_APPROVAL_SEEDS=10000 pytest tests/simulation/test_approvals.py      more of them
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

import pytest
from approval_system import BrokenPromiseError, Shape, draw_often, look_at
from mutation import Break, broken

from outlast.client.approval import Approvals
from outlast.policy.binding import RoleBinding
from outlast.replay import asking, effects
from outlast.store import condition
from outlast.store.sticky import StickyRow
from outlast.worker import inbox
from outlast.worker import sticky as worker_sticky
from outlast.worker.authorised import Authorised
from outlast.worker.gate import Gate
from outlast.worker.permit import Finder
from outlast.worker.pilot import Pilot
from outlast.worker.sticky import Sticking

CHUNK = 20
SEEDS = int(os.environ.get("OUTLAST_APPROVAL_SEEDS", "60"))
OFTEN_SEEDS = SEEDS // 5
FEW = 40
SOAK_SEEDS = int(os.environ.get("OUTLAST_SOAK_SEEDS", "100000")) // 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_begins_nothing_without_a_yes(first: int) -> None:
    """Random workflows, terms, people, roles and stops; deaths, pauses, lost and repeated messages; and all of that happens."""
    happened = look_at(range(first, min(first + CHUNK, SEEDS)))
    assert all(happened[one] for one in ("intended", "asked", "yes", "no", "edit", "stop"))


@pytest.mark.timeout(600)
def test_every_seed_begins_nothing_on_what_does_not_stick() -> None:
    """Decisions that stick, so far, so often, so long, and are taken back; and all of that happens."""
    happened = look_at(range(OFTEN_SEEDS), draw_often)
    assert all(happened[one] for one in ("sticky", "sticky no", "answered", "taken back"))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + SOAK_SEEDS, 500))
def test_many_more_seeds_begin_nothing(first: int) -> None:
    """The same for others."""
    look_at(range(first, min(first + 500, 1_000_000 + SOAK_SEEDS)))


ALL: Shape = ["gather", *(["act", one, 20] for one in ("plain", "two", "rungs", "fact", "free"))]
TWO: Shape = ["gather", *(["act", "two", one] for one in (5, 20, 45, 60))]
PLAIN: Shape = ["gather", *(["act", "plain", one] for one in (5, 20, 45, 60))]
FACTS: Shape = ["gather", *(["act", "fact", one] for one in (5, 20, 45, 60))]
RUNGS: Shape = ["gather", *(["act", "rungs", one] for one in (5, 20, 45, 60))]
CODE: Shape = ["gather", *(["ask", "free", one, 1, 0] for one in (5, 45, 60, 60))]
STORE_MATCH = Break(
    condition, "spend_refusal", "covers[spend.cover].match_sha256 != spend.match_sha256", "False"
)
MUTANTS: dict[str, tuple[Shape | Callable[[int], Shape] | None, Sequence[Break]]] = {
    # What the store decides
    "a decision is on the hash that is asked": (
        ALL,
        [
            Break(
                condition,
                "_decision_refusal",
                "decision.seen_sha256 != row.put.subject_sha256",
                "False",
            )
        ],
    ),
    "nothing is decided when its time is over": (
        RUNGS,
        [Break(condition, "_decision_refusal", "or now >= row.put.expires_at", "")],
    ),
    "nothing is decided twice": (
        ALL,
        [Break(condition, "_decision_refusal", "word := _OVER.get(row.state)", 'word := ""')],
    ),
    "nobody says yes twice": (
        TWO,
        [
            Break(
                condition, "_person_refusal", '"voted" if _persons(decision) & voted else ""', '""'
            )
        ],
    ),
    "a delegate says yes for his delegator": (
        TWO,
        [Break(condition, "_persons", '{decision.by} | {decision.behalf} - {""}', "{decision.by}")],
    ),
    "who is barred says no yes": (
        TWO,
        [Break(condition, "is_kept_out", "kept_out = set(barred)", "kept_out = set[str]()")],
    ),
    "who started it says no yes": (
        TWO,
        [Break(condition, "is_kept_out", "if four_eyes:", "if False:")],
    ),
    "so many have to say yes": (
        TWO,
        [Break(condition, "_is_enough", "len(row.votes) >= max(quorum, 1)", "len(row.votes) >= 1")],
    ),
    "nothing begins when the time to begin is over": (
        None,
        [
            Break(condition, "spend_refusal", "now >= row.put.use_by", "False"),
            Break(Finder, "_check_time", "use_by is not None and now >= use_by", "False"),
        ],
    ),
    "roles are as they were found": (
        ALL,
        [Break(condition, "_unauthorised", "if broken is not None", "if False")],
    ),
    "nothing was stopped since it was asked": (
        TWO,
        [Break(condition, "_stopped", "return None if broken is None", "return None if True")],
    ),
    # What is found out
    "what is stopped does not begin": (
        ALL,
        [Break(Finder, "_unstopped", "(error := _stopped(control, call)) is not None", "False")],
    ),
    "a later attempt is stopped, too": (
        ALL,
        [
            Break(
                Finder,
                "_again",
                "control = await self._unstopped(call, effect)",
                "control = await self._control()",
            )
        ],
    ),
    "who approved holds the role": (
        ALL,
        [
            Break(
                Authorised,
                "_read",
                "how = voter and roles.holds(voter, role, self._workflow, now)",
                "how = Held()",
            )
        ],
    ),
    "a role has an end": (ALL, [Break(RoleBinding, "counts", "and not is_over", "")]),
    "a rule that denies is obeyed": (
        PLAIN,
        [
            Break(
                Finder,
                "_judge",
                "decide(policy, call",
                "decide(dataclasses.replace(policy, rules=[one for one in policy.rules if one.effect != 'deny']), call",
                {"dataclasses": dataclasses},
            )
        ],
    ),
    "whose delegate decides is said": (
        TWO,
        [Break(Approvals, "_decide", "behalf=said.behalf", 'behalf=""')],
    ),
    # The gate
    "what is declared is asked": (
        ALL,
        [Break(Gate, "_covered", "if not self._is_granted(demand, command, asked):", "if False:")],
    ),
    "a yes on lesser terms is none": (
        CODE,
        [
            Break(
                Gate, "_is_granted", "and terms_of(one).is_as_strict_as(demand.terms, one.rung)", ""
            )
        ],
    ),
    "the hash is that of what would run": (
        PLAIN,
        [
            Break(
                Gate,
                "_covered",
                "action = found.action.action_sha256",
                "action = command.action_sha256",
            ),
            STORE_MATCH,
        ],
    ),
    "what is granted is spent": (
        ALL,
        [
            Break(
                Gate,
                "_covered",
                "spends += [GrantSpend(one, 0, command.operation, action) for one in asked]",
                "pass",
            )
        ],
    ),
    # What follows from an edit, and from no answer
    "what was edited is covered": (
        PLAIN,
        [
            Break(
                effects,
                "edited",
                "replace(cover, action_sha256=made[place].action_sha256) if place in made else cover",
                "cover",
            )
        ],
    ),
    "an edit is no yes where another one has to say it": (
        TWO,
        [Break(effects, "edited", 'or terms_of(former).edits != "yes"', "")],
    ),
    "an edit is no yes to facts": (
        FACTS,
        [Break(effects, "edited", "former.preconditions or ", "")],
    ),
    "an editor does not approve what he has made of it": (
        TWO,
        [
            Break(
                effects,
                "edited",
                "barred=tuple(dict.fromkeys((*former.barred, *persons)))",
                "barred=former.barred",
            )
        ],
    ),
    "no vote goes on to the next rung": (
        RUNGS,
        [
            Break(
                asking,
                "_again",
                "requesters=former.requesters,",
                "requesters=former.requesters, votes=former.votes,",
            )
        ],
    ),
    "an edit gives no more time": (
        PLAIN,
        [Break(asking, "_again", "None if is_later else former.use_by", "None")],
    ),
    "the store says what came of a decision": (
        TWO,
        [
            Break(
                inbox,
                "decided",
                'stamped.message.result or ("approved" if decision.approved else "denied")',
                '("approved" if decision.approved else "denied")',
            )
        ],
    ),
    # What sticks
    "what is taken back answers nothing": (
        draw_often,
        [Break(StickyRow, "sticks", "self.revoked_at is None and", "")],
    ),
    "what sticks has an end": (
        draw_often,
        [
            Break(
                StickyRow,
                "sticks",
                "self.expires_at is not None and now >= self.expires_at",
                "False",
            )
        ],
    ),
    "uses are counted": (draw_often, [Break(condition, "used", "row.uses - 1", "row.uses")]),
    "a no outvotes a yes": (draw_often, [Break(Sticking, "of", "if noes:", "if False:")]),
    "what is taken back lets nothing begin": (
        draw_often,
        [Break(Sticking, "check", "if not rows or rows[0].revoked_at is not None:", "if False:")],
    ),
    "nothing was taken back since it was looked at": (
        draw_often,
        [
            Break(
                Finder,
                "_with_sticky",
                "authority=(*permit.authority, guard)",
                "authority=permit.authority",
            )
        ],
    ),
    "arguments are those that were named": (
        draw_often,
        [Break(worker_sticky, "_asks_for", "if any(", "if False and any(")],
    ),
    # Attempts
    "what others may have begun is not begun anew": (
        TWO,
        [
            Break(
                Pilot,
                "_carry_out",
                "fresh = operation in self._intended_here and lost is None",
                "fresh = True",
            )
        ],
    ),
}

FIRST = {
    "who approved holds the role": 33,
    "a delegate says yes for his delegator": 13,
    "who is barred says no yes": 36,
    "a decision is on the hash that is asked": 11,
    "a later attempt is stopped, too": 33,
    "nobody says yes twice": 115,
    "roles are as they were found": 29,
    "what others may have begun is not begun anew": 107,
    "nothing begins when the time to begin is over": 83,
    "nothing was stopped since it was asked": 69,
    "a no outvotes a yes": 36,
    "what is taken back lets nothing begin": 4,
    "nothing was taken back since it was looked at": 70,
}
"""The seed from which on some are looked for: those before it show nothing."""


@pytest.mark.slow
@pytest.mark.without_always_replay("what the simulator sees by itself is the question")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_check_is_found(name: str) -> None:
    """Each line is needed, and a seed says so soon."""
    (shape, breaks), first = MUTANTS[name], FIRST.get(name, 0)
    with broken(*breaks), pytest.raises(BrokenPromiseError) as caught:
        look_at(range(first, first + FEW), shape)
    print(f"{name}: {caught.value}")


@pytest.mark.parametrize("shape", [ALL, TWO, PLAIN, FACTS, RUNGS, CODE], ids=str)
def test_what_is_whole_holds_in_runs_of_each_shape(shape: Shape) -> None:
    """What is found in such runs comes from the broken line."""
    look_at(range(3), shape)
