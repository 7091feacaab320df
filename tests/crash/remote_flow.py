"""Workflows whose steps run in another process, for crash tests. Bodies write to the log of `crash_flow`."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from crash_flow import count, directory, note

import outlast

QUEUE = "gpu"
RESULT = [1, 20, 2, 2]
TWICE = outlast.RetryPolicy(initial_interval=timedelta(seconds=0.1), maximum_attempts=2)


@outlast.step(queue=QUEUE)
async def far_hold(label: str) -> int:
    """Wait until the file `go-<label>` exists; return the process."""
    note("far_hold", label, number=outlast.attempt().number)
    while not (directory() / f"go-{label}").exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@outlast.step(queue=QUEUE)
def far(label: str, number: int) -> int:
    """Give ten times the number, in a thread."""
    note("far", label, number=outlast.attempt().number)
    return number * 10


@outlast.step(queue=QUEUE, retry=TWICE)
async def far_flaky(label: str) -> int:
    """Fail the first time."""
    number = outlast.attempt().number
    note("far_flaky", label, number=number)
    if number < 2:
        raise RuntimeError("not yet")
    return number


@outlast.workflow
async def remote_held(label: str) -> int:
    """Return the process that got through."""
    return await far_hold(label)


@outlast.workflow
async def there_and_back(label: str) -> list[int]:
    """A step here, two there, one of which fails once, a step here."""
    return [
        await count(label, 1),
        await far(label, 2),
        await far_flaky(label),
        await count(label, 2),
    ]
