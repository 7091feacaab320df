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
from outlast.policy import Held
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


@outlast.effect(
    idempotent=True,
    approval=outlast.Approval("boss", expires_in=timedelta(hours=1), edits="second"),
)
async def pay(amount: int) -> int:
    return amount


@outlast.workflow
async def ask_another() -> None:
    await outlast.approval("may I?", role="boss", expires_in=timedelta(hours=1), four_eyes=True)


@outlast.workflow
async def pay_what_is_edited() -> int:
    return await pay(5)


async def waiting(app: outlast.App, count: int) -> Any:
    """Return the request that waits when so many were made."""
    while len(await app.approvals.list(run_id="r", pending=False)) < count:
        await asyncio.sleep(0.01)
    (view,) = await app.approvals.list(run_id="r")
    return view


async def told(caplog: pytest.LogCaptureFixture) -> str:
    """Return the warning when it is there."""
    while "nobody who may decide holds that role" not in caplog.text:
        await asyncio.sleep(0.01)
    return caplog.text


def test_four_eyes_of_whom_there_is_one_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Who started the run is the only one who holds the role, and may not say yes."""

    async def main() -> None:
        async with outlast.open(
            "memory://",
            workflows=[ask_another],
            authority=Directory(["ann"]),
            principal="ann",
        ) as app:
            await app.start(ask_another(), id="r")
            async with asyncio.timeout(20):
                assert "keeps ann from it" in await told(caplog)

    asyncio.run(main())


def test_an_edit_that_nobody_else_can_approve_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who edited it is the only one who holds the role; before the edit there was somebody."""

    async def main() -> None:
        async with outlast.open("memory://", workflows=[pay_what_is_edited]) as app:
            me = app.principal
            await app.roles.grant(me, "boss", reason="alone")
            await app.start(pay_what_is_edited(), id="r")
            seen = await waiting(app, 1)
            assert "nobody" not in caplog.text
            await app.approvals.edit(
                "r",
                seen.approval_id,
                seen_sha256=seen.subject_sha256,
                arguments={0: {"amount": 3}},
            )
            async with asyncio.timeout(20):
                assert f"keeps {me} from it" in await told(caplog)

    asyncio.run(main())


def test_four_eyes_on_nobody_known_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """The store lets nobody say yes where it is not known who started the run."""

    async def main() -> None:
        Holders(Directory(["ann"])).look(RUN, "flow", "boss", frozenset({""}))
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert "nobody may decide" in caplog.text


@pytest.mark.parametrize(
    ("lent", "is_told"), [({"bob": "ann"}, True), ({"bob": ""}, False), ({"bob": "cid"}, False)]
)
def test_a_delegate_of_whoever_is_barred_is_barred(
    lent: dict[str, str], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What a delegate says counts as said by who lent the role, too."""

    class Lending(Directory):
        async def holds(self, principal: outlast.Principal, role: str, resource: str) -> Any:
            return Held(lent[principal.subject])

    async def main() -> None:
        holder = Holders(Lending(["ann", "bob"]))
        holder.look(RUN, "flow", "boss", frozenset({"ann"}))
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert ("nobody who may decide" in caplog.text) == is_told


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
