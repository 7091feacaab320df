"""The people who decide in tests of requests are those of the cases."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "cases"))
