"""What the tests of the client share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Helpers of this folder are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

pytest.register_assert_rewrite("asked_bench")
