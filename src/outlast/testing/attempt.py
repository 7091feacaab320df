"""An attempt for the tests of a single body: what it asks of Outlast is answered without any run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from outlast.workflows.attempt import Attempt, current_attempt


@contextmanager
def attempt(
    *, key: str = "key", number: int = 1, name: str = "body", run_id: str = "run"
) -> Generator[Attempt]:
    """Let `outlast.idempotency_key()` and `outlast.attempt()` work in a body that is called by itself, as `ship.plain("lamp")`.

    Args:
        key: What `outlast.idempotency_key()` returns.
        number: Of the attempt, from 1.
    """
    made = Attempt("default", run_id, "r:1", name, number, key)
    token = current_attempt.set(made)
    try:
        yield made
    finally:
        current_attempt.reset(token)
