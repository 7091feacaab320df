"""The journal's form of a value and that of its hash are told apart only where they differ whatever the type is."""

from __future__ import annotations

import pytest

from outlast.approvals.likeness import likeness


@pytest.mark.parametrize(
    ("kept", "hashed", "found"),
    [
        ("here", "here", "same"),
        ("here", "there", "other"),
        (5, 5, "same"),
        (5, 6, "other"),
        (1.0, 1, "same"),
        (True, True, "same"),
        (True, False, "other"),
        (None, None, "same"),
        (None, "x", "other"),
        (2**60, str(2**60), "same"),
        (2**60, "RED", "unknown"),
        ("1.50", "1.5", "unknown"),
        ("1.50", "1.6", "other"),
        ("2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00Z", "unknown"),
        ("2026-01-31T13:00:00+01:00", "2026-01-31T13:00:00Z", "other"),
        ("1e" + "9" * 200, "1e" + "9" * 201, "other"),
        ([1, 2], [1, 2], "same"),
        ([1, 2], [2, 1], "unknown"),
        ([1, 2], [1, 3], "other"),
        ([1], [1, 1], "other"),
        ({"a": 1}, {"a": 1}, "same"),
        ({"a": 1}, {"a": 2}, "other"),
        ({"a": 1}, {"a": 1, "b": 2}, "unknown"),
        ({"a": 1, "c": {"d": "x"}}, {"a": 1, "c": {"d": "y"}}, "other"),
        ([1, 2], {"x": 1, "y": 2}, "unknown"),
    ],
)
def test_likeness(kept: object, hashed: object, found: str) -> None:
    """Same, other, or known to the code alone."""
    assert likeness(kept, hashed) == found
