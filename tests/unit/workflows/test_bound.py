"""Times that cannot be waited for are refused where they are written, and never break a run from inside."""

from __future__ import annotations

from datetime import timedelta

import pytest

import outlast
from outlast.errors import DefinitionError


def test_a_timeout_beyond_reason_is_refused_at_import() -> None:
    """A timeout that no clock can add is a mistake of the declaration."""
    with pytest.raises(DefinitionError, match="start_to_close_timeout"):

        @outlast.step(start_to_close_timeout=timedelta.max)
        def endless() -> None: ...


@pytest.mark.parametrize("option", ["lease", "idle"])
def test_times_of_a_worker_are_times(option: str) -> None:
    """A bare number has no unit, and is refused before anything is opened."""
    with pytest.raises(DefinitionError, match=option):
        outlast.open("memory://", **{option: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        (timedelta(milliseconds=999), "too short: it is from 1 second to 30 days long"),
        (timedelta(days=31), "too long"),
        (timedelta.max, "too long"),
    ],
)
def test_a_lease_that_cannot_be_kept_is_refused(lease: timedelta, words: str) -> None:
    """Before a worker begins that would lose it at once, or that no thread could renew."""
    with pytest.raises(DefinitionError, match=words):
        outlast.open("memory://", lease=lease)
    outlast.open("memory://", lease=timedelta(seconds=1))
