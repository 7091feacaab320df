"""What the worker that had a task says of the attempt: the message that ends the task, written there and read by the run's owner."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from outlast.journal.entry import ENTRY_NESTING
from outlast.journal.failure import Failure, is_too_deep
from outlast.journal.parse import NotJsonError, parse_as
from outlast.store.change import Message, MessageKind, WorkerId
from outlast.store.task import TaskRow

_PREFIX = "task/"

Word: TypeAlias = Literal["completed", "failed", "handed_out", "lost"]


class TaskOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an attempt of a remote step ended.

    Args:
        name: Of the step.
        outcome: `completed` (with `value`), `failed` (with `failure`), `handed_out` (somebody outside says later what came of it), or `lost`: too many workers died with it, and nobody makes
            the attempt any more.
        value: JSON of the result.
        hopeless: Another attempt would end the same way.
        progress: JSON of the details of its last beat; null for none.
    """

    operation: str
    name: str
    generation: int
    attempt: int
    outcome: Word
    value: Raw = Raw(b"null")
    failure: Failure | None = None
    hopeless: bool = False
    progress: Raw = Raw(b"null")

    @property
    def kept(self) -> bytes:
        """The details of its last beat, as a row keeps them: empty for none."""
        progress = bytes(self.progress)
        return b"" if progress == b"null" else progress


_outcomes = msgspec.json.Decoder(TaskOutcome)


def outcome_of(
    row: TaskRow,
    word: Word,
    *,
    value: bytes = b"null",
    failure: Failure | None = None,
    hopeless: bool = False,
    progress: bytes = b"",
) -> TaskOutcome:
    """Return what is said of the attempt that a task stands for."""
    key = row.key
    return TaskOutcome(
        operation=key.operation,
        name=row.name,
        generation=key.generation,
        attempt=key.attempt,
        outcome=word,
        value=Raw(value),
        failure=failure,
        hopeless=hopeless,
        progress=Raw(progress or b"null"),
    )


def message_of(outcome: TaskOutcome, worker: WorkerId, number: int) -> Message:
    """Return the message that ends a task; the same for each sending, another one for each time that a worker had it.

    Args:
        number: Which of the tasks of its life this is to the worker.
    """
    return Message(
        message_id=f"{_PREFIX}{outcome.operation}/{outcome.attempt}/{worker}/{number}",
        kind=MessageKind.OUTCOME,
        name=outcome.operation,
        sender=worker,
        body=msgspec.json.encode(outcome),
    )


def ends_task(message: Message) -> bool:
    """Whether a message is the end of a task."""
    return message.kind is MessageKind.OUTCOME and message.message_id.startswith(_PREFIX)


def read_outcome(message: Message) -> TaskOutcome:
    """Return what a message that ends a task says.

    Raises:
        NotJsonError: It cannot be read: a newer version wrote it, or it is damaged.
    """
    outcome = parse_as(_outcomes, message.body, nesting=ENTRY_NESTING)
    if outcome.failure is not None and is_too_deep(outcome.failure):
        raise NotJsonError("the failure is nested too deep")
    if outcome.outcome == "failed" and outcome.failure is None:
        raise NotJsonError("it has failed, and does not say with what")
    return outcome
