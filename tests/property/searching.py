"""How long a law is searched, as a part of the active profile: `make soak` lengthens every search alike."""

from __future__ import annotations

from hypothesis import settings


def examples(factor: float = 1.0) -> settings:
    """Return settings with so many times the examples of the active profile, which has 35 by default."""
    return settings(max_examples=max(1, round(settings().max_examples * factor)))


def machine(factor: float, steps: float) -> settings:
    """Return the settings of a state machine, with so many times the examples and steps (50 by default) of the profile."""
    active = settings()
    return settings(
        examples(factor), stateful_step_count=max(1, round(active.stateful_step_count * steps))
    )
