"""The kill switch from outside: thrown and lifted by who may, and kept with who did it and why."""

from __future__ import annotations

import pytest
from asked_bench import LOCAL, Asked, asked

from outlast.errors import DefinitionError, NotAuthorisedError, PolicyError
from outlast.policy import Stops, ToolCall
from outlast.policy.switch import Switch
from outlast.store.change import PutControl


def test_a_switch_that_was_thrown_is_read_by_who_judges() -> None:
    """All of a tenant, one tool, one agent; lifted by its id. The row is read as orders by whoever judges calls."""

    async def scenario(asked: Asked) -> None:
        stops = asked.client().stops
        assert await stops.stop("paid twice", tool="pay_*") == "tool:pay_*"
        assert await stops.stop("it rambles", agent="buyer") == "agent:buyer"
        assert await stops.stop("it rambles on", agent="buyer") == "agent:buyer"
        assert await stops.stop("fire") == "everything"
        assert await stops.stop("fire here", everybody=True) == "everything"
        assert [(one.id, one.everybody, one.by) for one in await stops.list()] == [
            ("tool:pay_*", False, LOCAL),
            ("agent:buyer", False, LOCAL),
            ("everything", False, LOCAL),
            ("everything", True, LOCAL),
        ]
        await stops.lift("everything", "out")
        row = await asked.store.control("default", "stops")
        assert row is not None
        assert row[0] == 5
        orders = Stops.decode(row[1])
        assert orders.find(ToolCall(name="pay_invoice"))
        assert orders.find(ToolCall(name="read", agent="buyer"))
        assert not orders.find(ToolCall(name="read"))
        acts = Switch.decode(row[1]).acts
        assert [(one.verb, one.stop, one.reason) for one in acts[-2:]] == [
            ("stop", "everything", "fire"),
            ("lift", "everything", "out"),
        ]
        assert acts[-1].at == asked.clock.now()
        everybody = await asked.store.control("", "stops")
        assert everybody is not None
        assert Stops.decode(everybody[1]).find(ToolCall(name="read", tenant="other"))

    asked(scenario)


def test_who_may_not_stop_stops_nothing() -> None:
    """It is never free: in an open tenant the local user may, then who holds `outlast:stop`, everywhere."""

    async def scenario(asked: Asked) -> None:
        with pytest.raises(NotAuthorisedError) as refused:
            await asked.client("eve").stops.stop("why")
        assert (refused.value.verb, "outlast:stop" in refused.value.hint) == ("stop", True)
        roles = asked.client().roles
        await roles.grant("ann", "outlast:stop")
        await roles.grant("bob", "outlast:stop", resource="pay_*")
        id = await asked.client("ann").stops.stop("why", tool="x")
        for who in ("bob", "eve"):
            with pytest.raises(NotAuthorisedError):
                await asked.client(who).stops.lift(id, "why not")
        with pytest.raises(NotAuthorisedError):
            await asked.client("ann", tenant="other").stops.stop("why")
        await asked.client().stops.lift(id, "an admin may, too")

    asked(scenario)


def test_what_is_no_order_is_refused() -> None:
    """No reason, a tool of an agent, a glob that is none, an order that does not hold."""

    async def scenario(asked: Asked) -> None:
        stops = asked.client().stops
        for reason in ("", "  "):
            with pytest.raises(DefinitionError, match="no reason"):
                await stops.stop(reason)
            with pytest.raises(DefinitionError, match="no reason"):
                await stops.lift("everything", reason)
        with pytest.raises(DefinitionError, match="one tool of one agent"):
            await stops.stop("why", tool="x", agent="y")
        with pytest.raises(PolicyError):
            await stops.stop("why", tool="[x]")
        with pytest.raises(DefinitionError, match="nothing is stopped by the name 'tool:x'"):
            await stops.lift("tool:x", "why")
        with pytest.raises(DefinitionError, match="cannot be kept"):
            await stops.stop("x" * 1001)
        assert await stops.list() == []

    asked(scenario)


def test_orders_are_bounded() -> None:
    """A thousand hold at once; one that stops the same takes the place of the former one."""

    async def scenario(asked: Asked) -> None:
        stops = asked.client().stops
        await stops.stop("why", tool="t0")
        row = await asked.store.control("default", "stops")
        assert row is not None
        (stop,) = Switch.decode(row[1]).stops
        from msgspec.structs import replace

        many = Switch(tuple(replace(stop, name=f"t{number}") for number in range(1000)))
        await asked.apply(PutControl("default", "stops", row[0], many.encode()))
        with pytest.raises(DefinitionError, match="1000 orders hold"):
            await stops.stop("why", tool="another")
        await stops.stop("why", tool="t7")

    asked(scenario)
