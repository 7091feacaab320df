"""The kill switch as data: what is stopped, why, by whom. Writing it where workers look is not done here."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from outlast.errors import DecodeError, PolicyError
from outlast.journal.parse import read_as
from outlast.policy.call import ToolCall
from outlast.policy.glob import ToolGlob, check_glob, fits

Scope = Literal["everything", "tenant", "tool", "agent"]


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """One order to make no more calls of some kind.

    Args:
        scope: `everything`, or the calls of a `tenant`, `tool` or `agent`.
        name: A glob over names of that; a tool may be `server:tool`.
        reason: Why, for agents and for people.
        by: Who gave it.
        at: When, by the store's clock.

    Raises:
        PolicyError: The name is no glob, or everything is stopped by name.

    Example:
        ```python
        from datetime import UTC, datetime
        from outlast.policy import Stop, ToolCall

        stop = Stop(scope="tool", name="pay*", reason="paid twice", by="ann", at=datetime(2026, 3, 2, tzinfo=UTC))
        assert stop.holds(ToolCall(name="pay_invoice"))
        ```
    """

    scope: Scope
    name: str = "*"
    reason: str = ""
    by: str = ""
    at: datetime

    def __post_init__(self) -> None:
        """Refuse what nobody could judge."""
        if self.scope == "everything" and self.name != "*":
            raise PolicyError(
                "everything has no name", hint="stop a tenant, a tool or an agent by name"
            )
        if self.scope == "tool":
            ToolGlob.of(self.name)
        else:
            check_glob(self.name, self.scope)

    def holds(self, call: ToolCall) -> bool:
        """Say whether a call is one of those."""
        match self.scope:
            case "everything":
                return True
            case "tenant":
                return fits(self.name, call.tenant)
            case "agent":
                return fits(self.name, call.agent)
            case "tool":
                return ToolGlob.of(self.name).fits(call.name, call.server)

    def __str__(self) -> str:
        """Return what is stopped."""
        return "everything" if self.scope == "everything" else f"{self.scope} {self.name}"


class Stops(msgspec.Struct, frozen=True):
    """All orders that hold.

    Args:
        stops: The oldest first.

    Example:
        ```python
        from datetime import UTC, datetime
        from outlast.policy import Stop, Stops, ToolCall

        stops = Stops().adding(Stop(scope="agent", name="buyer", by="ann", at=datetime(2026, 3, 2, tzinfo=UTC)))
        assert stops.find(ToolCall(name="pay", agent="buyer")) and not stops.find(ToolCall(name="pay"))
        assert Stops.decode(stops.encode()) == stops
        assert not stops.without("agent", "buyer").stops
        ```
    """

    stops: tuple[Stop, ...] = ()

    def find(self, call: ToolCall) -> Stop | None:
        """Return the oldest order that holds for a call."""
        return next((one for one in self.stops if one.holds(call)), None)

    def adding(self, stop: Stop) -> Stops:
        """Return these and one more, in the place of one that stops the same."""
        return Stops((*self.without(stop.scope, stop.name).stops, stop))

    def without(self, scope: Scope, name: str = "*") -> Stops:
        """Return these without the one that stops exactly this."""
        return Stops(tuple(one for one in self.stops if (one.scope, one.name) != (scope, name)))

    def encode(self) -> bytes:
        """Return them as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Stops:
        """Return what `encode` wrote.

        Raises:
            DecodeError: It did not write that. Whoever reads the switch makes no call then.
        """
        try:
            return read_as(_stops, data, "the kill switch")
        except PolicyError as error:
            raise DecodeError(
                f"the kill switch cannot be read: {error.message}", hint=error.hint
            ) from None


_stops = msgspec.json.Decoder(Stops)
