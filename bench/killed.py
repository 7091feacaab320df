"""The scenarios whose process is killed, S5 and S6: each part is a process of its own.

python -m bench.killed URL FILE RUNS STEPS LAST DOOMED
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import outlast
from bench.figure import noted_lines, quiet
from bench.flows import Doom, in_danger
from bench.place import Place

LEASE = timedelta(seconds=2)
"""Short, so that a store that cannot see a death waits no longer; what it waits is told apart."""


async def s5(place: Place, number: int = 1000) -> dict[str, Any]:
    """Ten steps each, killed when all are in their seventh."""
    return await asyncio.to_thread(_killed, place, number, 10, 7)


async def s6(place: Place, number: int = 5000) -> dict[str, Any]:
    """Many recorded steps of one run, killed in the last."""
    return await asyncio.to_thread(_killed, place, 1, number + 1, number + 1)


def _killed(place: Place, runs: int, steps: int, last: int) -> dict[str, Any]:
    url, notes = place.fresh(), place.folder / f"steps-{runs}-{steps}-{time.time_ns()}"
    arguments = [url, str(notes), str(runs), str(steps), str(last)]
    _part([*arguments, "doomed"])
    before = noted_lines(notes)
    began = time.time()
    told = json.loads(_part([*arguments, "again"]).splitlines()[-1])
    again = noted_lines(notes)[len(before) :]
    return {
        "n": runs,
        "steps": steps,
        "process_s": told["done"] - began,
        "open_to_first_step_s": told["first"] - told["opened"],
        "first_step_to_done_s": told["done"] - told["first"],
        "steps_before": len(before),
        "repeated": sum(int(line.rpartition(":")[2]) < last for line in again),
    }


def _part(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "bench.killed", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in {0, -9}:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


async def _run(url: str, runs: int, steps: int, last: int) -> None:
    opened = time.time()
    async with outlast.open(url, lease=LEASE) as app:
        names = [f"run-{n}" for n in range(runs)]
        handles = await asyncio.gather(
            *(app.start(in_danger(name, steps, last), id=name) for name in names)
        )
        await asyncio.gather(*(handle.result() for handle in handles))
        done = time.time()
    print(json.dumps({"opened": opened, "first": Doom.first, "done": done}))


def main() -> None:
    """Be one of the processes."""
    quiet()
    url, notes, runs, steps, last, role = sys.argv[1:]
    Doom.notes = str(Path(notes))
    Doom.runs = int(runs) if role == "doomed" else 0
    asyncio.run(_run(url, int(runs), int(steps), int(last)))


if __name__ == "__main__":
    main()
