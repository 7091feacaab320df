"""Which messages of the inbox are taken into the journal now, and which wait in their places.

Guards two promises: messages come in the order in which they were sent, and a flood of them neither fills the journal nor is
carried from generation to generation: those that the workflow has not come to stay in the inbox, where their number is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.replay.machine import Machine
from outlast.store.change import MessageKind, StampedMessage
from outlast.worker.growth import Growth

FROM_ANYONE = frozenset({MessageKind.SIGNAL, MessageKind.UPDATE})
"""Kinds of messages that may come without end. All others answer what the run has asked, or are an operator's: they never wait."""

MOST_UNHANDLED = 100
"""So many messages are in the journal at most that nobody has taken, unless one that is waited for lies behind them."""


LOOK_AT_BACKLOG_SECONDS = 0.5
"""So often at most an inbox is read in which messages wait for the workflow to come to them."""


class Intake:
    """What comes in of one run's inbox.

    Args:
        growth: Says what the journal has room for.
    """

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._waiting: set[str] = set()

    @property
    def holds_back(self) -> bool:
        """Whether messages were left in the inbox."""
        return bool(self._waiting)

    def take(
        self, mail: Sequence[StampedMessage], machine: Machine, *, closing: bool
    ) -> list[StampedMessage]:
        """Return the messages that are taken in now, in order.

        Args:
            mail: All that are unread.
            closing: Only the end of the run is to be written, which takes all of them.
        """
        awaited = _awaited(machine)
        needed = max((_first(mail, name) for name in awaited), default=-1)
        room = MOST_UNHANDLED - len(machine.unhandled())
        taken: list[StampedMessage] = []
        size_bytes = 0
        self._waiting = set()
        for place, one in enumerate(mail):
            size_bytes += len(one.message.body)
            waits = (
                not closing
                and one.message.kind in FROM_ANYONE
                and (
                    bool(self._waiting)
                    or (place > needed and room <= 0)
                    or not self._growth.has_room(len(taken), size_bytes)
                )
            )
            if waits:
                self._waiting.add(one.message.name)
            else:
                taken.append(one)
                room -= one.message.kind in FROM_ANYONE
        return taken

    def wants_more(self, machine: Machine) -> bool:
        """Whether what was left in the inbox should be looked at again: the workflow has come to it, or there is room now."""
        if not self._waiting or not self._growth.has_room(0, 0):
            return False
        has_come = not self._waiting.isdisjoint(_awaited(machine))
        return has_come or len(machine.unhandled()) <= MOST_UNHANDLED // 2


def _awaited(machine: Machine) -> set[str]:
    """Return the names of the messages that the workflow would take at once."""
    signals, updates = machine.handled
    return {*machine.mailbox.awaited, *signals, *updates}


def _first(mail: Sequence[StampedMessage], name: str) -> int:
    """Return the place of the first message of that name; -1 when there is none."""
    places = (
        place
        for place, one in enumerate(mail)
        if one.message.name == name and one.message.kind in FROM_ANYONE
    )
    return next(places, -1)
