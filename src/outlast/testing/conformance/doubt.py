"""What a store promises of effects in doubt: what their rows say of the last attempt comes back, and they are found among all runs."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from outlast.store.change import OperationDrop, OperationPut, RunHead, RunKey, Terminate
from outlast.store.protocol import DoubtRow
from outlast.testing.conformance.bench import Bench, ending, following, scenario
from outlast.testing.conformance.rollover import rolling

DOUBT = OperationPut("r:1", "effect", "pay", 2, in_doubt=True)


async def doubtful(
    bench: Bench, name: str, *rows: OperationPut, tenant: str = "default", workflow: str = "fix"
) -> RunHead:
    """Return the head of a new run that has these rows."""
    run = await bench.start(name, tenant=tenant, workflow=workflow, worker=await bench.worker())
    await bench.apply(following(await bench.head(run), operations=rows))
    return await bench.head(run)


class DoubtConformance:
    """Effects in doubt."""

    @scenario
    async def test_when_the_last_attempt_was_announced_is_kept(self, bench: Bench) -> None:
        """The row of an effect says when, to the microsecond, and whether it is in doubt; without that it says neither."""
        at = bench.clock.now() + timedelta(microseconds=7)
        rows = (
            replace(DOUBT, begun_at=at),
            OperationPut("r:2", "effect", "pay", begun_at=at),
            OperationPut("r:3", "step", "plan"),
        )
        head = await doubtful(bench, "a", *rows)
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.operations == rows
        assert await bench.store.operation(head.run, "r:1") == rows[0]
        assert [(one.begun_at, one.in_doubt) for one in image.operations] == [
            (at, True),
            (at, False),
            (None, False),
        ]

    @scenario
    async def test_doubts_are_paged_by_run_and_operation(self, bench: Bench) -> None:
        """Pages follow each other without loss or repetition, of one tenant, and of nothing but what is in doubt."""
        other = OperationPut("r:2", "effect", "pay", 1)
        third = replace(DOUBT, operation="r:3", name="mail")
        await doubtful(bench, "b", DOUBT)
        await doubtful(bench, "a", third, other, DOUBT)
        await doubtful(bench, "c", other)
        await doubtful(bench, "d", DOUBT, tenant="other")
        doubts = bench.store.doubts
        first = await doubts("default", limit=2)
        a, b = RunKey("default", "a"), RunKey("default", "b")
        assert first == [DoubtRow(a, "r:1", "pay"), DoubtRow(a, "r:3", "mail")]
        rest = await doubts("default", after=("a", "r:3"))
        assert rest == [DoubtRow(b, "r:1", "pay")]
        assert await doubts("default", after=("b", "r:1")) == []
        assert await doubts("default", limit=0) == []
        assert [one.run.run_id for one in await doubts("other")] == ["d"]

    @scenario
    async def test_doubts_are_filtered(self, bench: Bench) -> None:
        """By the effect's name, and by the workflow of the run."""
        await doubtful(bench, "a", DOUBT, replace(DOUBT, operation="r:2", name="mail"))
        await doubtful(bench, "b", DOUBT, workflow="other")
        doubts = bench.store.doubts
        assert [one.run.run_id for one in await doubts("default", effect="pay")] == ["a", "b"]
        assert [one.operation for one in await doubts("default", workflow="fix")] == ["r:1", "r:2"]
        found = await doubts("default", effect="pay", workflow="other")
        assert [one.run.run_id for one in found] == ["b"]
        assert await doubts("default", effect="\udcff") == await doubts("\udcff") == []

    @scenario
    async def test_a_doubt_is_over_with_its_row_or_its_run(self, bench: Bench) -> None:
        """What was settled, cleared, rolled over, ended or terminated is in doubt no more."""
        heads = [await doubtful(bench, name, DOUBT) for name in "abcde"]
        cleared = replace(DOUBT, in_doubt=False)
        await bench.apply(following(heads[0], operations=(OperationDrop("r:1"),)))
        await bench.apply(following(heads[1], operations=(cleared,)))
        await bench.apply(rolling(heads[2]))
        await bench.apply(ending(heads[3]))
        assert [one.run.run_id for one in await bench.store.doubts("default")] == ["e"]
        await bench.apply(Terminate(heads[4].run, "admin", "no more"))
        assert await bench.store.doubts("default") == []
