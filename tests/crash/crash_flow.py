"""Workflows for crash tests. Each body writes a line to a log that outlives every process: the receiver's own log.

Guards: a line is written before the body does anything else, so that a body that began can be told from one that did not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import outlast

DIRECTORY = "OUTLAST_CRASH_DIRECTORY"
TIMEOUT = timedelta(seconds=0.4)
SETTLE = timedelta(seconds=0.2)
QUICK = outlast.RetryPolicy(initial_interval=timedelta(seconds=0.1), maximum_attempts=6)
Go = outlast.Signal("go", str)


async def _no_stop() -> None:
    raise AssertionError("this process was not told how to stop itself")


stop_this_process: Callable[[], Awaitable[None]] = _no_stop
"""Stops the whole process with SIGSTOP at a moment when it holds no lock of the database. Set by the worker's script."""


def directory() -> Path:
    """Return where log and flags lie."""
    return Path(os.environ[DIRECTORY])


def note(body: str, label: str, **more: Any) -> None:
    """Append a line to the log."""
    line = {"body": body, "label": label, "pid": os.getpid(), "at": time.time(), **more}
    with (directory() / "receiver.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def first_here(flag: str) -> bool:
    """Whether nobody has asked for this flag before, in any process."""
    try:
        (directory() / flag).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@outlast.step
async def count(label: str, number: int) -> int:
    """Give the number back."""
    note("count", label, number=number)
    return number


# A step that is held until a file says go


@outlast.step
async def hold(label: str) -> int:
    """Wait until the file `go-<label>` exists."""
    note("hold", label)
    while not (directory() / f"go-{label}").exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@outlast.workflow
async def held(label: str) -> int:
    """Return the process that got through."""
    return await hold(label)


@outlast.workflow
async def gated(label: str, steps: int) -> int:
    """Be held, then add up what the steps give."""
    await hold(label)
    total = 0
    for number in range(steps):
        total += await count(label, number)
    return total


# Effects


@outlast.effect(idempotent=True)
async def pay(label: str) -> str:
    """Pay, at a receiver that knows the key."""
    note("pay", label, key=outlast.idempotency_key())
    return outlast.idempotency_key()


async def find_order(label: str) -> outlast.Applied[str] | outlast.NotApplied:
    """Ask the receiver's log."""
    note("find_order", label)
    lines = (directory() / "receiver.jsonl").read_text().splitlines()
    found = [
        one for one in map(json.loads, lines) if (one["body"], one["label"]) == ("order", label)
    ]
    return outlast.Applied(found[0]["key"]) if found else outlast.NotApplied()


@outlast.effect(probe=find_order, start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def order(label: str) -> str:
    """Order, at a receiver that can be asked."""
    note("order", label, key=outlast.idempotency_key())
    return outlast.idempotency_key()


@outlast.workflow
async def purchase(label: str) -> list[str]:
    """A step, two effects, a step."""
    await count(label, 1)
    keys = [await pay(label), await order(label)]
    await count(label, 2)
    return keys


@outlast.workflow
async def counted(label: str, steps: int) -> list[str]:
    """Add up what the steps give, and pay that; then count on."""
    total = 0
    for number in range(steps):
        total += await count(label, number)
    key = await pay(f"{label} {total}")
    return [key, str(await count(label, steps))]


# A step whose body stops its own process


@outlast.step
async def freeze(label: str) -> int:
    """Stop the process in the middle of the body, the first time."""
    note("freeze", label)
    if first_here(f"frozen-{label}"):
        await stop_this_process()
    return os.getpid()


@outlast.workflow
async def frozen(label: str) -> int:
    """Freeze, then pay."""
    pid = await freeze(label)
    await pay(label)
    return pid


# An effect whose body stops its own process, and returns when that goes on


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def pledge(label: str) -> int:
    """Stop the process in the middle of the body, the first time; then end as if nothing had been."""
    note("pledge", label, key=outlast.idempotency_key())
    if first_here(f"pledged-{label}"):
        with contextlib.suppress(asyncio.CancelledError):
            await stop_this_process()
    return os.getpid()


@outlast.workflow
async def pledged(label: str) -> int:
    """Return the process that has pledged."""
    return await pledge(label)


# Failing attempts


def fail(label: str, good_from: int, killed_at: int) -> int:
    """Fail before attempt `good_from`, and kill the process in the first body of attempt `killed_at`."""
    number = outlast.attempt().number
    note("fail", label, number=number, key=outlast.attempt().key)
    if number == killed_at and first_here(f"killed-{label}"):
        os.kill(os.getpid(), signal.SIGKILL)
    if number < good_from:
        raise RuntimeError(f"attempt {number} fails")
    return number


@outlast.step(retry=QUICK)
async def flaky_step(label: str, good_from: int, killed_at: int) -> int:
    """A step that fails."""
    return fail(label, good_from, killed_at)


@outlast.effect(idempotent=True, retry=QUICK)
async def flaky_effect(label: str, good_from: int, killed_at: int) -> int:
    """An effect that fails."""
    return fail(label, good_from, killed_at)


@outlast.workflow
async def patient(label: str, kind: str, good_from: int, killed_at: int) -> int:
    """Return the number of the attempt that went well."""
    if kind == "step":
        return await flaky_step(label, good_from, killed_at)
    return await flaky_effect(label, good_from, killed_at)


# Signs of life, and completion from outside


@outlast.step(heartbeat_timeout=timedelta(seconds=0.5), retry=QUICK)
async def crawl(label: str, pages: int, killed_at: int) -> list[int | None]:
    """Beat each page; kill the process at one of them, the first time. Return where it began and where it ended."""
    first = outlast.heartbeat_details(int)
    note("crawl", label, number=outlast.attempt().number, first=first)
    for page in range((first or 0) + 1, pages + 1):
        outlast.heartbeat(page)
        await asyncio.sleep(0.02)
        if page == killed_at and first_here(f"killed-{label}"):
            os.kill(os.getpid(), signal.SIGKILL)
    return [first, pages]


@outlast.workflow
async def crawling(label: str, pages: int, killed_at: int) -> list[int | None]:
    """Return where the last attempt began, and where it ended."""
    return await crawl(label, pages, killed_at)


@outlast.step(retry=QUICK)
async def render(label: str) -> int:
    """Hand a token out, and be completed by whoever has it."""
    note("render", label, token=outlast.completion_token())
    outlast.complete_later()


@outlast.workflow
async def film(label: str) -> int:
    """Return what was said from outside."""
    return await render(label)


# A process that stops itself while it waits between two attempts

GAP = outlast.RetryPolicy(initial_interval=timedelta(seconds=0.4))
_stopping: set[asyncio.Task[None]] = set()


@outlast.effect(idempotent=True, retry=GAP)
async def refused_once(label: str) -> str:
    """Fail the first time, and stop the process in the middle of the wait that follows."""
    note("refused_once", label)
    if first_here(f"refused-{label}"):
        _stopping.add(asyncio.create_task(_stop_in(GAP.initial_interval / 2)))
        raise RuntimeError("not now")
    return outlast.idempotency_key()


async def _stop_in(wait: timedelta) -> None:
    await asyncio.sleep(wait.total_seconds())
    await stop_this_process()


@outlast.workflow
async def retried(label: str) -> str:
    """Return what the second attempt gives."""
    return await refused_once(label)


# Being talked to


@outlast.workflow
async def talk(label: str) -> str:
    """Wait for a message, then for a yes to a payment, then pay."""
    word = await outlast.receive(Go)
    grant = await outlast.approval(
        {"label": label}, covers=[pay(label)], role="payer", expires_in=timedelta(hours=1)
    )
    await pay(label)
    return f"{word} {grant.by}"
