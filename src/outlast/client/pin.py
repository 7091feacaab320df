"""The pins: which definitions of foreign tools were looked at by somebody, and taken as they are."""

from __future__ import annotations

import builtins
from collections.abc import Callable

from outlast.client.access import not_permitted
from outlast.client.control import change_row
from outlast.client.port import Port
from outlast.policy.authority import permitted
from outlast.policy.pin import Pin
from outlast.policy.pinned import PINS, PinAct, PinRecord
from outlast.policy.tool import ForeignTool


class PinBook:
    """The pins of a tenant.

    A foreign tool whose definition is not the pinned one is asked about each time. A yes to such a request lets one call pass, and pins
    nothing.
    """

    def __init__(self, client: Port) -> None:
        self._client = client

    async def pin(self, tool: ForeignTool, reason: str = "") -> Pin:
        """Take the definition of a tool as it is, in the place of the one that was taken before.

        Args:
            reason: Why; kept.

        Raises:
            NotAuthorisedError: Whoever acts does not hold `outlast:pin`.
            DefinitionError: The reason cannot be kept, or 10,000 definitions are pinned.

        Example:
            ```python
            import outlast
            from outlast.policy import ForeignTool

            listed = {"name": "read_file", "description": "Reads a file", "inputSchema": {"type": "object"}}
            async with outlast.open("memory://") as app:
                pin = await app.pins.pin(ForeignTool("files", "read_file", listed), "read its description")
                assert await app.pins.list() == [pin] and pin.by == app.principal
                await app.pins.forget("files", "read_file", "we use another server")
                assert await app.pins.list() == []
            ```
        """
        pin = Pin(
            server=tool.server,
            tool=tool.name,
            sha256=tool.sha256,
            first_seen=self._client.store.now(),
            by=self._client.principal,
        )
        await self._change(lambda record: record.pinning(pin, reason))
        return pin

    async def forget(self, server: str, tool: str, reason: str = "") -> None:
        """Take a pin back: the tool is asked about from now on. What has begun is not interrupted.

        Args:
            tool: Its name.
            reason: Why; kept.

        Raises:
            NotAuthorisedError: Whoever acts does not hold `outlast:pin`.
            DefinitionError: No definition of it is pinned, or the reason cannot be kept.
        """
        at, by = self._client.store.now(), self._client.principal
        await self._change(
            lambda record: record.forgetting(server, tool, by=by, at=at, reason=reason)
        )

    async def list(self) -> builtins.list[Pin]:
        """Return the pins, the oldest first."""
        return builtins.list((await self._record()).pins)

    async def acts(self) -> builtins.list[PinAct]:
        """Return the latest 1,000 things that were done to them, the oldest first: who did what, when and why."""
        return builtins.list((await self._record()).acts)

    async def _record(self) -> PinRecord:
        row = await self._client.store.control(self._client.tenant, PINS)
        return PinRecord() if row is None else PinRecord.decode(row[1])

    async def _change(self, changed: Callable[[PinRecord], PinRecord]) -> None:
        client = self._client

        async def body(row: tuple[int, bytes] | None) -> bytes:
            if not await permitted(client.authority, client.actor, "pin", ""):
                raise not_permitted(client, "pin")
            return changed(PinRecord() if row is None else PinRecord.decode(row[1])).encode()

        await change_row(client, client.tenant, PINS, body)
