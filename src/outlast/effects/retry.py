"""How often an attempt is repeated, and how long to wait between: a policy as data, pure arithmetic.

The defaults give gaps of 1, 2, 4, 8, 16, 32, 64, 100, 100 … seconds without end, as engines in this field have them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from msgspec import Struct

from outlast.errors import DefinitionError

NEVER_RETRIED = (
    "TypeError",
    "NameError",
    "UnboundLocalError",
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "AssertionError",
    "NotImplementedError",
    "SyntaxError",
    "SystemExit",
)
"""Programming errors, and a body that wants to end its process: another attempt would meet the same line."""

_UNCAPPED = 100


class RetryPolicy(Struct, frozen=True):
    """When to try again.

    Args:
        initial_interval: Wait after the first failure.
        backoff_coefficient: Factor from one wait to the next, at least 1.
        maximum_interval: No wait is longer; 100 times the first when not given.
        maximum_attempts: No more attempts than this; 0 for no limit.
        non_retryable_error_types: Names of exception types that end the attempts at once, as `ValueError` or `httpx.HTTPError`.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        tries = 0

        @outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(milliseconds=1), maximum_attempts=3))
        async def flaky() -> int:
            global tries
            tries += 1
            if tries < 3:
                raise ConnectionError("try again")
            return tries

        @outlast.workflow
        async def insist() -> int:
            return await flaky()

        async with outlast.open("memory://") as app:
            assert await app.run(insist(), id="i") == 3
        ```
    """

    initial_interval: timedelta = timedelta(seconds=1)
    backoff_coefficient: float = 2.0
    maximum_interval: timedelta | None = None
    maximum_attempts: int = 0
    non_retryable_error_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        for name in ("initial_interval", "maximum_interval"):
            time: Any = getattr(self, name)
            if not isinstance(time, timedelta) and (time is not None or name == "initial_interval"):
                raise _bad(f"{name} must be a timedelta, as timedelta(seconds=1)")
        if self.initial_interval <= timedelta(0):
            raise _bad("initial_interval must be longer than nothing")
        if not self.backoff_coefficient >= 1:
            raise _bad("backoff_coefficient must be at least 1")
        if self.maximum_interval is not None and self.maximum_interval < self.initial_interval:
            raise _bad("maximum_interval must not be shorter than initial_interval")
        if self.maximum_attempts < 0:
            raise _bad("maximum_attempts must be 0 (no limit) or more")
        names: Any = self.non_retryable_error_types
        if not isinstance(names, tuple) or not all(
            type(one) is str for one in cast("tuple[Any, ...]", names)
        ):
            raise _bad("non_retryable_error_types must be a tuple of names, as ('ValueError',)")

    def gap(self, failures: int) -> timedelta:
        """Return the wait after the `failures`-th failed attempt, counted from 1. No jitter: replayed and tested waits are equal.

        Source: Temporal's retry policy (initial x coefficient^(n-1), capped; overflow counts as the cap).
        """
        cap = self.maximum_interval or self._default_cap()
        try:
            wait = self.initial_interval.total_seconds() * self._factor(failures)
        except OverflowError:
            return cap
        return cap if wait >= cap.total_seconds() else timedelta(seconds=wait)

    def _default_cap(self) -> timedelta:
        longest = timedelta.max // _UNCAPPED
        return min(self.initial_interval, longest) * _UNCAPPED

    def _factor(self, failures: int) -> float:
        return float(self.backoff_coefficient) ** (failures - 1)

    def allows_another(self, failures: int) -> bool:
        """Whether an attempt may follow `failures` failed ones."""
        return self.maximum_attempts == 0 or failures < self.maximum_attempts

    def retries(self, error_type: str) -> bool:
        """Whether a failure of this type is worth another attempt.

        Args:
            error_type: Qualified name, as `httpx.ConnectError`; a builtin has no module.
        """
        short = error_type.rpartition(".")[2]
        refused = self.non_retryable_error_types
        return (
            error_type not in NEVER_RETRIED and error_type not in refused and short not in refused
        )


ONCE = RetryPolicy(maximum_attempts=1)
"""The policy of an effect that is neither idempotent nor probed."""

PROBING = RetryPolicy(
    initial_interval=timedelta(seconds=0.5),
    maximum_interval=timedelta(seconds=10),
    maximum_attempts=5,
)
"""How often a probe that cannot say is asked again before an operator is, where the effect does not say so."""


def _bad(what: str) -> DefinitionError:
    return DefinitionError(f"RetryPolicy: {what}", hint="see the arguments of RetryPolicy")
