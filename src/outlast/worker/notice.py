"""What the relay tells a run of what it asked of another one: inbox items, and the errors that they carry."""

from __future__ import annotations

import msgspec

from outlast.effects.intent import Resolution
from outlast.errors import OutlastError, RunConflictError, RunNotFoundError, StoreError
from outlast.journal.failure import Failure, capture
from outlast.store.change import Message, MessageKind, OutboxItem, RunHead, RunKey, Verdict
from outlast.store.farewell import answer_id


def answer(
    item: OutboxItem, word: str, outcome: str, failure: Failure | None = None
) -> Message | None:
    """Return what tells the sender what came of an item; None when no operation of it waits.

    Args:
        word: Of what: `start`, `end` or `sent`; one answer each.
    """
    if not item.operation:
        return None
    told = Resolution(item.operation, item.generation, outcome, failure=failure)
    return _message(answer_id(word, item.generation, item.operation), told)


def refusal(item: OutboxItem, word: str, outcome: str, error: OutlastError) -> Message | None:
    """Return what tells the sender why nothing came of an item."""
    return answer(item, word, outcome, capture(error))


def end_told(item: OutboxItem, generation: int, end: Resolution) -> Message:
    """Return what tells a watcher how a run ended.

    Args:
        generation: Of the watcher.
        end: For nobody yet.
    """
    told = msgspec.structs.replace(end, operation=item.operation, generation=generation)
    return _message(answer_id("end", generation, item.operation), told)


def id_taken(head: RunHead) -> RunConflictError:
    """Return the error of a child whose id another run has."""
    return RunConflictError(
        f"the id is taken by a run of workflow {head.workflow} that this run did not start by this call",
        run=head.run.run_id,
        hint="leave id= out, or derive it from what makes this child different",
    )


def has_ended(run: RunKey) -> RunConflictError:
    """Return the error of a message that came too late."""
    return RunConflictError("the run has ended", run=run.run_id, hint="see `outlast runs show`")


def not_there(run: RunKey) -> RunNotFoundError:
    """Return the error of what was asked of nobody."""
    return RunNotFoundError(
        "there is no such run",
        run=run.run_id,
        hint="check its id; a run is found in its own tenant",
    )


def not_readable(run: RunKey, error: Exception) -> StoreError:
    """Return the error of a child whose start is damaged."""
    return StoreError(
        f"what the run was to be started with cannot be read: {error}",
        run=run.run_id,
        hint="the store was changed by hand or is damaged; see `outlast doctor`",
    )


def not_written(run: RunKey, verdict: Verdict) -> StoreError:
    """Return the error of what the store does not take."""
    return StoreError(
        f"the store will not take what was asked of the run; it answered {verdict}",
        run=run.run_id,
        hint="see `outlast doctor`",
    )


def _message(message_id: str, told: Resolution) -> Message:
    body = msgspec.json.encode(told)
    return Message(message_id, MessageKind.OUTCOME, told.operation, "relay", body)
