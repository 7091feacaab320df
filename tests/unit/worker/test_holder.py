"""Somebody is asked in a role that nobody holds: it is said at once."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client.patience import say_when_nobody_decides
from outlast.store.change import RunKey
from outlast.worker.holder import Holders

RUN = RunKey("default", "r")


@outlast.workflow
async def ask_the_boss() -> None:
    await outlast.approval("may I?", role="boss", expires_in=timedelta(hours=1))


class Directory:
    """Says who holds roles."""

    def __init__(self, holders: Any) -> None:
        self.found = holders

    async def holds(self, principal: outlast.Principal, role: str, resource: str) -> None:
        """Return that they do not."""

    async def may(self, principal: outlast.Principal, verb: str, resource: str) -> bool:
        """Return that they may."""
        return True

    async def holders(self, tenant: str, role: str, resource: str) -> Any:
        """Return who holds it."""
        return self.found


def test_a_request_that_nobody_can_decide_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """By the worker when it is made, with the command that helps; and by whoever waits for the run, as a warning."""

    async def main() -> None:
        async with outlast.open(
            "memory://", workflows=[ask_the_boss], authority=Directory([])
        ) as app:
            await app.start(ask_the_boss(), id="r")
            while "nobody holds that role" not in caplog.text:
                await asyncio.sleep(0.01)
            with pytest.warns(
                outlast.NobodyHoldsRoleWarning, match="outlast roles grant SUBJECT boss"
            ):
                await say_when_nobody_decides(app, await app.head(RUN))

    asyncio.run(main())
    assert "outlast roles grant SUBJECT boss" in caplog.text
    assert "workflow 'ask_the_boss'" in caplog.text


@pytest.mark.parametrize("holders", [["ann"], None, RuntimeError("down")], ids=repr)
def test_where_somebody_may_hold_it_nothing_is_said(
    holders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor where nobody knows, and where the worker asks no authority."""

    async def main() -> None:
        caplog.set_level(logging.WARNING)
        for authority in (Directory(holders), None):
            holder = Holders(authority)
            holder.look(RUN, "flow", "boss")
            holder.look(RUN, "flow", "")
            for _ in range(3):
                await asyncio.sleep(0)

    asyncio.run(main())
    assert "nobody holds" not in caplog.text


def test_it_is_said_once_until_somebody_held_it(caplog: pytest.LogCaptureFixture) -> None:
    """Ten thousand requests of a role are no ten thousand lines; a worker that stops finds out nothing more."""

    async def main() -> None:
        directory = Directory([])
        holder = Holders(directory)

        async def look() -> int:
            for _ in range(3):
                holder.look(RUN, "flow", "boss")
                for _ in range(3):
                    await asyncio.sleep(0)
            return caplog.text.count("nobody holds")

        assert await look() == 1
        directory.found = ["ann"]
        assert await look() == 1
        directory.found = []
        assert await look() == 2
        holder.look(RUN, "other", "boss")
        holder.close()
        await asyncio.sleep(0.01)
        assert caplog.text.count("nobody holds") == 2

    asyncio.run(main())
