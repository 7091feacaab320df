"""Declarations of these tests stay among themselves: no app of another test finds them."""

from __future__ import annotations

import pytest

from outlast.workflows import registry


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    """The list of everything declared, as long as the test."""
    own: list[object] = []
    monkeypatch.setattr(registry, "_declared", own)
    return own
