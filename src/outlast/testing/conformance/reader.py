"""What a store promises of reading and of its own life: pages, hints, names, an end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec.structs import replace

from outlast.errors import StoreUnavailableError
from outlast.journal.entry import EntryRow
from outlast.store.change import RunKey, Status, WorkerId
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
        assert await bench.store.latest(run, "published", "name") is None
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
    async def test_journal_after_a_place(self, bench: Bench) -> None:
        """What came after a place is read without what came before; after the end there is nothing."""
        head = await bench.owned()
        await bench.apply(following(head, entries=4))
        journal = bench.store.journal
        whole = await journal(head.run)
        assert [one.row.seq for one in whole] == [0, 1, 2, 3, 4]
        for after in (-7, -1, 0, 2, 4, 9):
            assert await journal(head.run, after=after) == whole[max(after + 1, 0) :]
            assert await journal(head.run, generation=1, after=after) == whole[max(after + 1, 0) :]
        assert await journal(head.run, generation=2, after=0) == ()

    @scenario
    async def test_latest_of_a_kind_and_name(self, bench: Bench) -> None:
        """The last entry of a kind and name is found, of its own run and generation, whatever else was written."""
        head, latest = await bench.owned(), bench.store.latest
        kinds = ("published", "published", "step_completed", "published", "published")
        names = ("a", "b", "a", "a", "c")
        entries = tuple(
            EntryRow(seq, seq, kind, "", name, str(seq).encode())
            for seq, kind, name in zip(range(1, 6), kinds, names, strict=True)
        )
        await bench.apply(following(head, entries=0))
        await bench.apply(replace(following(await bench.head(head.run)), entries=entries))
        other = starting("run", tenant="other", entries=(replace(entries[0], seq=0),))
        await bench.apply(other)
        whole = await bench.store.journal(head.run)
        assert await latest(head.run, "published", "a") == whole[4]
        assert await latest(head.run, "published", "b") == whole[2]
        assert await latest(head.run, "step_completed", "a", generation=1) == whole[3]
        assert await latest(head.run, "published", "a", generation=2) is None
        assert await latest(head.run, "published", "d") is None
        assert (await bench.store.journal(other.run))[0] == await latest(
            other.run, "published", "a"
        )

    @scenario
    async def test_latest_of_the_current_generation(self, bench: Bench) -> None:
        """What a former generation has written is not found, unless it is asked for."""
        head, latest = await bench.owned(), bench.store.latest
        said = EntryRow(1, 1, "published", "r:1", "a", b"{}")
        await bench.apply(replace(following(head), entries=(said,)))
        await bench.apply(ending(await bench.head(head.run)))
        found = await latest(head.run, "published", "a")
        assert found is not None
        assert found.row == said
        await bench.apply(starting(generation=2))
        assert await latest(head.run, "published", "a") is None
        assert await latest(head.run, "published", "a", generation=1) == found

    @scenario
    async def test_what_no_row_can_hold_is_not_there(self, bench: Bench) -> None:
        """Text that cannot be encoded, and numbers beyond 63 bits, find nothing, or everything that is on this side of them."""
        head, store, no_text, far = await bench.owned(), bench.store, "\udcff", 10**20
        nowhere = RunKey("default", no_text)
        assert await store.head(nowhere) is await store.load(nowhere) is None
        assert await store.heads(no_text) == await store.heads("default", workflow=no_text) == []
        assert await store.approvals("default", run=nowhere) == await store.approvals(no_text) == []
        assert await store.answer(head.run, no_text) is await store.operation(head.run, no_text)
        assert await store.latest(head.run, "published", no_text) is None
        assert await store.control(no_text, "n") is await store.last_entry(head.run, far) is None
        assert await store.journal(head.run, generation=far) == ()
        assert await store.journal(head.run, after=far) == ()
        assert len(await store.journal(head.run, after=-far)) == 1
        assert len(await store.heads("default", limit=far)) == 1
        assert len(await store.generations(head.run, limit=far)) == 1
        assert await store.outbox(far) == list(await store.mail(nowhere)) == []
        claim = await store.claim(WorkerId("w1"), frozenset({no_text}), far)
        assert (claim.runs, claim.next_due) == ((), None)
        tasks = await store.claim_tasks(
            WorkerId("w1"), frozenset({no_text}), frozenset({no_text}), limit=far
        )
        assert (tasks.tasks, tasks.next_due) == ((), None)

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
