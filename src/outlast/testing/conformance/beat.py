"""What a store promises of beats from outside: each renews the silence of a step that was handed out, and none is overlooked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from outlast.store.bound import MAX_BODY_BYTES
from outlast.store.change import (
    BeatOperation,
    OperationDrop,
    OperationPut,
    Refused,
    RunHead,
    RunKey,
    Terminate,
)
from outlast.testing.conformance.bench import Bench, ending, following, parking, scenario
from outlast.testing.conformance.rollover import rolling

SECOND = timedelta(seconds=1)


async def handed_out(bench: Bench, **fields: Any) -> tuple[RunHead, OperationPut]:
    """Return the head of a new run with a step that was handed out, and its row."""
    head = await bench.owned()
    given: dict[str, Any] = {
        "progress": b"1",
        "awaits": True,
        "heard_at": bench.clock.now(),
        "silence": 60 * SECOND,
    }
    row = OperationPut("r:1", "step", "render", **{**given, **fields})
    await bench.apply(following(head, operations=(row,)))
    return await bench.head(head.run), row


class BeatConformance:
    """Beats from outside, of steps that were handed out."""

    @scenario
    async def test_a_beat_is_kept_and_wakes_nobody(self, bench: Bench) -> None:
        """It changes the row and nothing else: the store's time, one beat more, its details, or those before where it has none."""
        head, row = await handed_out(bench)
        await bench.apply(parking(head))
        before = await bench.store.load(head.run)
        assert before is not None
        bench.clock.advance(SECOND)
        await bench.apply(BeatOperation(head.run, 1, "r:1", b"2"))
        bench.clock.advance(SECOND)
        verdict = await bench.apply(BeatOperation(head.run, 1, "r:1"))
        assert verdict.at == bench.clock.now()
        beaten = replace(row, beats=2, heard_at=bench.clock.now(), progress=b"2")
        assert await bench.store.load(head.run) == replace(before, operations=(beaten,))
        assert await bench.store.operation(head.run, "r:1") == beaten
        assert (await bench.store.claim(await bench.worker("w2"), frozenset({"fix"}), 1)).runs == ()

    @scenario
    async def test_the_time_of_a_beat_is_the_stores(self, bench: Bench) -> None:
        """Also when the wall clock was set back since the hand-out."""
        head, _ = await handed_out(bench)
        bench.clock.set_wall(bench.clock.now() - 3600 * SECOND)
        await bench.apply(BeatOperation(head.run, 1, "r:1"))
        row = await bench.store.operation(head.run, "r:1")
        assert row is not None
        assert (row.beats, row.heard_at) == (1, bench.clock.now())

    @scenario
    async def test_only_what_is_handed_out_is_beaten(self, bench: Bench) -> None:
        """Neither an attempt that is under way, nor what nobody waits for, nor another generation, nor a run that has ended."""
        head, row = await handed_out(bench)
        key = head.run
        assert await bench.one(BeatOperation(RunKey("default", "no"), 1, "r:1")) == Refused(
            "not_found"
        )
        assert await bench.one(BeatOperation(key, 2, "r:1")) == Refused("generation")
        assert await bench.one(BeatOperation(key, 1, "r:2")) == Refused("awaits", "r:2")
        await bench.apply(following(head, operations=(replace(row, awaits=False),)))
        assert await bench.one(BeatOperation(key, 1, "r:1")) == Refused("awaits", "r:1")
        await bench.apply(following(await bench.head(key), operations=(OperationDrop("r:1"),)))
        assert await bench.one(BeatOperation(key, 1, "r:1")) == Refused("awaits", "r:1")
        assert await bench.store.operation(key, "r:1") is None
        assert await bench.store.operation(RunKey("default", "no"), "r:1") is None
        await bench.apply(Terminate(key, "ann", "enough"))
        assert await bench.one(BeatOperation(key, 1, "r:1")) == Refused("closed")

    @scenario
    async def test_a_beat_is_for_one_generation(self, bench: Bench) -> None:
        """After a roll-over nobody waits for what the former one has handed out."""
        head, _ = await handed_out(bench)
        await bench.apply(rolling(head))
        assert await bench.one(BeatOperation(head.run, 1, "r:1")) == Refused("generation")
        assert await bench.one(BeatOperation(head.run, 2, "r:1")) == Refused("awaits", "r:1")

    @scenario
    async def test_no_beat_is_overlooked(self, bench: Bench) -> None:
        """What was decided without one is refused, whole, whether the row is to be replaced or to go; what knows of it holds."""
        head, row = await handed_out(bench)
        failed = replace(row, awaits=False, failures=1)
        await bench.apply(BeatOperation(head.run, 1, "r:1", b"2"))
        before = await bench.store.load(head.run)
        for act in (failed, OperationDrop("r:1", 0), replace(row, beats=2)):
            assert await bench.one(following(head, operations=(act,))) == Refused("beat", "r:1")
        assert await bench.store.load(head.run) == before
        await bench.apply(following(head, operations=(replace(failed, beats=1),)))
        assert await bench.store.operation(head.run, "r:1") == replace(failed, beats=1)
        # Nothing was handed out now: nothing can have been missed.
        await bench.apply(following(await bench.head(head.run), operations=(row,)))
        assert await bench.store.operation(head.run, "r:1") == row

    @scenario
    async def test_an_outcome_comes_whatever_was_heard(self, bench: Bench) -> None:
        """A row is dropped without a condition, and with that of a beat that is known."""
        head, row = await handed_out(bench)
        await bench.apply(BeatOperation(head.run, 1, "r:1"))
        await bench.apply(following(head, operations=(OperationDrop("r:1"),)))
        await bench.apply(following(await bench.head(head.run), operations=(row,)))
        await bench.apply(BeatOperation(head.run, 1, "r:1"))
        known = OperationDrop("r:1", 1)
        await bench.apply(following(await bench.head(head.run), operations=(known, known)))
        assert await bench.store.operation(head.run, "r:1") is None

    @scenario
    async def test_rows_of_one_change_follow_each_other(self, bench: Bench) -> None:
        """The condition of the second is judged on what the first has written."""
        head, row = await handed_out(bench)
        again = replace(row, beats=3)
        acts = (OperationDrop("r:1", 0), again, replace(row, beats=4))
        assert await bench.one(following(head, operations=acts)) == Refused("beat", "r:1")
        assert await bench.store.operation(head.run, "r:1") == row
        await bench.apply(following(head, operations=acts[:2]))
        assert await bench.store.operation(head.run, "r:1") == again

    @scenario
    async def test_beats_of_one_commit_all_count(self, bench: Bench) -> None:
        """Those for a run that ends in it are judged in the order in which they are given."""
        head, row = await handed_out(bench)
        beat = BeatOperation(head.run, 1, "r:1", b"9")
        verdicts = await bench.store.commit([beat, beat, ending(head), beat])
        assert verdicts[3] == Refused("closed")
        assert [verdict.at for verdict in verdicts[:2]] == [bench.clock.now()] * 2  # type: ignore[union-attr]
        assert row.beats == 0

    @scenario
    async def test_a_beat_that_no_store_can_keep_is_refused(self, bench: Bench) -> None:
        """Details that are too large, and a silence that is no length of time."""
        head, row = await handed_out(bench)
        large = BeatOperation(head.run, 1, "r:1", bytes(MAX_BODY_BYTES + 1))
        assert await bench.one(large) == Refused("unstorable", "progress")
        for silence in (timedelta(0), timedelta.max):
            put = replace(row, silence=silence)
            verdict = await bench.one(following(head, operations=(put,)))
            assert verdict == Refused("unstorable", "operations[0].silence")
        assert await bench.store.operation(head.run, "r:1") == row
