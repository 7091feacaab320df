"""One scene: worker processes, a client that never stops asking, some trouble; then everything ends, and all of it is checked."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import chaos_flow
from chaos_bench import Fleet, soon
from chaos_check import check_file, check_run
from chaos_load import PRINCIPAL, Load

from outlast.app import SystemRandom
from outlast.client import Client
from outlast.store.sqlite.store import open_sqlite

SEED = int(os.environ.get("OUTLAST_CHAOS_SEED") or 0) or zlib.crc32(
    # All processes of one test run must choose the same.
    os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode()
)
ERRORS = ("Traceback", "broke inside Outlast", "is locked", "poison")
PATIENCE_SECONDS = 60


async def play(
    fleet: Fleet,
    trouble: Callable[[Load], Awaitable[None]],
    *,
    seed: int = SEED,
    workers: int = 2,
    pause: float = 0.08,
    calm: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Let trouble come under load, let everything come to its end, and check all of it; return how many runs there were.

    Args:
        pause: Seconds between two starts.
        calm: What to do when everything has ended, and the workers still live.
    """
    print(f"OUTLAST_CHAOS_SEED={seed}")
    store = await open_sqlite(fleet.file, clock=fleet.clock)
    try:
        client = Client(store, random=SystemRandom(), principal=PRINCIPAL)
        load = Load(client, fleet.directory, seed)
        await fleet.start(workers)
        await rage(load, trouble, pause)
        if calm is not None:
            await calm()
        await fleet.end()
        await soon(chaos_flow.all_arrived, "what was sent late arrives")
        for label in sorted(load.accepted.starts):
            await check_run(store, fleet.clock, label, load.accepted)
    finally:
        await store.close()
    check_file(fleet.file)
    check_log(fleet)
    return len(load.accepted.starts)


async def rage(
    load: Load, trouble: Callable[[Load], Awaitable[None]], pause: float, at_once: int = 0
) -> None:
    """Start runs, let trouble come, and wait until every run has ended; see `play`."""
    over = asyncio.Event()
    looking = asyncio.create_task(load.look_after())
    try:
        starting = asyncio.create_task(load.start_for(over, pause, at_once))
        try:
            await trouble(load)
        finally:
            over.set()
            await starting
        await load.tended()
        await _first_of(load.all_ended(PATIENCE_SECONDS), looking)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await load.stop()


async def _first_of(work: Any, looking: asyncio.Task[None]) -> None:
    """Wait for `work`; one who looks after the runs and fails ends the wait."""
    working = asyncio.ensure_future(work)
    await asyncio.wait({working, looking}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        working.cancel()
        looking.result()
    await working


def check_log(fleet: Fleet) -> None:
    """No worker met an error of its own, or spoke of locks."""
    words = fleet.log.read_text()
    for word in ERRORS:
        assert word not in words, words[max(0, words.index(word) - 3000) :][:6000]
