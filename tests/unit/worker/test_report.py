"""What a worker says of itself: word in its row, figures to whoever is told, attempts as they end."""

import asyncio
import contextlib
from datetime import timedelta

import outlast
from outlast.meter import instrument as of
from outlast.worker.report import Reporter, report_in


@outlast.step
async def works() -> int:
    """Work."""
    return 1


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
def breaks() -> None:
    """Break."""
    raise ValueError("no")


@outlast.step(
    retry=outlast.RetryPolicy(maximum_attempts=1),
    start_to_close_timeout=timedelta(milliseconds=1),
)
async def hangs() -> None:
    """Hang."""
    await asyncio.Event().wait()


@outlast.workflow
async def all_three() -> int:
    """Work, break and hang."""
    for one in (breaks, hangs):
        with contextlib.suppress(Exception):
            await one()
    return await works()


def test_attempts_are_counted_as_they_end():
    """Begun, and returned, raised or timed out."""

    async def main():
        async with outlast.open("memory://", workflows=[all_three]) as app:
            await app.run(all_three(), id="a")
            return app._tally

    tally = asyncio.run(main())
    assert tally.count(of.ATTEMPTS_STARTED) == 3
    for outcome in ("returned", "raised", "timed_out"):
        assert tally.count(of.ATTEMPTS_ENDED, outcome) == 1
    assert tally.count(of.STEPS, "failed") == 2


def test_a_worker_leaves_word_in_its_row():
    """What it has in memory, and what it has counted; another process reads it."""

    async def main():
        async with outlast.open("memory://", workflows=[all_three]) as app:
            await app.run(all_three(), id="a")
            (before,) = await app.store.workers()
            assert report_in(before.report) is None
            await Reporter(app.store, app.worker, app._tally).report()
            (after,) = await app.store.workers()
            return report_in(after.report)

    report = asyncio.run(main())
    assert report is not None
    assert report.numbers.counts["outlast.run.ended"] == {"completed": 1}
    assert report.numbers.measures["outlast.store.commit.size"].count >= 3
    assert report.tasks == 0


def test_what_is_told_is_there_from_the_beginning():
    """Whoever meters an app has figures before the first interval is over; a store that is away stops nothing."""
    seen = asyncio.Event()
    found = []

    class Watching:
        def add(self, counter, number=1, label=""): ...

        def record(self, histogram, value): ...

        def observe(self, figures):
            found.append(figures)
            seen.set()

    async def main():
        async with outlast.open("memory://", workflows=[all_three], meters=Watching()):
            await asyncio.wait_for(seen.wait(), 10)

    asyncio.run(main())
    assert found[0].workers_live == 1


def test_damaged_word_is_none():
    """Bytes that are no report, or one of other code, are shown as nothing."""
    assert report_in(b"") is report_in(b"{") is report_in(b'{"runs": "x"}') is None
