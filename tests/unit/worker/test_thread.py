"""The real threads of an app: room for so many, a word when there is none, and no run for what was cancelled in the queue."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from outlast.app import SystemThreads


def test_what_waits_for_a_thread_can_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """It never runs; and that every thread is busy is said once."""
    leave, ran = threading.Event(), []

    async def main() -> list[object]:
        threads = SystemThreads(limit=1)
        first = asyncio.ensure_future(threads.run(leave.wait))
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(threads.run(lambda: ran.append(1))) for _ in range(3)]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        leave.set()
        return [await first, await threads.run(lambda: "free")]

    with caplog.at_level(logging.WARNING, "outlast"):
        assert asyncio.run(asyncio.wait_for(main(), 10)) == [True, "free"]
    assert ran == []
    assert [one.message for one in caplog.records if "all 1 threads" in one.message] != []
    assert len(caplog.records) == 1
