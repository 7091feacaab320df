"""What the pilot writes about updates: the answer as an entry, and the same in the message's row, where its sender reads it."""

from __future__ import annotations

import msgspec

from outlast.errors import DecodeError
from outlast.journal.entry import UpdateAnswered
from outlast.journal.failure import capture
from outlast.replay.command import AnswerUpdate
from outlast.store.change import Answer, Message
from outlast.worker.proposal import Proposal, Rank

_encode = msgspec.json.Encoder().encode


def answering(command: AnswerUpdate) -> Proposal:
    """Return the answer to an update."""
    answer = command.answer
    row = Answer(answer.message_id, _encode(answer))
    return Proposal(Rank.REQUEST, answer, guard=command.operation, answer=row)


def unreadable(message: Message, why: str) -> Answer:
    """Return the answer to an update of which nothing can be read."""
    error = DecodeError(
        f"it could not be read: {why}",
        hint="send it with the version of Outlast that the workers run",
    )
    entry = UpdateAnswered(message.message_id, message.name, failure=capture(error), rejected=True)
    return Answer(message.message_id, _encode(entry))
