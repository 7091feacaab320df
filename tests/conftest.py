"""Hypothesis profiles: `quick` by default, `soak` by `--hypothesis-profile=soak`. Neither judges by time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak",
    max_examples=10_000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quick")
