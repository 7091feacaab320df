"""What a worker says of its runs in the log: taken up, parked, ended, and what somebody should act on, with what to type.

Invariant: every line names the run; a line that asks for a person says which command answers it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from outlast.effects.standing import Alarm
from outlast.journal.entry import (
    Cancelled,
    Completed,
    ContinuedAsNew,
    ContinueSuggested,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    Failed,
)
from outlast.journal.failure import tell
from outlast.journal.place import place_of
from outlast.store.change import RunKey, Status
from outlast.worker.text import plain

logger = logging.getLogger("outlast.worker")


def log_parked(run: RunKey, status: Status, note: Mapping[str, Any]) -> None:
    """Say that a run left memory, and what it waits for."""
    kinds = (("timers", "timer"), ("retries", "retry"), ("approvals", "approval"))
    parts = [
        f"{word} {one} until {due:%Y-%m-%d %H:%M:%S} UTC"
        for key, word in kinds
        for one, due in note[key].items()
    ]
    parts += [
        f"completion {one}" + (f" until {due:%Y-%m-%d %H:%M:%S} UTC" if due else "")
        for one, due in note["completions"].items()
    ]
    parts += [f"step {one} in queue {queue!r}" for one, queue in note["tasks"].items()]
    parts += [f"message {name!r}" for name in note["signals"]]
    parts += [f"update {name!r}" for name in note.get("updates", ())]
    parts += [f"{one} in doubt" for one in note["in_doubt"]]
    parts += [f"run {run_id}" for run_id in note.get("runs", {}).values()]
    if status is Status.READY:
        logger.info("run %s: given back", run)
    elif status is Status.PAUSED:
        logger.info("run %s: paused; it goes on with `outlast runs resume %s`", run, run.run_id)
    else:
        logger.info("run %s: parked, %s: %s", run, status, ", ".join(parts) or "a condition")


def log_doubt(run: RunKey, doubt: EffectInDoubt, intent: EffectIntended | None) -> None:
    """Say that nobody but an operator knows how an effect goes on.

    Args:
        intent: Says what would undo it; None for one that was refused before it was intended.
    """
    is_stuck = doubt.failure is not None
    undo = ""
    if intent is not None and intent.compensation:
        undo = (
            f", or --compensate{' --result JSON' if intent.needs_result else ''} to have it undone"
        )
    logger.warning(
        "run %s: effect %s (%s) %s: %s; %s: `outlast runs resolve %s --operation %s --reason TEXT` with --applied JSON, --not-applied or --failed TEXT%s",
        run,
        doubt.name,
        doubt.operation,
        "undoes something and has given up" if is_stuck else "is in doubt",
        plain(doubt.why),
        "do it by hand, or see to it that it can be done, then say so"
        if is_stuck
        else "look up whether it happened, then say so",
        run.run_id,
        doubt.operation,
        undo,
        extra={"operation": doubt.operation, "step": doubt.name},
    )


def log_aged(
    run: RunKey, name: str, operation: str, times: int, slow: str, within: timedelta
) -> None:
    """Say that an effect does not begin, as answers are too old each time.

    Args:
        name: Of the effect.
        times: How often in a row.
        slow: What has taken the longest, in words.
        within: How old they may be.
    """
    logger.warning(
        "run %s: effect %s (%s) does not begin: %d times in a row the answers on which it rests were older than recheck_within (%s); %s; it is "
        "asked again; have that answer sooner, or give outlast.open() a longer recheck_within",
        run,
        name,
        operation,
        times,
        within,
        slow,
        extra={"operation": operation, "step": name},
    )


def log_end(run: RunKey, end: Completed | Failed | Cancelled | ContinuedAsNew) -> None:
    """Say how a run, or a generation of it, ended."""
    if isinstance(end, Completed):
        logger.info("run %s: completed", run)
        return
    if isinstance(end, ContinuedAsNew):
        logger.info("run %s: goes on in a new generation, as %s", run, end.name)
        return
    word = "failed" if isinstance(end, Failed) else "cancelled"
    failure = end.failure
    place = place_of(failure)
    logger.info(
        "run %s: %s: %s%s; see `outlast runs explain %s`",
        run,
        word,
        tell(failure),
        f", at {place}" if place else "",
        run.run_id,
    )


def log_known(run: RunKey, outcome: EffectCompleted | EffectFailed) -> None:
    """Say that a fork has an effect's outcome from its origin."""
    logger.info(
        "run %s: effect %s (%s): %s; it has that outcome, and nothing is attempted",
        run,
        outcome.name,
        outcome.operation,
        outcome.reason,
        extra={"operation": outcome.operation, "step": outcome.name},
    )


def log_long(run: RunKey, noticed: ContinueSuggested) -> None:
    """Say that a journal grows."""
    logger.warning(
        "run %s: its journal has %d entries (%d bytes); let the workflow call outlast.continue_as_new(...) when "
        "outlast.info().continue_suggested is true",
        run,
        noticed.entries,
        noticed.size_bytes,
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
