"""What is told of a copy of a store that was made, or put back."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class Copied(Struct, frozen=True):
    """What a copy holds.

    Args:
        file: Its absolute path.
        size_bytes: Of the file.
        timeline: The history that it is of.
        runs: How many there are in it.
        open_runs: How many of them have not ended.
        until: The time of the newest change of a run; None where there is none.
        kept: What was in its place before, under the name that it has now; empty where nothing was.
    """

    file: str
    size_bytes: int
    timeline: str
    runs: int
    open_runs: int
    until: datetime | None
    kept: str = ""
