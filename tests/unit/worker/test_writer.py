"""Group commit: a definite verdict for everybody, whatever the store answers at first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from outlast.errors import StoreUnavailableError
from outlast.store.change import (
    Applied,
    Change,
    RunChange,
    RunKey,
    Terminate,
    Unknown,
    Verdict,
    WorkerId,
)
from outlast.testing import SimulatedClock, SimulatedLoop
from outlast.worker.writer import BATCH, Writer

T = TypeVar("T")
Unavailable = StoreUnavailableError("away", hint="wait")


class Script:
    """A store that answers as told, then applies everything."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.batches: list[list[str]] = []

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Answer."""
        self.batches.append([one.run.run_id for one in changes])
        await asyncio.sleep(0.01)
        answer = self.answers.pop(0) if self.answers else "applied"
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, list):
            return answer
        return [Applied(NOW) for _ in changes]


CLOCK = SimulatedClock()
NOW = CLOCK.now()


def run(work: Callable[[Writer], Awaitable[T]], script: Script) -> T:
    """Run something with a writer on a scripted store."""

    async def main() -> T:
        return await work(Writer(script, lambda: lambda _: None))

    loop = SimulatedLoop(SimulatedClock())
    try:
        return loop.run_until_complete(main())
    finally:
        loop.drain()


def change(name: object) -> Terminate:
    """Return some change."""
    return Terminate(RunKey("default", str(name)), by="me", reason="")


def test_what_comes_during_a_commit_goes_into_the_next() -> None:
    """Ten changes at three moments are two commits more than one."""
    script = Script()

    async def work(writer: Writer) -> None:
        first = asyncio.ensure_future(writer.submit(change("a")))
        await asyncio.sleep(0.005)
        await asyncio.gather(first, *(writer.submit(change(one)) for one in range(9)))

    run(work, script)
    assert [len(one) for one in script.batches] == [1, 9]


def test_unknown_is_sent_again_and_never_answered() -> None:
    """Only those whose fate is unknown are sent again, before what came later."""
    script = Script([Applied(NOW), Unknown("lost"), Applied(NOW)])

    async def work(writer: Writer) -> list[Verdict]:
        three = [asyncio.ensure_future(writer.submit(change(one))) for one in "abc"]
        await asyncio.sleep(0.005)
        later = asyncio.ensure_future(writer.submit(change("d")))
        return list(await asyncio.gather(*three, later))

    assert run(work, script) == [Applied(NOW)] * 4
    assert script.batches == [["a", "b", "c"], ["b", "d"]]


def test_an_unavailable_store_is_asked_again() -> None:
    """With growing pauses, until it answers; order is kept."""
    script = Script(*[StoreUnavailableError("away", hint="wait")] * 5)

    async def work(writer: Writer) -> list[Verdict]:
        return list(await asyncio.gather(*(writer.submit(change(one)) for one in "ab")))

    assert run(work, script) == [Applied(NOW)] * 2
    assert script.batches == [["a", "b"]] * 6


def test_a_bug_in_a_store_reaches_who_waits() -> None:
    """And the writer goes on with the next change."""
    script = Script(ValueError("a bug"))

    async def work(writer: Writer) -> Verdict:
        with pytest.raises(ValueError, match="a bug"):
            await writer.submit(change("a"))
        return await writer.submit(change("b"))

    assert run(work, script) == Applied(NOW)


def test_a_bug_in_a_store_stops_nobody_else() -> None:
    """What was queued behind the change that met the bug is written, although nobody submits anything after it."""
    script = Script(ValueError("a bug"))

    async def work(writer: Writer) -> list[object]:
        first = asyncio.ensure_future(writer.submit(change("a")))
        await asyncio.sleep(0.005)
        return await asyncio.gather(first, writer.submit(change("b")), return_exceptions=True)

    first, second = run(work, script)
    assert isinstance(first, ValueError)
    assert second == Applied(NOW)


def test_a_batch_is_bounded() -> None:
    """So that no run waits long for its neighbours."""
    script = Script()

    async def work(writer: Writer) -> None:
        await asyncio.gather(*(writer.submit(change(one)) for one in range(BATCH + 1)))

    run(work, script)
    assert [len(one) for one in script.batches] == [BATCH, 1]


def test_who_no_longer_waits_is_not_written() -> None:
    """A change that was given up before it was sent is left out."""
    script = Script()

    async def work(writer: Writer) -> None:
        first = asyncio.ensure_future(writer.submit(change("a")))
        await asyncio.sleep(0.005)
        second = asyncio.ensure_future(writer.submit(change("b")))
        await asyncio.sleep(0.001)
        second.cancel()
        await first
        await writer.submit(change("c"))

    run(work, script)
    assert script.batches == [["a"], ["c"]]


def test_a_close_writes_what_is_queued() -> None:
    """Within the time that it is given."""
    script = Script(Unavailable, Unavailable)

    async def work(writer: Writer) -> list[Verdict]:
        waiting = [asyncio.ensure_future(writer.submit(change(one))) for one in "ab"]
        await asyncio.sleep(0.005)
        await writer.close(within=5)
        return list(await asyncio.gather(*waiting))

    assert run(work, script) == [Applied(NOW)] * 2


@pytest.mark.parametrize("within", [0.0, 3.0])
def test_a_closed_writer_says_so(within: float) -> None:
    """Who waits, on its way or in the queue, and who comes later: an error that says what to do, never a cancel."""
    script = Script(*[Unavailable] * 100)

    async def work(writer: Writer) -> list[object]:
        first = asyncio.ensure_future(writer.submit(change("a")))
        await asyncio.sleep(0.005)
        second = asyncio.ensure_future(writer.submit(change("b")))
        await asyncio.sleep(0)
        await writer.close(within)
        later = writer.submit(change("c"))
        return await asyncio.gather(first, second, later, return_exceptions=True)

    for error in run(work, script):
        assert isinstance(error, StoreUnavailableError)
        assert error.hint


def test_only_the_worker_of_an_applied_change_is_renewed() -> None:
    """A change of a former life renews nothing of the present one."""
    renewed: list[str] = []
    owned = RunChange(RunKey("default", "r"), WorkerId("former"), epoch=1, version=0)

    async def main() -> None:
        writer = Writer(Script(), lambda: renewed.append)
        await asyncio.gather(writer.submit(owned), writer.submit(change("a")))

    SimulatedLoop(SimulatedClock()).run_until_complete(main())
    assert renewed == ["former"]
