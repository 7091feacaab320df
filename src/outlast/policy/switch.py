"""The kill switch as it is kept: the orders that hold, and the record of what was ordered and lifted.

The body of the control row `stops`. Whoever judges a call reads the orders only (`Stops.decode`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from outlast.errors import DecodeError, DefinitionError, PolicyError
from outlast.journal.asking import Moment
from outlast.journal.parse import read_as
from outlast.policy.binding import check_reason
from outlast.policy.stop import Stop, Stops

STOPS = "stops"
"""Name of the control row, of a tenant and, under the tenant of the empty name, of everybody."""

MOST_STOPS = 1_000
"""Orders that hold at once."""

KEPT_ACTS = 1_000
"""So many acts are remembered; the oldest is forgotten first."""


def id_of(stop: Stop) -> str:
    """Return by what an order is named: what it stops, as `tool:pay_*`."""
    return stop.scope if stop.scope == "everything" else f"{stop.scope}:{stop.name}"


class StopAct(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to the kill switch, for the record.

    Args:
        stop: Which order, as `id_of` names it.
    """

    verb: Literal["stop", "lift"]
    stop: str
    by: str
    at: Moment
    reason: str = ""


class Switch(msgspec.Struct, frozen=True):
    """The row of a tenant.

    Args:
        stops: The orders that hold, the oldest first.
        acts: The latest of what was done, the oldest first.
    """

    stops: tuple[Stop, ...] = ()
    acts: tuple[StopAct, ...] = ()

    def stopping(self, stop: Stop) -> Switch:
        """Return these and one order more, in the place of one that stops the same.

        Raises:
            DefinitionError: The reason cannot be kept, or there are too many orders.
        """
        check_reason(stop.reason)
        after = Stops(self.stops).adding(stop).stops
        if len(after) > MOST_STOPS:
            raise DefinitionError(
                f"{MOST_STOPS} orders hold, and no more are kept",
                hint="lift some, or stop more with one: a glob, or everything",
            )
        act = StopAct(verb="stop", stop=id_of(stop), by=stop.by, at=stop.at, reason=stop.reason)
        return Switch(after, (*self.acts, act)[-KEPT_ACTS:])

    def lifting(self, id: str, *, by: str, at: datetime, reason: str) -> Switch:
        """Return these without one order.

        Raises:
            DefinitionError: No such order holds, or the reason cannot be kept.
        """
        given: Any = id
        after = tuple(one for one in self.stops if id_of(one) != given)
        if len(after) == len(self.stops):
            raise DefinitionError(
                f"nothing is stopped by the name {given!r:.80}",
                hint="see `outlast stop --list`",
            )
        act = StopAct(verb="lift", stop=id, by=by, at=at, reason=check_reason(reason))
        return Switch(after, (*self.acts, act)[-KEPT_ACTS:])

    def encode(self) -> bytes:
        """Return them as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Switch:
        """Return what `encode` wrote.

        Raises:
            DecodeError: It did not write that.
        """
        try:
            return read_as(_switches, data, "the kill switch")
        except PolicyError as error:
            raise DecodeError(
                f"the kill switch cannot be read: {error.message}", hint=error.hint
            ) from None


_switches = msgspec.json.Decoder(Switch)
