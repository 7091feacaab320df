"""Runs that one build moves: `@workflow(pin=True)`.

The first entry of a worker names its build, and a worker of another one leaves the run alone, as where its code does not fit. The next
generation is pinned anew, by whoever takes it up; a fork is not bound by its origin's build; an operator may release the run.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.errors import RunError
from outlast.journal.entry import Accepted, Entry, Forked, Taken


class PinnedRunError(RunError):
    """The run is pinned to another build than the worker's."""


def pinned_to(entries: Iterable[Entry]) -> str:
    """Return the build to which a generation of a run is pinned; empty when workers of any may move it."""
    build = ""
    for entry in entries:
        match entry:
            case Taken():
                build = entry.build
            case Forked() | Accepted(any_build=True):
                build = ""
            case _:
                pass
    return build


def check_build(entries: Iterable[Entry], build: str, run_id: str) -> None:
    """Return when a worker of this build may move the run.

    Raises:
        PinnedRunError: Only those of another one may.
    """
    pinned = pinned_to(entries)
    if pinned not in ("", build):
        raise PinnedRunError(
            f"the run was begun by build {pinned} and its workflow is pinned; this worker runs build {build}",
            run=run_id,
            hint=f"start a worker of that build, or let others go on: outlast runs accept {run_id} --any-build --reason TEXT",
        )
