"""What each kept scenario has found: the lines that mend it. Without them the scenario must fail."""

from __future__ import annotations

from mutation import Break

from outlast.testing.simulation.people import People
from outlast.worker import proposal
from outlast.worker.effect import EffectRun
from outlast.worker.pilot import Pilot
from outlast.worker.relay import Relay

MENDED: dict[str, tuple[int, Break]] = {
    "a_fork_is_given_back_before_it_waits_for_its_origin": (
        3,
        Break(Pilot, "_not_begun", "& self._intended_here - begun", "& self._intended_here"),
    ),
    "a_child_that_a_fork_has_started_first": (
        2,
        Break(
            Relay, "_start", "return started, await self._watch(sender, item)", "return (started,)"
        ),
    ),
    "a_restart_whose_answer_was_lost": (
        3,
        Break(
            People,
            "_start",
            "if not again or self._sim.invariants.runs[run].incarnation == before:",
            "if True:",
        ),
    ),
    "an_outcome_that_comes_while_a_thread_is_waited_for": (
        1,
        Break(EffectRun, "_begin", "not self._bridge.is_open(self._operation)", "False"),
    ),
    "row_beside_an_outcome": (
        1,
        Break(
            proposal, "_rows_of_settled", "one.rank is Rank.ROW and one.guard in settled", "False"
        ),
    ),
    "the_clock_goes_back_between_two_looks_at_the_mail": (
        5,
        Break(Pilot, "_read_mail", "in self._proposals if one.consumed and one.at", "in ()"),
    ),
}
"""For each kept scenario, by the name of its file: the invariant that it sees broken, and how to undo the mend."""
