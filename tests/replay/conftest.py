"""Golden journals: what runs wrote once, replayed by the code of today on whatever interpreter runs this."""

from __future__ import annotations

import sys
from pathlib import Path

# The scripts of this folder import each other by name, as they do when `tools/golden.py` records.
sys.path.insert(0, str(Path(__file__).parent))
