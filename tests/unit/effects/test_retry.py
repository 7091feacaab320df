"""The retry policy: its gaps are pure arithmetic, its declarations are checked."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate

import pytest

from outlast.effects.retry import NEVER_RETRIED, ONCE, RetryPolicy
from outlast.errors import DefinitionError

SECOND = timedelta(seconds=1)


def gaps(policy: RetryPolicy, count: int) -> list[float]:
    """Return the first waits in seconds."""
    return [policy.gap(failures).total_seconds() for failures in range(1, count + 1)]


def test_default_gaps():
    """Doubling from one second to a hundred, then a hundred for ever."""
    assert gaps(RetryPolicy(), 10) == [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]
    assert gaps(RetryPolicy(), 10_000)[-1] == 100


def test_seven_retries_take_127_seconds():
    """The waits before the eighth attempt."""
    assert sum(gaps(RetryPolicy(), 7)) == 127


def test_an_hour_holds_42_attempts():
    """Attempts that take no time: the last one in an hour starts at 3,527 s, and the next would be too late."""
    starts = [0, *accumulate(gaps(RetryPolicy(), 60))]
    within = [start for start in starts if start <= 3600]
    assert (len(within), within[-1], starts[42]) == (42, 3527, 3627)


def test_pull_request_policy():
    """Two seconds, doubling, six attempts: 62 seconds of waiting."""
    policy = RetryPolicy(timedelta(seconds=2), 2.0, timedelta(seconds=120), 6)
    assert gaps(policy, 5) == [2, 4, 8, 16, 32]
    assert sum(gaps(policy, 5)) == 62
    assert [policy.allows_another(failures) for failures in (1, 5, 6, 7)] == [
        True,
        True,
        False,
        False,
    ]


def test_attempts_without_limit_and_once():
    """Zero is no limit; an effect that nothing makes safe is attempted once."""
    assert RetryPolicy().allows_another(10**9)
    assert not ONCE.allows_another(1)


def test_constant_and_fractional_waits():
    """A coefficient of one keeps the wait; a fraction of a second is a wait like any other."""
    assert gaps(RetryPolicy(SECOND, 1.0), 3) == [1, 1, 1]
    assert gaps(RetryPolicy(timedelta(milliseconds=500), 1.5), 3) == [0.5, 0.75, 1.125]


@pytest.mark.parametrize("coefficient", [2, 2.0, 1e300, float("inf")])
def test_overflow_is_the_longest_wait(coefficient):
    """However many failures and whatever the factor, the wait is the longest and is found at once."""
    assert RetryPolicy(SECOND, coefficient).gap(10**9) == 100 * SECOND
    longest = RetryPolicy(timedelta.max, coefficient)
    assert timedelta.max / 2 < longest.gap(1) <= longest.gap(10**9) <= timedelta.max


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_interval": timedelta(0)},
        {"initial_interval": -SECOND},
        {"backoff_coefficient": 0.5},
        {"backoff_coefficient": float("nan")},
        {"maximum_interval": timedelta(milliseconds=1)},
        {"maximum_attempts": -1},
        {"non_retryable_error_types": "ValueError"},
        {"non_retryable_error_types": (ValueError,)},
        {"non_retryable_error_types": ["ValueError"]},
    ],
)
def test_policies_that_cannot_work_are_refused(wrong):
    """Each bad value is named at the declaration."""
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


def test_programming_errors_are_never_retried():
    """Another attempt would meet the same line; a type of that name in a module is something else."""
    policy = RetryPolicy()
    assert not any(policy.retries(name) for name in NEVER_RETRIED)
    assert policy.retries("ValueError")
    assert policy.retries("some.module.TypeError")


def test_non_retryable_types_are_named_with_or_without_module():
    """A name without module means every type of that name; with one, that type only."""
    policy = RetryPolicy(non_retryable_error_types=("HTTPError", "a.ParseError"))
    assert [policy.retries(name) for name in ("x.HTTPError", "HTTPError", "a.ParseError", "b.ParseError")] == [
        False, False, False, True,
    ]  # fmt: skip
