"""The pins of a tenant as they are kept: which definitions of foreign tools were taken as they are, and the record of who did what.

The body of the control row `pins`. Whoever judges a call reads the pins only (`Pins.decode`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from outlast.errors import DefinitionError
from outlast.journal.asking import Moment
from outlast.journal.parse import read_as
from outlast.policy.binding import check_reason
from outlast.policy.pin import Pin, Pins
from outlast.policy.shown import shown

PINS = "pins"
"""Name of the control row."""

MOST_PINS = 10_000
"""Of a tenant."""

KEPT_ACTS = 1_000
"""So many acts are remembered; the oldest is forgotten first."""


class PinAct(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to the pins, for the record.

    Args:
        sha256: Of the definition; of a pin that was forgotten, as it was.
    """

    verb: Literal["pin", "forget"]
    server: str
    tool: str
    sha256: str
    by: str
    at: Moment
    reason: str = ""


class PinRecord(msgspec.Struct, frozen=True):
    """The row of a tenant.

    Args:
        pins: One of each tool, in the order in which they were made.
        acts: The latest of what was done, the oldest first.
    """

    pins: tuple[Pin, ...] = ()
    acts: tuple[PinAct, ...] = ()

    def pinning(self, pin: Pin, reason: str = "") -> PinRecord:
        """Return these and one more, in the place of an older one of the same tool.

        Raises:
            DefinitionError: The reason cannot be kept, or there are too many.
        """
        after = Pins(self.pins).pinning(pin).pins
        if len(after) > MOST_PINS:
            raise DefinitionError(
                f"{MOST_PINS} definitions are pinned, and no more are kept",
                hint="forget those of tools that nobody calls any more: `outlast policy pins forget`",
            )
        return self._noting("pin", pin, after, by=pin.by, at=pin.first_seen, reason=reason)

    def forgetting(
        self, server: str, tool: str, *, by: str, at: datetime, reason: str = ""
    ) -> PinRecord:
        """Return these without that of one tool.

        Raises:
            DefinitionError: None is pinned of it, or the reason cannot be kept.
        """
        found = [one for one in self.pins if (one.server, one.tool) == (server, tool)]
        if not found:
            raise DefinitionError(
                f"no definition is pinned of the tool {shown(tool)} of the server {shown(server)}",
                hint="see `outlast policy pins list`",
            )
        after = tuple(one for one in self.pins if one not in found)
        return self._noting("forget", found[-1], after, by=by, at=at, reason=reason)

    def _noting(
        self,
        verb: Literal["pin", "forget"],
        pin: Pin,
        after: tuple[Pin, ...],
        *,
        by: str,
        at: datetime,
        reason: str,
    ) -> PinRecord:
        act = PinAct(
            verb=verb,
            server=pin.server,
            tool=pin.tool,
            sha256=pin.sha256,
            by=by,
            at=at,
            reason=check_reason(reason),
        )
        return PinRecord(after, (*self.acts, act)[-KEPT_ACTS:])

    def encode(self) -> bytes:
        """Return them as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> PinRecord:
        """Return what `encode` wrote.

        Raises:
            DecodeError: It did not write that.
        """
        return read_as(_records, data, "the pinned definitions")


_records = msgspec.json.Decoder(PinRecord)
