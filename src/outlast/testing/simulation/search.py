"""Looks for a seed that fails, and says all that is needed to see it fail again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import msgspec

from outlast.testing.simulation.invariant import InvariantViolatedError
from outlast.testing.simulation.play import play
from outlast.testing.simulation.scenario import Scenario, draw
from outlast.testing.simulation.shrink import shrink

_LAST_LINES = 40


class Finding(msgspec.Struct, frozen=True):
    """A seed that fails.

    Args:
        tried: How many seeds were played until then, this one included.
        scenario: The smallest scenario found that fails in the same way.
        violation: What that one violates.
        trace: What was asked of the store in it.
    """

    seed: int
    tried: int
    scenario: Scenario
    violation: InvariantViolatedError
    trace: list[str]

    def __str__(self) -> str:
        """Say what failed and how to play it again."""
        return "\n".join(
            [
                f"seed {self.seed}, Python {sys.version_info.major}.{sys.version_info.minor}: {self.violation}",
                "the smallest scenario that fails so, for Scenario.from_json:",
                self.scenario.to_json(),
                f"the last {_LAST_LINES} lines of its trace:",
                *self.trace[-_LAST_LINES:],
            ]
        )


def search(
    seeds: Iterable[int],
    *,
    prepare: Callable[[Scenario], Scenario] = lambda one: one,
    small: bool = True,
) -> Finding | None:
    """Play the scenarios of these seeds until one fails.

    Args:
        prepare: Changes each scenario before it is played.
        small: Make the failing scenario small.
    """
    for tried, seed in enumerate(seeds, start=1):
        scenario = prepare(draw(seed))
        played = play(scenario)
        if played.violation is None:
            continue
        invariant = played.violation.invariant
        if small:
            scenario = shrink(scenario, lambda one, like=invariant: _violates(one, like))
            played = play(scenario)
        assert played.violation is not None
        return Finding(seed, tried, scenario, played.violation, played.trace)
    return None


def _violates(scenario: Scenario, invariant: int) -> bool:
    violation = play(scenario).violation
    return violation is not None and violation.invariant == invariant
