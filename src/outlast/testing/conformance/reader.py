"""What a store promises of reading and of its own life: pages, hints, names, an end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec.structs import replace

from outlast.errors import StoreUnavailableError
from outlast.store.change import RunKey, Status
from outlast.testing.conformance.bench import (
    Bench,
    ending,
    following,
    row,
    scenario,
    sending,
    starting,
)


class ReaderConformance:
    """Lists, subscriptions, closing."""

    @scenario
    async def test_unknown_run(self, bench: Bench) -> None:
        """What is not there is None or empty."""
        run = RunKey("default", "no")
        assert await bench.store.head(run) is None
        assert await bench.store.load(run) is None
        assert await bench.store.journal(run) == ()
        assert await bench.store.heads("default") == []

    @scenario
    async def test_heads_are_paged_newest_first(self, bench: Bench) -> None:
        """Pages follow each other without loss or repetition, also among runs of one instant."""
        for name in ("a", "b", "c"):
            await bench.start(name)
        bench.clock.advance(timedelta(seconds=1))
        await bench.start("d")
        await bench.start("d", tenant="other")
        first = await bench.store.heads("default", limit=2)
        assert [head.run.run_id for head in first] == ["d", "c"]
        last = first[-1]
        rest = await bench.store.heads("default", before=(last.created_at, last.run.run_id))
        assert [head.run.run_id for head in rest] == ["b", "a"]

    @scenario
    async def test_heads_are_filtered(self, bench: Bench) -> None:
        """Status and workflow narrow the list."""
        head = await bench.owned("done")
        await bench.apply(ending(head))
        await bench.start("open")
        await bench.start("other", workflow="other")
        heads = bench.store.heads
        closed = await heads("default", statuses=frozenset({Status.COMPLETED}))
        ready = await heads(
            "default", statuses=frozenset({Status.READY, Status.BLOCKED}), workflow="fix"
        )
        mixed = await heads("default", statuses=frozenset({Status.READY, Status.COMPLETED}))
        assert [found.run.run_id for found in closed] == ["done"]
        assert [found.run.run_id for found in ready] == ["open"]
        assert {found.run.run_id for found in mixed} == {"done", "open", "other"}
        assert [found.run.run_id for found in await heads("default", workflow="other")] == ["other"]

    @scenario
    async def test_text_and_bytes_come_back_as_they_were(self, bench: Bench) -> None:
        """Any text without NUL and any bytes are kept exactly."""
        body = bytes(range(256))
        run = await bench.start("ünï/☃ %'\"\n", fingerprint="", entries=starting().entries)
        await bench.apply(sending(run, "m\t'☃"))
        head = await bench.owned("bytes")
        change = replace(following(head), entries=(row(head.next_seq, body),))
        await bench.apply(change)
        assert (await bench.store.journal(head.run))[-1].row.body == body
        image = await bench.store.load(run)
        assert image is not None
        assert image.messages[0].message.message_id == "m\t'☃"

    @scenario
    async def test_subscribers_are_woken(self, bench: Bench) -> None:
        """A commit wakes who has subscribed, on its own loop, until it stops."""
        woken = asyncio.Event()
        stop = bench.store.subscribe(woken.set)
        await bench.start("a")
        await asyncio.wait_for(woken.wait(), 5)
        stop()
        stop()
        await asyncio.sleep(0)
        woken.clear()
        await bench.start("b")
        await asyncio.sleep(0)
        assert not woken.is_set()

    @scenario
    async def test_names(self, bench: Bench) -> None:
        """A store says where it is, what time it is there, and which history it holds."""
        assert bench.store.describe()
        assert bench.store.now() == bench.clock.now()
        assert await bench.store.timeline() == await bench.store.timeline() != ""

    @scenario
    async def test_closed_store_says_so(self, bench: Bench) -> None:
        """A closed store refuses work with an error of its own; closing again is no error."""
        await bench.store.close()
        await bench.store.close()
        refusals: list[str] = []
        try:
            await bench.store.commit([starting()])
        except StoreUnavailableError as error:
            refusals.append(str(error))
        assert len(refusals) == 1
        assert "closed" in refusals[0]
