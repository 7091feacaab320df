"""Simulations: whole systems from seeds."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def quiet():
    """Keep the words of thousands of simulated workers out of the reports."""
    logger = logging.getLogger("outlast")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)
