"""What the pilot writes about updates: the answer as an entry, and the same in the message's row, where its sender reads it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.errors import DecodeError
from outlast.journal.entry import Entry, Forked, UpdateAnswered, UpdateReceived
from outlast.journal.failure import capture
from outlast.replay.command import AnswerUpdate
from outlast.store.change import Answer, Message
from outlast.worker.proposal import Proposal, Rank

_encode = msgspec.json.Encoder().encode


def asked_of_the_origin(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of the updates that a fork has kept: their senders ask the origin, and the fork has no rows of them."""
    forks = [place for place, one in enumerate(entries) if isinstance(one, Forked)]
    kept = entries[: forks[-1]] if forks else ()
    return frozenset(one.message_id for one in kept if isinstance(one, UpdateReceived))


def answering(command: AnswerUpdate, elsewhere: frozenset[str]) -> Proposal:
    """Return the answer to an update; without a row when it was asked of another run."""
    answer = command.answer
    is_read = answer.message_id not in elsewhere
    row = Answer(answer.message_id, _encode(answer)) if is_read else None
    return Proposal(Rank.REQUEST, answer, guard=command.operation, answer=row)


def unreadable(message: Message, why: str) -> Answer:
    """Return the answer to an update of which nothing can be read."""
    error = DecodeError(
        f"it could not be read: {why}",
        hint="send it with the version of Outlast that the workers run",
    )
    entry = UpdateAnswered(message.message_id, message.name, failure=capture(error), rejected=True)
    return Answer(message.message_id, _encode(entry))
