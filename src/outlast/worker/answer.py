"""What the pilot writes about updates: the answer as an entry, and the same in the message's row, where its sender reads it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.errors import DecodeError
from outlast.journal.entry import NO_OPERATION, OperationId, UpdateAnswered, UpdateReceived
from outlast.journal.failure import capture
from outlast.replay.command import AnswerUpdate
from outlast.replay.handler import unheard
from outlast.store.change import Answer, Message
from outlast.worker.proposal import Proposal, Rank

_encode = msgspec.json.Encoder().encode


def answering(command: AnswerUpdate) -> Proposal:
    """Return the answer to an update."""
    return _answering(command.answer, command.operation)


def with_last_answers(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Return a change's proposals with answers to the updates that it takes in, if it ends the run: the machine hears of them too late.

    It gives the same answers when it is asked again, after the store refused the change.
    """
    heads = [one.head for one in proposals if one.head is not None]
    if not any(head.status.closed for head in heads):
        return list(proposals)
    ended_as = heads[0].status
    updates = [one.entry for one in proposals if isinstance(one.entry, UpdateReceived)]
    last = [_answering(unheard(update, ended_as), NO_OPERATION) for update in updates]
    at = next(place for place, one in enumerate(proposals) if one.head is not None)
    return [*proposals[:at], *last, *proposals[at:]]


def unreadable(message: Message, why: str) -> Answer:
    """Return the answer to an update of which nothing can be read."""
    error = DecodeError(
        f"it could not be read: {why}",
        hint="send it with the version of Outlast that the workers run",
    )
    entry = UpdateAnswered(message.message_id, message.name, failure=capture(error), rejected=True)
    return Answer(message.message_id, _encode(entry))


def _answering(answer: UpdateAnswered, operation: OperationId) -> Proposal:
    row = Answer(answer.message_id, _encode(answer))
    return Proposal(Rank.REQUEST, answer, guard=operation, answer=row)
