"""In whose name an effect is called: what was asked for one agent is no yes for another, and none of them follows another's call."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import outlast

SENT: list[str] = []


@outlast.effect(idempotent=True)
async def send_for(to: str) -> str:
    """Send."""
    SENT.append(to)
    return f"sent to {to}"


HOUR = timedelta(hours=1)


@outlast.workflow
async def asked_for_one(asks: str, calls: str) -> str:
    """Ask in one agent's name, and call in another's."""
    with outlast.agent(asks):
        await outlast.approval("send?", covers=[send_for("ann")], role="boss", expires_in=HOUR)
    try:
        with outlast.agent(calls):
            return await send_for("ann")
    except outlast.ApprovalMismatchError as error:
        return error.code


@outlast.workflow
async def asked_by_nobody() -> str:
    """Ask in nobody's name, and call in an agent's."""
    await outlast.approval("send?", covers=[send_for("bob")], role="boss", expires_in=HOUR)
    with outlast.agent("any"):
        return await send_for("bob")


@outlast.workflow
async def two_agents() -> list[str]:
    """Make equal calls in two names at once."""

    async def one(name: str) -> str:
        with outlast.agent(name):
            return await send_for("cid")

    found = await asyncio.gather(one("a"), one("b"), one("a"), return_exceptions=True)
    return [type(one).__name__ if isinstance(one, Exception) else str(one) for one in found]


async def _approved(app: outlast.App, run: str) -> list[object]:
    while not (asked := await app.approvals.list(run_id=run)):
        await asyncio.sleep(0)
    await app.approvals.approve(run, asked[0].approval_id, seen_sha256=asked[0].subject_sha256)
    return [cover.get("agent") for cover in asked[0].subject["covers"]]


def test_a_yes_for_one_agent_is_none_for_another():
    """A cover that was asked for in an agent's name shows it, and covers that agent's call alone; one in nobody's covers any."""

    async def main() -> None:
        SENT.clear()
        async with outlast.open("memory://") as app:
            refused = await app.start(asked_for_one("a", "b"), id="refused")
            assert await _approved(app, "refused") == ["a"]
            assert await refused.result() == "approval_mismatch"
            assert SENT == []
            fine = await app.start(asked_for_one("a", "a"), id="fine")
            assert await _approved(app, "fine") == ["a"]
            assert await fine.result() == "sent to ann"
            anybody = await app.start(asked_by_nobody(), id="anybody")
            assert await _approved(app, "anybody") == [None]
            assert await anybody.result() == "sent to bob"

    asyncio.run(main())


def test_no_agent_follows_the_call_of_another():
    """An equal call in flight is followed in the same name only."""

    async def main() -> None:
        async with outlast.open("memory://") as app:
            found = await app.run(two_agents(), id="two")
        assert found == ["sent to cid", "RepeatedEffectError", "sent to cid"]

    asyncio.run(main())
