"""Property tests: laws that hold for whatever a search comes up with."""

from __future__ import annotations

import sys
from pathlib import Path

# What several searches share stands in modules of this folder, and is imported by name.
sys.path.insert(0, str(Path(__file__).parent))
# How an application is called as a server would is shared with its unit tests.
sys.path.append(str(Path(__file__).parents[1] / "unit" / "http"))
# How a journal of an approval is written by hand is shared with the unit tests of receipts.
sys.path.append(str(Path(__file__).parents[1] / "unit" / "approvals"))
