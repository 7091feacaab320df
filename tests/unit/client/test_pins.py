"""The pins from outside: made and taken back by who may, and kept with who did it and why."""

from __future__ import annotations

import pytest
from asked_bench import LOCAL, Asked, asked

from outlast.errors import DecodeError, DefinitionError, NotAuthorisedError
from outlast.policy import ForeignTool, Pin, Pins
from outlast.policy.pinned import KEPT_ACTS, MOST_PINS, PinRecord
from outlast.store.change import PutControl

READ = ForeignTool("files", "read", {"description": "Reads"})
WRITE = ForeignTool("files", "write", {"description": "Writes"})
OTHER = ForeignTool("files", "read", {"description": "Reads, and tells"})


def test_a_pin_says_who_took_it_and_when() -> None:
    """One of each tool; whoever judges calls reads the row as pins only."""

    async def scenario(asked: Asked) -> None:
        pins = asked.client().pins
        first = await pins.pin(READ, "harmless")
        assert (first.by, first.first_seen, first.sha256) == (LOCAL, asked.clock.now(), READ.sha256)
        await pins.pin(WRITE)
        third = await pins.pin(OTHER, "I looked again")
        assert [one.sha256 for one in await pins.list()] == [WRITE.sha256, OTHER.sha256]
        row = await asked.store.control("default", "pins")
        assert row is not None
        assert row[0] == 3
        assert Pins.decode(row[1]).look("files", "read", OTHER.sha256) == "pinned"
        await pins.forget("files", "write", "we do not write")
        assert await pins.list() == [third]
        assert [
            (one.verb, one.tool, one.sha256, one.by, one.reason) for one in await pins.acts()
        ] == [
            ("pin", "read", READ.sha256, LOCAL, "harmless"),
            ("pin", "write", WRITE.sha256, LOCAL, ""),
            ("pin", "read", OTHER.sha256, LOCAL, "I looked again"),
            ("forget", "write", WRITE.sha256, LOCAL, "we do not write"),
        ]
        assert (await pins.acts())[-1].at == asked.clock.now()
        assert await asked.client(tenant="other").pins.list() == []

    asked(scenario)


def test_who_may_not_pin_pins_nothing() -> None:
    """It is never free: in an open tenant the local user may, then who holds `outlast:pin`, everywhere."""

    async def scenario(asked: Asked) -> None:
        with pytest.raises(NotAuthorisedError, match="may not pin") as refused:
            await asked.client("eve").pins.pin(READ)
        assert (refused.value.verb, "outlast:pin" in refused.value.hint) == ("pin", True)
        roles = asked.client().roles
        await roles.grant("ann", "outlast:pin")
        await roles.grant("bob", "outlast:pin", resource="pay_*")
        await asked.client("ann").pins.pin(READ)
        for who in ("bob", "eve"):
            with pytest.raises(NotAuthorisedError):
                await asked.client(who).pins.forget("files", "read")
            with pytest.raises(NotAuthorisedError):
                await asked.client(who).pins.pin(OTHER)
        (pin,) = await asked.client("eve").pins.list()
        assert (pin.by, pin.sha256) == ("ann", READ.sha256)

    asked(scenario)


def test_what_cannot_be_pinned_or_forgotten_is_refused() -> None:
    """And nothing is written."""

    async def scenario(asked: Asked) -> None:
        pins = asked.client().pins
        with pytest.raises(DefinitionError, match="no definition is pinned of the tool 'read'"):
            await pins.forget("files", "read")
        with pytest.raises(DefinitionError, match="cannot be kept"):
            await pins.pin(READ, "x" * 1001)
        assert await asked.store.control("default", "pins") is None
        await asked.apply(PutControl("default", "pins", 0, b"{"))
        with pytest.raises(DecodeError, match="pinned definitions"):
            await pins.pin(READ)

    asked(scenario)


def test_pins_and_their_record_are_bounded() -> None:
    """Ten thousand, and the latest thousand acts; a pin in the place of an older one is always taken."""

    async def scenario(asked: Asked) -> None:
        at = asked.clock.now()
        many = tuple(
            Pin(server="s", tool=f"t{number}", sha256="0", first_seen=at)
            for number in range(MOST_PINS)
        )
        await asked.apply(PutControl("default", "pins", 0, PinRecord(many).encode()))
        with pytest.raises(DefinitionError, match="no more are kept"):
            await asked.client().pins.pin(READ)
        record = PinRecord()
        for number in range(KEPT_ACTS + 3):
            pin = Pin(server="s", tool="t", sha256=str(number), first_seen=at)
            record = record.pinning(pin)
        assert (len(record.pins), len(record.acts)) == (1, KEPT_ACTS)
        assert (record.acts[0].sha256, record.acts[-1].sha256) == ("3", "1002")

    asked(scenario)
