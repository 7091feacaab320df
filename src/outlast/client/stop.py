"""The kill switch: effects and foreign tools are stopped at once, all of them or those of one tool or agent, until that is lifted."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import datetime

import msgspec

from outlast.client.access import not_permitted
from outlast.client.control import change_row
from outlast.client.port import Port
from outlast.errors import DefinitionError
from outlast.policy.authority import Principal, permitted
from outlast.policy.local import EVERYBODY
from outlast.policy.stop import Stop
from outlast.policy.switch import STOPS, Switch, id_of

ANY = "*"


class StopView(msgspec.Struct, frozen=True):
    """An order that holds.

    Args:
        id: By which it is lifted: what it stops, as `tool:pay_*`.
        everybody: Whether it counts for all tenants.
    """

    id: str
    everybody: bool
    reason: str
    by: str
    at: datetime


class StopBook:
    """The orders of a tenant, and those for everybody."""

    def __init__(self, client: Port) -> None:
        self._client = client

    async def stop(
        self, reason: str, *, tool: str = ANY, agent: str = ANY, everybody: bool = False
    ) -> str:
        """Stop what would begin from now on, and return the order's id. What has begun is not interrupted.

        Args:
            reason: Why; kept, and shown to whom it stops.
            tool: Only effects and tools of this name: a glob, as `pay_*` or `server:*`.
            agent: Only what agents of this name do: a glob.
            everybody: In all tenants.

        Raises:
            NotAuthorisedError: Whoever acts does not hold `outlast:stop`.
            DefinitionError: No reason is given, or both a tool and an agent.
            PolicyError: The name is no glob.

        Example:
            ```python
            import outlast

            async with outlast.open("memory://") as app:
                id = await app.stops.stop("paid twice", tool="pay_*")
                assert [one.id for one in await app.stops.list()] == [id] == ["tool:pay_*"]
                await app.stops.lift(id, "mended")
                assert not await app.stops.list()
            ```
        """
        _check_given(reason)
        if ANY not in (tool, agent):
            raise DefinitionError(
                "an order stops a tool or an agent, and not one tool of one agent",
                hint="give the orders one by one, or take the tool from the agent's list in the policy",
            )
        scope, name = ("tool", tool) if agent == ANY else ("agent", agent)
        at, by = self._client.store.now(), self._client.principal
        order = (
            Stop(scope="everything", reason=reason, by=by, at=at)
            if name == ANY
            else Stop(scope=scope, name=name, reason=reason, by=by, at=at)
        )
        await self._change(lambda switch: switch.stopping(order), everybody=everybody)
        return id_of(order)

    async def lift(self, id: str, reason: str, *, everybody: bool = False) -> None:
        """Let go on what an order stops.

        Args:
            id: As `list` shows it.
            reason: Why; kept.
            everybody: It is one for all tenants.

        Raises:
            NotAuthorisedError: Whoever acts does not hold `outlast:stop`.
            DefinitionError: No such order holds, or no reason is given.
        """
        _check_given(reason)
        at, by = self._client.store.now(), self._client.principal
        await self._change(
            lambda switch: switch.lifting(id, by=by, at=at, reason=reason), everybody=everybody
        )

    async def list(self) -> builtins.list[StopView]:
        """Return the orders that hold for this tenant, those for everybody last."""
        found: builtins.list[StopView] = []
        for tenant in (self._client.tenant, EVERYBODY):
            row = await self._client.store.control(tenant, STOPS)
            switch = Switch() if row is None else Switch.decode(row[1])
            found += [
                StopView(id_of(one), tenant == EVERYBODY, one.reason, one.by, one.at)
                for one in switch.stops
            ]
        return found

    async def _change(self, changed: Callable[[Switch], Switch], *, everybody: bool) -> None:
        tenant = EVERYBODY if everybody else self._client.tenant
        actor = Principal(self._client.principal, tenant, self._client.actor.roles)

        async def body(row: tuple[int, bytes] | None) -> bytes:
            if not await permitted(self._client.authority, actor, "stop", ""):
                raise not_permitted(self._client, "stop", everybody=everybody)
            return changed(Switch() if row is None else Switch.decode(row[1])).encode()

        await change_row(self._client, tenant, STOPS, body)


def _check_given(reason: str) -> None:
    if not reason.strip():
        raise DefinitionError("no reason is given", hint="say why: it is kept, and shown")
