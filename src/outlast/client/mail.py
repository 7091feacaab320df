"""What lies in a run's inbox, in words: messages, requests of operators, and outcomes from outside that its worker has not taken in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import assert_never

import msgspec

from outlast.effects.intent import Resolution
from outlast.journal.entry import ENTRY_NESTING
from outlast.journal.parse import NotJsonError, parse_as
from outlast.store.change import MessageKind, StampedMessage

_SAID = 5
"""So many of the items of an inbox are named."""

_OF_STEPS = {
    **dict.fromkeys(("applied", "completed"), "the outcome of {}, which has ended,"),
    "failed": "the failure of {}",
    "handed_out": "the word that {} was handed out",
    "lost": "the word that {} was lost with its workers",
}
"""What outcomes of steps say; all others tell of another run."""


@cache
def _resolutions() -> msgspec.json.Decoder[Resolution]:
    return msgspec.json.Decoder(Resolution)


class Mail(msgspec.Struct, frozen=True):
    """One item of a run's inbox that was not taken in.

    Args:
        kind: As the store has it: `signal`, `update`, `outcome`, `resolution`, `decision`, `cancel`, `pause`, `resume` or `accept`.
        name: Of the signal or update; of the step whose outcome it is, where that is known.
        operation: Whose outcome it is, or what an operator speaks of.
        outcome: What became of that: `applied`, `not_applied`, `completed`, `failed`, `handed_out` or `lost`; of another run `started`,
            `refused`, `ended`, `sent` or `unsent`.
    """

    kind: str
    name: str = ""
    operation: str = ""
    outcome: str = ""

    @property
    def ends(self) -> bool:
        """Whether it is the result of a step, which nobody waits for outside any more."""
        return self.kind == "outcome" and self.outcome in ("applied", "completed")


def mail_of(messages: Iterable[StampedMessage]) -> list[Mail]:
    """Return what an inbox holds, as people see it."""
    return [_mail(one) for one in messages]


def _mail(stamped: StampedMessage) -> Mail:
    message = stamped.message
    if message.kind not in (MessageKind.OUTCOME, MessageKind.RESOLUTION):
        return Mail(str(message.kind), message.name)
    try:
        told = parse_as(_resolutions(), message.body, nesting=ENTRY_NESTING)
    except NotJsonError:
        # What cannot be read is put aside by the worker, and must not keep the run from being looked at.
        return Mail(str(message.kind), operation=message.name)
    return Mail(str(message.kind), told.name, told.operation, told.outcome)


def arrived(mail: list[Mail], count: int, when: str) -> str:
    """Return in a sentence what has arrived, and when it will be taken in.

    Args:
        count: Of all that has; more than `mail` where nobody has looked into it.
    """
    named = [_words(one).removesuffix(",") for one in mail[:_SAID]]
    if count == 1:
        what = _words(mail[0]) if mail else "a message"
        return f"{what[:1].upper()}{what[1:]} has arrived and will be taken in {when}."
    more = f" and {count - len(named)} more" if count > len(named) else ""
    listed = f": {', '.join(named)}{more}" if named else ""
    return f"{count} messages have arrived and will be taken in {when}{listed}."


def _words(one: Mail) -> str:
    kind = MessageKind(one.kind)
    match kind:
        case MessageKind.SIGNAL:
            return f"the message {one.name!r}"
        case MessageKind.UPDATE:
            return f"the update {one.name!r}"
        case MessageKind.OUTCOME:
            step = f"step {one.name} ({one.operation})" if one.name else f"step {one.operation}"
            said = _OF_STEPS.get(one.outcome, "the answer of another run ({})")
            return said.format(step if one.outcome in _OF_STEPS else one.operation)
        case MessageKind.RESOLUTION:
            return f"what somebody said became of {one.operation}"
        case MessageKind.DECISION:
            return "the decision on an approval"
        case MessageKind.CANCEL:
            return "the request to stop"
        case MessageKind.PAUSE:
            return "the request to pause"
        case MessageKind.RESUME:
            return "the request to go on"
        case MessageKind.ACCEPT:
            return "what an operator accepts"
        case _:
            assert_never(kind)
