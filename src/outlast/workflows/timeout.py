"""How long a run may take: one wording, and one check, for whoever says it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from outlast.errors import DefinitionError

_LONGEST = timedelta(days=36_500)


def run_seconds(timeout: timedelta | None, *, what: str) -> float | None:
    """Return a run's timeout in seconds; None where there is none.

    Args:
        what: Says it, for the error: `workflow fix`, `the start of fix`.

    Raises:
        DefinitionError: It is no `timedelta` longer than nothing and shorter than a hundred years.
    """
    given: Any = timeout
    if given is None:
        return None
    if not isinstance(given, timedelta) or not timedelta(0) < given < _LONGEST:
        raise DefinitionError(
            f"{what} has timeout={given!r}, in which no run can be done",
            hint="give a time longer than nothing and shorter than a hundred years, as timeout=timedelta(hours=1)",
        )
    return given.total_seconds()
