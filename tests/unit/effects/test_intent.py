"""When an earlier attempt can no longer act."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outlast.effects.intent import SETTLE, quiet_after


@pytest.mark.parametrize(
    ("timeout", "since", "wait"),
    [(30, 0, 32), (30, 10, 22), (30, 32, 0), (30, 500, 0), (30, -5, 37), (None, 0, 0)],
)
def test_quiet_after(timeout, since, wait):
    """Timeout and settle count from the start of the attempt; without a timeout there is nothing to wait for."""
    limit = None if timeout is None else timedelta(seconds=timeout)
    quiet = quiet_after(timeout=limit, settle=SETTLE, since=timedelta(seconds=since))
    assert quiet == timedelta(seconds=wait)
