"""The scenarios that need one process: S1, S2, S3, S4, S7."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import outlast
from bench.figure import Spent, latency, resident_bytes
from bench.flows import GO, PAYLOAD, in_turn, waiting
from bench.place import Place
from outlast.app import App
from outlast.meter.instrument import COMMIT_SECONDS
from outlast.meter.tally import Tally

STEPS = 10


async def _warm_up(app: App, steps: int = STEPS) -> None:
    await asyncio.gather(*(app.run(in_turn(steps), id=f"warm-{n}") for n in range(5)))


async def s1(place: Place, number: int = 1000) -> dict[str, Any]:
    """One run whose steps follow one another; a commit each."""
    async with outlast.open(place.fresh()) as app:
        await _warm_up(app)
        with Spent(place.server) as spent:
            await app.run(in_turn(number), id="long")
    return {
        "n": number,
        "seconds": spent.seconds,
        "steps_per_s": number / spent.seconds,
        **spent.per(number),
    }


async def s2(place: Place, number: int = 1000) -> dict[str, Any]:
    """Many runs at once: what is written at one time is committed together."""
    meters = Tally()
    async with outlast.open(place.fresh(), meters=meters) as app:
        await _warm_up(app)
        before = _commits(meters)
        with Spent(place.server) as spent:
            await asyncio.gather(*(app.run(in_turn(STEPS), id=f"run-{n}") for n in range(number)))
        commits = _commits(meters) - before
    return {
        "n": number,
        "seconds": spent.seconds,
        "steps_per_s": number * STEPS / spent.seconds,
        "commits": commits,
        **spent.per(number * STEPS),
    }


def _commits(meters: Tally) -> int:
    measured = meters.report().measures.get(COMMIT_SECONDS.name)
    return measured.count if measured else 0


async def s3(place: Place, number: int = 200) -> dict[str, Any]:
    """One small run after the other, each awaited."""
    took: list[float] = []
    async with outlast.open(place.fresh()) as app:
        await _warm_up(app, 1)
        for n in range(number):
            began = time.perf_counter()
            await app.run(in_turn(1), id=f"run-{n}")
            took.append(time.perf_counter() - began)
    return {"n": number, "seconds": sum(took), **latency(took)}


async def s4(place: Place, number: int = 1000) -> dict[str, Any]:
    """Runs that wait, and a message for each."""
    async with outlast.open(place.fresh()) as app:
        await _warm_up(app)
        gc.collect()
        before = resident_bytes()
        began = time.perf_counter()
        handles = await asyncio.gather(
            *(app.start(waiting(), id=f"run-{n}") for n in range(number))
        )
        started = time.perf_counter() - began
        while app.worker.runs:  # noqa: ASYNC110 - nobody says that the last one is parked
            await asyncio.sleep(0.1)
        gc.collect()
        per_run = (resident_bytes() - before) / number
        with Spent(place.server) as spent:
            await asyncio.gather(*(handle.send(GO, PAYLOAD) for handle in handles))
            sent = time.perf_counter()
            await asyncio.gather(*(handle.result() for handle in handles))
            ended = time.perf_counter()
    return {
        "n": number,
        "seconds": spent.seconds,
        "start_s": started,
        "rest_s": ended - sent,
        "bytes_per_parked_run": round(per_run),
    }


async def s7(place: Place, number: int = 500) -> dict[str, Any]:
    """What runs leave behind that came one after the other."""
    url, other = place.fresh(), place.fresh()
    async with outlast.open(other) as app:
        await _warm_up(app)
    empty = place.kept_bytes(other)
    meters = Tally()
    async with outlast.open(url, meters=meters) as app:
        await _warm_up(app)
        before, commits = place.counts(), _commits(meters)
        for n in range(number):
            await app.run(in_turn(STEPS), id=f"run-{n}")
        commits = _commits(meters) - commits
        after = place.counts()
    counted = {f"{name}_per_run": (after[name] - before[name]) / number for name in after}
    return {
        "n": number,
        "kept_bytes_per_run": (place.kept_bytes(url) - empty) / number,
        "commits_sent_per_run": commits / number,
        **counted,
    }
