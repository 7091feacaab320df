"""What may be asked of a run: free until a role is granted for it; then for who holds that, and without a word of what there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asked_bench import LOCAL, Asked, asked, client_of

import outlast
from outlast.client import Client
from outlast.store.change import RunKey
from outlast.store.memory import MemoryStore
from outlast.testing.conformance.bench import ManualClock
from outlast.workflows.completion import CompletionToken

go = outlast.Signal("access_go", int)
ordered = outlast.Update("access_ordered", int, int)


@outlast.workflow
async def flow(number: int) -> int:
    """Return what it is given."""
    return number


Act = Callable[[Client, str], Awaitable[Any]]


def of_handle(name: str, *given: Any, **named: Any) -> Act:
    """Return a call of a method of a run's handle."""
    return lambda client, run: getattr(client.handle(run), name)(*given, **named)


def token(run: str) -> str:
    """Return a token of a run."""
    return str(CompletionToken("default", run, 1, "r:1", "step"))


ACTS: dict[str, tuple[str, Act]] = {
    "start": ("start", lambda client, run: client.start(flow(1), id=run)),
    "signal_with_start": ("message", lambda client, run: client.signal_with_start(flow(1), go, 1, id=run)),
    "update_with_start": ("message", lambda client, run: client.update_with_start(flow(1), ordered, 1, id=run)),
    "send": ("message", of_handle("send", go, 1)),
    "update": ("message", of_handle("update", ordered, 1)),
    "complete": ("message", lambda client, run: client.complete(token(run), 1)),
    "fail": ("message", lambda client, run: client.fail(token(run), "no")),
    "heartbeat": ("message", lambda client, run: client.heartbeat(token(run))),
    "cancel": ("resume", of_handle("cancel")),
    "pause": ("resume", of_handle("pause")),
    "resume": ("resume", of_handle("resume")),
    "terminate": ("resume", of_handle("terminate")),
    "resolve": ("resume", of_handle("resolve", "r:1", not_applied=True)),
    "accept": ("resume", of_handle("accept", any_build=True, reason="why")),
    "fork": ("fork", of_handle("fork", id="other", reason="why")),
    "retry": ("fork", of_handle("retry", reason="why")),
    "result": ("read", of_handle("result")),
    "journal": ("read", of_handle("journal")),
    "status": ("read", of_handle("status")),
    "generations": ("read", of_handle("generations")),
    "detail": ("read", of_handle("detail")),
    "explain": ("read", of_handle("explain")),
    "query": ("read", of_handle("query", "seen")),
    "published": ("read", of_handle("published", "done")),
    "doubts": ("read", lambda client, run: client.runs.doubts(run_id=run)),
    "approval": ("read", lambda client, run: client.approvals.get(run, "1~r:1")),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_what_is_no_longer_free_is_refused_alike(name: str) -> None:
    """Nothing is written, and a run that is there is refused in the same words as one that is not, but for its id."""
    verb, act = ACTS[name]

    async def scenario(asked: Asked) -> None:
        await asked.ask(name="run")
        await asked.client().roles.grant("ann", f"outlast:{verb}", resource="flow?")
        eve = asked.client("eve")
        before = await asked.store.load((await asked.store.heads("default"))[0].run)
        said: list[str] = []
        for run in ("run", "nun"):
            with pytest.raises(outlast.NotAuthorisedError) as refused:
                await act(eve, run)
            assert (refused.value.verb, refused.value.who) == (verb, "eve")
            said.append(str(refused.value).replace(f"run {run}", "it"))
        assert said[0] == said[1]
        assert f"outlast roles grant eve outlast:{verb}" in said[0]
        assert len(await asked.store.heads("default")) == 1
        assert await asked.store.load((await asked.store.heads("default"))[0].run) == before
        # Where it is granted, and to an admin, it goes as far as it goes.
        with pytest.raises(outlast.NotAuthorisedError):
            await act(asked.client("ann"), "run")

    asked(scenario)


def test_who_holds_it_may() -> None:
    """Everywhere or for the run's workflow; an admin may, too. What was not granted to anybody stays free."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(name="run")
        roles = asked.client().roles
        await roles.grant("ann", "outlast:message", resource="fi*")
        await roles.grant("zoe", "outlast:message", resource="other")
        for who in ("ann", LOCAL):
            await asked.client(who).handle("run").send(go, 1)
        for who in ("zoe", "eve"):
            with pytest.raises(outlast.NotAuthorisedError):
                await asked.client(who).handle("run").send(go, 1)
        await asked.client("eve").handle("run").cancel()
        await asked.client("eve").start(flow(1), id="new")
        assert len(await asked.store.mail(RunKey("default", "run"))) == 3
        await roles.revoke("ann", "outlast:message")
        await roles.revoke("zoe", "outlast:message")
        with pytest.raises(outlast.NotAuthorisedError):
            await asked.client("eve").handle("run").send(go, 1)

    asked(scenario)


class Counting(MemoryStore):
    """Counts how often roles are read."""

    reads = 0

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Count, and read."""
        self.reads += name == "roles"
        return await super().control(tenant, name)


def test_what_is_free_costs_one_look_a_second() -> None:
    """By the store's clock; a grant that somebody else made counts a second later, or sooner. Decisions and changes look each time."""

    async def main() -> None:
        clock = ManualClock()
        store = Counting(clock)
        eve, admin = client_of(store, "eve"), client_of(store, LOCAL)
        for number in range(10):
            await eve.start(flow(1), id=f"r-{number}")
            await eve.handle(f"r-{number}").cancel()
        assert store.reads == 1
        await admin.roles.grant("ann", "outlast:start")
        await eve.start(flow(1), id="still")
        clock.advance(timedelta(seconds=1))
        with pytest.raises(outlast.NotAuthorisedError):
            await eve.start(flow(1), id="no longer")
        clock.set_wall(clock.now() - timedelta(days=1))
        before = store.reads
        with pytest.raises(outlast.NotAuthorisedError):
            await eve.start(flow(1), id="no longer")
        assert store.reads == before + 1
        for _ in range(3):
            with pytest.raises(outlast.NotAuthorisedError):
                await eve.stops.stop("why")
        assert store.reads == before + 4

    asyncio.run(main())


def test_a_directory_is_asked_each_time_with_the_workflow() -> None:
    """Also where our own rows would not be; of a run that is not there with no workflow at all."""
    seen: list[tuple[str, str, str]] = []

    class Directory:
        async def holds(self, principal: outlast.Principal, role: str, resource: str) -> None:
            return None

        async def may(self, principal: outlast.Principal, verb: str, resource: str) -> bool:
            seen.append((principal.subject, verb, resource))
            return verb != "fork"

        async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
            return None

    async def scenario(asked: Asked) -> None:
        await asked.ask(name="run")
        client = asked.client("ann", authority=Directory())
        await client.start(flow(1), id="new")
        await client.handle("run").cancel()
        with pytest.raises(outlast.RunNotFoundError):
            await client.handle("nun").cancel()
        with pytest.raises(outlast.NotAuthorisedError, match="ann may not fork"):
            await client.handle("run").retry(reason="why")
        assert seen == [
            ("ann", "start", "flow"), ("ann", "resume", "fix"), ("ann", "resume", ""), ("ann", "fork", "fix"),
        ]  # fmt: skip

    asked(scenario)


def test_doubts_of_what_may_not_be_read_are_not_resolved() -> None:
    """Before any of them is."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(name="run")
        await asked.client().roles.grant("ann", "outlast:resume")
        doubt: Any = SimpleNamespace(run_id="run")
        with pytest.raises(outlast.NotAuthorisedError):
            await asked.client("eve").runs.resolve([doubt], not_applied=True, reason="why")

    asked(scenario)
