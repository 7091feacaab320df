"""What may not be read is read nowhere: not by its id, not in a list, not as a record of a request; and what says so is believed, empty or not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from asked_bench import LOCAL, Asked, asked, client_of

import outlast
import outlast.app
from outlast.app import App
from outlast.client import Client
from outlast.client import client as module
from outlast.errors import DefinitionError, StoreCorruptError
from outlast.policy.authority import StoreAuthority
from outlast.store.memory import MemoryStore

TIMES = {"hold": timedelta(minutes=1), "keep": timedelta(days=1)}
KEY = "POST /orders ann 4711"


async def closed(asked: Asked, **resources: str) -> None:
    """Grant `read` to people, each for a glob of workflows."""
    for who, resource in resources.items():
        await asked.client().roles.grant(who, "outlast:read", resource=resource)


@pytest.mark.parametrize("name", ["status", "generations"])
def test_where_a_run_stands_is_read(name: str) -> None:
    """Who may not read it is told nothing, as of a run that is not there."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(name="run")
        await closed(asked, ann="fix")
        assert await getattr(asked.client("ann").handle("run"), name)()
        for run in ("run", "nun"):
            with pytest.raises(outlast.NotAuthorisedError) as refused:
                await getattr(asked.client("eve").handle(run), name)()
            assert refused.value.verb == "read"

    asked(scenario)


async def listed(client: Client, limit: int) -> list[list[str]]:
    """Return the ids of runs, page by page."""
    pages: list[list[str]] = []
    last = None
    while page := await client.runs.list(limit=limit, before=last):
        pages.append([one.run_id for one in page])
        last = page[-1]
    return pages


@pytest.mark.parametrize("look", [1, 3, 100])
def test_a_list_leaves_out_what_may_not_be_read(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its pages are full all the same, however many runs stand between those that may be."""
    monkeypatch.setattr(module, "_LEAST_LOOK", look)

    async def scenario(asked: Asked) -> None:
        for number in range(12):
            await asked.start(f"r-{number}", workflow="seen" if number % 4 == 0 else "other")
            asked.clock.advance(timedelta(seconds=1))
        await closed(asked, ann="seen", zoe="no such", bob="*")
        assert await listed(asked.client("ann"), 2) == [["r-8", "r-4"], ["r-0"]]
        assert await listed(asked.client("ann"), 3) == [["r-8", "r-4", "r-0"]]
        assert [len(page) for page in await listed(asked.client("bob"), 5)] == [5, 5, 2]
        for who in ("zoe", "eve"):
            assert await listed(asked.client(who), 5) == []
        assert await asked.client("ann").runs.list(limit=0) == []
        assert len(await asked.client("ann").runs.list(workflow="other")) == 0

    asked(scenario)


def test_a_list_that_is_free_is_one_look() -> None:
    """Of a store without roles, and of one whose roles leave reading free: as many rows as are shown."""
    limits: list[int] = []

    class Noting(MemoryStore):
        async def heads(self, tenant: str, **wanted: Any) -> Any:
            limits.append(wanted["limit"])
            return await super().heads(tenant, **wanted)

    async def main() -> None:
        from outlast.testing.conformance.bench import ManualClock

        client = client_of(Noting(ManualClock()), LOCAL)
        await client.runs.list(limit=7)
        await client.roles.grant("ann", "treasurer")
        await client.runs.list(limit=8)
        assert limits == [7, 8]

    asyncio.run(main())


def test_requests_by_http_are_read_and_resolved_by_who_may_everywhere() -> None:
    """They belong to no workflow. Who has the text of a key begins, holds and ends as before: the middleware does so for everybody."""

    async def scenario(asked: Asked) -> None:
        roles = asked.client().roles
        await roles.grant("ann", "outlast:read")
        await roles.grant("bob", "outlast:read", resource="fi?")
        await roles.grant("zoe", "outlast:resume")
        eve, ann = asked.client("eve").requests, asked.client("ann").requests
        begun = await eve.begin(KEY, fingerprint="f", token="t", **TIMES)
        assert await eve.get(KEY) == begun
        assert await eve.hold(KEY, "t", timedelta(minutes=1))
        asked.clock.advance(timedelta(minutes=2))
        assert (found := await ann.find(begun.request_id)) is not None
        assert [one.request_id for one in await ann.list()] == [found.request_id]
        said = {"answer": None, "reason": "why", "seen_token": "t"}
        for who in ("eve", "bob", "zoe"):
            for ask in ("find", "list"):
                act = getattr(asked.client(who).requests, ask)
                with pytest.raises(outlast.NotAuthorisedError, match="may not read requests that"):
                    await (act(begun.request_id) if ask == "find" else act())
        for who in ("eve", "ann"):
            with pytest.raises(outlast.NotAuthorisedError, match="say what became of") as refused:
                await asked.client(who).requests.resolve(begun.request_id, **said)
            assert refused.value.verb == "resume"
        assert await eve.get(KEY) is not None  # nobody has resolved it
        await asked.client("zoe").requests.resolve(begun.request_id, **said)
        assert await eve.get(KEY) is None

    asked(scenario)


class Nobody:
    """A directory without anybody in it: false to who asks its length, and a directory all the same."""

    def __len__(self) -> int:
        return 0

    async def holds(self, principal: outlast.Principal, role: str, resource: str) -> None:
        """Return that they do not."""

    async def may(self, principal: outlast.Principal, verb: str, resource: str) -> bool:
        """Return that they may not."""
        return False

    async def holders(self, tenant: str, role: str, resource: str) -> list[str]:
        """Return that there is none."""
        return []


@pytest.mark.parametrize("way", ["open", "connect", "Client", "acting_as"])
def test_an_empty_directory_is_one(way: str) -> None:
    """It says no to everything; the roles in the store do not take its place."""

    async def main() -> None:
        directory = Nobody()
        if way == "open":
            async with outlast.open("memory://", workflows=[], authority=directory) as app:
                assert app.authority is directory
                assert await app.runs.list() == []
                with pytest.raises(outlast.NotAuthorisedError):
                    await app.handle("r").status()
        elif way == "connect":
            made = outlast.app.Connection("memory://", tenant="default", principal="ann", authority=directory)  # fmt: skip
            async with made as client:
                assert client.authority is directory
        else:
            from outlast.testing.conformance.bench import ManualClock

            client = client_of(MemoryStore(ManualClock()), "ann")
            client = Client(client.store, random=client._random, authority=directory)
            if way == "acting_as":
                client = client.acting_as("bob")
            assert client.authority is directory

    asyncio.run(main())


@pytest.mark.parametrize("principal", ["ann", outlast.Principal("ann", "elsewhere")])
def test_an_app_that_cannot_be_opened_leaves_nothing(
    principal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a worker nor a notifier nor a store, whatever fails after they began; and what failed is what is raised."""

    async def main() -> None:
        made: list[App] = []
        stores: list[MemoryStore] = []

        class Post:
            name = "post"

            async def send(self, title: str, body: str, notice_id: str) -> None:
                """Take it."""

        async def broken(*_: Any) -> None:
            raise DefinitionError("it broke", hint="mend it")

        class Closing(MemoryStore):
            closed = 0

            async def close(self) -> None:
                self.closed += 1
                stores.append(self)
                await super().close()

        monkeypatch.setattr("outlast.store.memory.MemoryStore", Closing)
        monkeypatch.setattr(outlast.app, "_say_when_open", broken)
        made.append(
            outlast.open(
                "memory://",
                workflows=[],
                principal=principal,
                notify=outlast.Notify({"*": [Post()]}),
            )
        )
        before = asyncio.all_tasks()
        with pytest.raises(DefinitionError, match="it broke|of tenant 'elsewhere'"):
            async with made[0]:
                raise AssertionError
        assert [store.closed for store in stores] == [1]
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_what_is_said_of_open_roles_keeps_nobody_from_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the row cannot be read now, nothing is said, and it is said by the next that opens it."""

    async def main() -> None:
        said: list[str] = []
        read = StoreAuthority.roles
        faults = [StoreCorruptError("the row is damaged", hint="see `outlast doctor`")]

        async def faulty(self: StoreAuthority, tenant: str, **more: Any) -> Any:
            if faults:
                raise faults.pop()
            return await read(self, tenant, **more)

        monkeypatch.setattr(StoreAuthority, "roles", faulty)
        monkeypatch.setattr(outlast.app, "_announce", said.append)
        monkeypatch.setattr(outlast.app, "_told", set())
        for told in (0, 1, 1):
            async with outlast.open("memory://", workflows=[]):
                pass
            assert sum("no roles are set" in text for text in said) == told

    asyncio.run(main())
