"""What a worker says of its runs in the log: taken up, parked, ended, and what somebody should act on, with what to type.

Invariant: every line names the run; a line that asks for a person says which command answers it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from outlast.effects.standing import Alarm
from outlast.journal.entry import Cancelled, Completed, Failed
from outlast.journal.place import place_of
from outlast.store.change import RunKey, Status

logger = logging.getLogger("outlast.worker")


def log_parked(run: RunKey, status: Status, note: Mapping[str, Any]) -> None:
    """Say that a run left memory, and what it waits for."""
    kinds = (("timers", "timer"), ("retries", "retry"), ("approvals", "approval"))
    parts = [
        f"{word} {one} until {due:%Y-%m-%d %H:%M:%S} UTC"
        for key, word in kinds
        for one, due in note[key].items()
    ]
    parts += [f"step {one} in queue {queue!r}" for one, queue in note["tasks"].items()]
    parts += [f"message {name!r}" for name in note["signals"]]
    parts += [f"{one} in doubt" for one in note["in_doubt"]]
    if status is Status.READY:
        logger.info("run %s: given back", run)
    else:
        logger.info("run %s: parked, %s: %s", run, status, ", ".join(parts) or "a condition")


def log_end(run: RunKey, end: Completed | Failed | Cancelled) -> None:
    """Say how a run ended."""
    if isinstance(end, Completed):
        logger.info("run %s: completed", run)
        return
    word = "failed" if isinstance(end, Failed) else "cancelled"
    failure = end.failure
    place = place_of(failure)
    logger.info(
        "run %s: %s: %s: %s%s; see `outlast runs explain %s`",
        run,
        word,
        failure.type,
        failure.message,
        f", at {place}" if place else "",
        run.run_id,
    )


def log_alarm(run: RunKey, alarm: Alarm) -> None:
    """Say that something which came for a run was put aside."""
    logger.warning(
        "run %s: %s %s from %s was put aside%s; see `outlast runs explain %s`",
        run,
        alarm.what,
        alarm.about,
        alarm.by or "nobody named",
        f": {alarm.why}" if alarm.why else "",
        run.run_id,
    )
