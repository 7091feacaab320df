"""What a fork knows of its origin's children and messages, and which runs stand for its own children. Pure: read from journals.

Guards one promise: a child that ended in the origin is not started again for an equal call, and a message that was sent is not sent
again. Which call is equal is said by what was asked and by its number among equal ones, so no two calls share one outcome.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import msgspec

from outlast.journal.entry import (
    ChildRequested,
    Entry,
    Forked,
    KnownChild,
    KnownMessage,
    MessageSent,
    OperationId,
    Parent,
)
from outlast.replay.command import SendMessage, StartChild
from outlast.store.change import origin_of

_ID_DIGITS = 16

ChildCall: TypeAlias = tuple[str, str, str, int]
"""Workflow, hash of the arguments, own id and number of a child's call."""

MessageCall: TypeAlias = tuple[str, str, str, str, int]
"""To whom, kind, name, hash of the value, and number of a message."""


class KnownRuns:
    """The known children and messages of a run that was forked; of any other run there are none."""

    def __init__(self) -> None:
        self.forked: Forked | None = None
        """Where the run was forked, the last time."""
        self.standing: dict[OperationId, KnownChild] = {}
        """Of the run's children: those for which the origin's stand, or retries of these."""
        self.own: set[str] = set()
        """Ids of the children that the run has asked for and that are its own."""
        self._children: dict[ChildCall, KnownChild] = {}
        self._messages: dict[MessageCall, KnownMessage] = {}
        self._asked: set[ChildCall | MessageCall] = set()

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        match entry:
            case Forked():
                self.forked = entry
                self.standing, self.own, self._asked = {}, set(), set()
                self._children = {known_call(one): one for one in entry.children}
                self._messages = {known_message_call(one): one for one in entry.messages}
            case ChildRequested():
                call = child_call(entry)
                self._asked.add(call)
                known = self._children.get(call)
                if entry.as_run and known is not None:
                    self.standing[entry.operation] = known
                if not entry.as_run or (known is not None and known.as_run):
                    self.own.add(entry.as_run or entry.run_id)
            case MessageSent():
                self._asked.add(message_call(entry, self.standing))
            case _:
                pass

    def child(self, command: StartChild | ChildRequested) -> KnownChild | None:
        """Return what is known of a call."""
        return self._children.get(child_call(command))

    def message(self, command: SendMessage | MessageSent) -> KnownMessage | None:
        """Return what is known of a message."""
        return self._messages.get(message_call(command, self.standing))

    def children_left(self) -> list[KnownChild]:
        """Return the known children that were not asked for."""
        return [one for call, one in self._children.items() if call not in self._asked]

    def messages_left(self) -> list[KnownMessage]:
        """Return the known messages that were not sent."""
        return [one for call, one in self._messages.items() if call not in self._asked]


def marker(parent: Parent) -> str:
    """Return what the row of a run says that this operation has started."""
    return origin_of(parent.run_id, parent.generation, parent.operation)


def message_id(sender: Parent, sent: SendMessage | MessageSent) -> str:
    """Return the id that a message has in the inbox of the run that it is sent to.

    What it says is in it: where a fork sends as its origin would, another message of the origin has another id.

    Args:
        sender: The operation that sends it.
    """
    what = msgspec.json.encode((sent.kind, sent.name, _value(sent)))
    return f"run/{marker(sender)}/{hash_of(what)[:_ID_DIGITS]}"


def child_call(asked: StartChild | ChildRequested) -> ChildCall:
    """Return which call of a child it is."""
    return asked.name, hash_of(bytes(asked.arguments)), asked.own_id, asked.number


def known_call(known: KnownChild) -> ChildCall:
    """Return which call of a child it was."""
    return known.name, known.arguments_sha256, known.own_id, known.number


def message_call(
    sent: SendMessage | MessageSent, standing: dict[OperationId, KnownChild]
) -> MessageCall:
    """Return which message it is.

    Args:
        standing: Children for which the origin's stand: a message to one is known by the origin's operation.
    """
    to = sent.run_id
    if sent.child:
        to = standing[sent.child].operation if sent.child in standing else sent.child
    return to, sent.kind, sent.name, _value(sent), sent.number


def known_message_call(known: KnownMessage) -> MessageCall:
    """Return which message it was."""
    return known.to, known.kind, known.name, known.value_sha256, known.number


def _value(sent: SendMessage | MessageSent) -> str:
    # A cancel says who sends it, which is another run in a fork.
    return "" if sent.kind == "cancel" else hash_of(bytes(sent.value))


def hash_of(value: bytes) -> str:
    """Return SHA-256 in hex."""
    return hashlib.sha256(value).hexdigest()
