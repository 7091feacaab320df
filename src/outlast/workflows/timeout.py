"""The times that a step, an effect or a run may be given, and which of them cannot be meant; refused where they are declared."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from outlast.errors import DefinitionError

_YEAR = timedelta(days=365), "a year"
_CENTURY = timedelta(days=36_500), "a hundred years"

TIMES = {
    "start_to_close_timeout": _YEAR,
    "schedule_to_close_timeout": _CENTURY,
    "heartbeat_timeout": _YEAR,
}
"""The name of each time, and what it must be shorter than."""


def check_times(kind: str, name: str, times: Mapping[str, timedelta | None]) -> None:
    """Refuse times that cannot be meant.

    Args:
        kind: `step` or `effect`.
        name: Of the step or effect.
        times: What was declared, by the names of `TIMES`.

    Raises:
        DefinitionError: One is nothing or too long, or a silence could never be over before its attempt is.
    """
    for which, (longest, words) in TIMES.items():
        time = times[which]
        if time is not None and not timedelta(0) < time < longest:
            raise DefinitionError(
                f"{kind} {name} has a {which} of {time}",
                step=name,
                hint=f"give a time longer than nothing and shorter than {words}",
            )
    silence, whole = times["heartbeat_timeout"], times["start_to_close_timeout"]
    if silence is not None and whole is not None and silence >= whole:
        raise DefinitionError(
            f"{kind} {name} has a heartbeat_timeout of {silence}, and its attempts are over after {whole}",
            step=name,
            hint="give a heartbeat_timeout shorter than the start_to_close_timeout, or leave it out",
        )


def check_probe_time(name: str, time: timedelta) -> None:
    """Refuse a time for a probe that cannot be meant.

    Args:
        name: Of the effect.

    Raises:
        DefinitionError: It is nothing or too long.
    """
    longest, words = _YEAR
    if not timedelta(0) < time < longest:
        raise DefinitionError(
            f"effect {name} has a probe_timeout of {time}",
            step=name,
            hint=f"give a time longer than nothing and shorter than {words}",
        )


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
    if not isinstance(given, timedelta) or not timedelta(0) < given < _CENTURY[0]:
        raise DefinitionError(
            f"{what} has timeout={given!r}, in which no run can be done",
            hint="give a time longer than nothing and shorter than a hundred years, as timeout=timedelta(hours=1)",
        )
    return given.total_seconds()
