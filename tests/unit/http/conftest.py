"""The server side of the Idempotency-Key header."""

from __future__ import annotations

import sys
from pathlib import Path

# What its tests share stands in modules of this folder, and is imported by name.
sys.path.insert(0, str(Path(__file__).parent))
