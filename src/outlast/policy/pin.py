"""Which definition of a foreign tool was looked at by somebody: a changed one is another tool."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from outlast.journal.parse import read_as


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One definition that was taken as it is.

    Args:
        server: The configured name of its server.
        tool: Its name.
        sha256: Of the definition, as `definition_sha256` gives it.
        first_seen: When, by the store's clock.
        by: Who took it.

    Example:
        ```python
        from datetime import UTC, datetime
        from outlast.policy import Pin

        pin = Pin(server="files", tool="read", sha256="a" * 64, first_seen=datetime(2026, 3, 2, tzinfo=UTC), by="ann")
        assert pin.tool == "read"
        ```
    """

    server: str
    tool: str
    sha256: str
    first_seen: datetime
    by: str = ""


class Pins(msgspec.Struct, frozen=True):
    """The definitions that were taken, one of each tool.

    Args:
        pins: In any order.

    Example:
        ```python
        from datetime import UTC, datetime
        from outlast.policy import Pin, Pins

        pins = Pins().pinning(Pin(server="files", tool="read", sha256="a" * 64, first_seen=datetime(2026, 3, 2, tzinfo=UTC)))
        assert pins.look("files", "read", "a" * 64) == "pinned"
        assert pins.look("files", "read", "b" * 64) == "changed"
        assert pins.look("files", "write", "a" * 64) == "new"
        assert Pins.decode(pins.encode()) == pins
        ```
    """

    pins: tuple[Pin, ...] = ()

    def look(self, server: str, tool: str, sha256: str) -> Literal["pinned", "new", "changed"]:
        """Return how a definition stands to the one that was taken."""
        known = [one.sha256 for one in self.pins if (one.server, one.tool) == (server, tool)]
        if not known:
            return "new"
        return "pinned" if known == [sha256] else "changed"

    def pinning(self, pin: Pin) -> Pins:
        """Return these with one more, in the place of an older one of the same tool."""
        others = (one for one in self.pins if (one.server, one.tool) != (pin.server, pin.tool))
        return Pins((*others, pin))

    def encode(self) -> bytes:
        """Return them as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Pins:
        """Return what `encode` wrote.

        Raises:
            DecodeError: It did not write that.
        """
        return read_as(_pins, data, "the pinned definitions")


_pins = msgspec.json.Decoder(Pins)
