"""How long to wait before something is asked again whose answer came too late for the store."""

from __future__ import annotations

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0


def pause_after(refusals: int) -> float:
    """Return how many seconds to wait after so many refusals in a row: none after the first, for which a row may have been changed."""
    if refusals < 2:
        return 0.0
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(refusals - 2, 10), _LONGEST_PAUSE_SECONDS)
