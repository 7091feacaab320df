"""What a step and a run cost the server, by how much goes on at once: the figures of docs/scaling.md.

python -m bench.scaling                  all tables, some minutes
python -m bench.scaling flight idle      some of them

flight     one process, more and more runs of ten steps at once
processes  the same number of runs, spread over more and more processes
effects    runs of ten effects instead of steps
stored     1,000 runs at once, in a store that holds more and more that have ended
idle       a worker that has nothing to do
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import outlast
from bench.figure import Spent, quiet
from bench.flows import acting, in_turn
from bench.place import Postgres, opened

STEPS = 10


async def _in_turns(url: str, number: int, at_once: int, name: str, flow: Any = in_turn) -> float:
    """Have so many runs done, at most `at_once` at a time; return the seconds without those of opening."""
    async with outlast.open(url) as app:
        await asyncio.gather(*(app.run(flow(STEPS), id=f"{name}-warm-{n}") for n in range(5)))
        room = asyncio.Semaphore(at_once)

        async def one(n: int) -> None:
            async with room:
                await app.run(flow(STEPS), id=f"{name}-{n}")

        began = time.perf_counter()
        await asyncio.gather(*(one(n) for n in range(number)))
        return time.perf_counter() - began


def _measured(place: Postgres, number: int, work: Callable[[], float]) -> dict[str, Any]:
    """Return what a step of `number` runs has cost, warming up included in all but the rate: it is a fraction of a per cent."""
    before = place.counts()
    with Spent(place.server) as spent:
        seconds = work()
    after = place.counts()
    steps = number * STEPS
    return {
        "steps_per_s": round(steps / seconds),
        "worker_cpu_us": round(1e6 * spent.cpu / steps),
        "server_cpu_us": round(1e6 * spent.server_cpu / steps),
        "commits": round((after["commits"] - before["commits"]) / steps, 3),
        "syncs": round((after["syncs"] - before["syncs"]) / steps, 3),
        "wal_bytes": round((after["wal_bytes"] - before["wal_bytes"]) / steps),
    }


def flight(place: Postgres) -> list[dict[str, Any]]:
    """More and more runs at once."""
    told: list[dict[str, Any]] = []
    for at_once in (1, 10, 100, 1000):
        number, url = max(at_once, 100 if at_once == 1 else 500), place.fresh()
        work = lambda: asyncio.run(_in_turns(url, number, at_once, "run"))  # noqa: E731, B023
        told.append({"at_once": at_once, **_measured(place, number, work)})
    return told


def effects(place: Postgres) -> list[dict[str, Any]]:
    """Two writes each, and the checks of their gate."""
    url = place.fresh()
    work = lambda: asyncio.run(_in_turns(url, 500, 500, "run", acting))  # noqa: E731
    return [{"at_once": 500, **_measured(place, 500, work)}]


def processes(place: Postgres) -> list[dict[str, Any]]:
    """The same over more processes."""
    told: list[dict[str, Any]] = []
    for count in (1, 2, 4, 8):
        url, each = place.fresh(), 1000 // count
        asyncio.run(_in_turns(url, 1, 1, "first"))

        def work() -> float:
            parts = [_part(url, each, f"part-{n}") for n in range(count)]  # noqa: B023
            return max(float(json.loads(part.communicate()[0])) for part in parts)

        told.append({"processes": count, **_measured(place, each * count, work)})
        told[-1].pop("worker_cpu_us")
    return told


def _part(url: str, number: int, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.scaling", "--part", url, str(number), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def stored(place: Postgres) -> list[dict[str, Any]]:
    """With more and more ended runs in the store: copies of real ones."""
    url, told, held = place.fresh(), list[dict[str, Any]](), 0
    for wanted in (0, 10_000, 100_000):
        asyncio.run(_in_turns(url, 100, 100, f"seed-{wanted}"))
        held = place.fill(url, f"seed-{wanted}-1", held, wanted)
        work = lambda: asyncio.run(_in_turns(url, 1000, 1000, f"run-{wanted}"))  # noqa: E731, B023
        told.append({"stored": wanted, **_measured(place, 1000, work)})
    return told


def idle(place: Postgres) -> list[dict[str, Any]]:
    """Nothing to do, for ten seconds."""
    url = place.fresh()

    async def wait() -> dict[str, Any]:
        async with outlast.open(url):
            await asyncio.sleep(3)
            before = place.counts()
            with Spent(place.server) as spent:
                await asyncio.sleep(10)
            after = place.counts()
        return {
            "commits_per_s": round((after["commits"] - before["commits"]) / 10, 2),
            "worker_cpu_share": round(spent.cpu / spent.seconds, 4),
            "server_cpu_share": round(spent.server_cpu / spent.seconds, 4),
        }

    return [asyncio.run(wait())]


TABLES = {
    "flight": flight,
    "processes": processes,
    "effects": effects,
    "stored": stored,
    "idle": idle,
}


def main() -> None:
    """Measure, and print a JSON line for each row."""
    quiet()
    if sys.argv[1:2] == ["--part"]:
        url, number, name = sys.argv[2:]
        print(asyncio.run(_in_turns(url, int(number), int(number), name)))
        return
    text = (inspect.getdoc(inspect.getmodule(main)) or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("table", nargs="*", help=f"of {', '.join(TABLES)}; all by default")
    options = parser.parse_args()
    if unknown := set(options.table) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    with opened("postgres") as place:
        assert isinstance(place, Postgres)
        for name in options.table or TABLES:
            for row in TABLES[name](place):
                print(json.dumps({"table": name, **row}), flush=True)


if __name__ == "__main__":
    main()
