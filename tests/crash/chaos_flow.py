"""Workflows for chaos: short, of every kind, against a receiver that lies in files and outlives every process.

Assumption A holds in them: an effect sends its request in one moment, in the callback in which the worker has looked at its lease,
before the first `await`; the receiver acts then, or `LATE_SECONDS` later, whatever became of the sender. A worker process is only ever stopped by a callback of its own event loop (`chaos_process.py`), so never between
that look and the act; killed it may be at any moment. The one synchronous effect is idempotent: it may act late, with its key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import outlast

DIRECTORY = "OUTLAST_CHAOS_DIRECTORY"
BALLAST = "OUTLAST_CHAOS_BALLAST"
"""Names a file on a small disk, to be made as large as it can be."""
LOG = "OUTLAST_CHAOS_LOG"
"""Names the write-ahead log, beyond whose size nothing is to be written."""
TIMEOUT = timedelta(seconds=0.3)
SETTLE = timedelta(seconds=0.5)
LATE_SECONDS = 0.45
"""Well below timeout and settle, since a machine under load may keep the request waiting on its way."""
HOUR = timedelta(hours=1)
AGES = timedelta(days=7300)
"""Longer than any step of a clock here."""
QUICK = outlast.RetryPolicy(
    initial_interval=timedelta(seconds=0.05), maximum_interval=timedelta(seconds=0.2)
)
ChaosGo = outlast.Signal("chaos_go", int)
Never = outlast.Signal("chaos_never", int)

MOODS = (
    "act",
    "act",
    "act late",
    "act, then fail",
    "fail",
    "act late, then fail",
    "act, then hang",
)
"""What the first attempt at an effect comes to, by its name and label; all later ones act and return."""


def _file(folder: str, body: str, label: str) -> Path:
    directory = Path(os.environ[DIRECTORY]) / folder
    directory.mkdir(exist_ok=True)
    return directory / f"{body} {label}"


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def acts(body: str, label: str) -> list[dict[str, Any]]:
    """Return what the receiver has done by now, in the order of the requests."""
    path = _file("acts", body, label)
    lines = path.read_text().splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["at"] <= _now()]


def all_arrived() -> bool:
    """Whether the receiver has done all that was sent to it: what is late comes after the end of its run."""
    lines = (
        line
        for path in (Path(os.environ[DIRECTORY]) / "acts").glob("*")
        for line in path.read_text().splitlines()
    )
    return all(one["at"] <= _now() for one in map(json.loads, lines))


def act(body: str, label: str, at: float | None = None) -> None:
    """Have the world changed, now or at a time; again if asked again."""
    attempt = outlast.attempt()
    line = {
        "key": attempt.key,
        "operation": attempt.operation,
        "pid": os.getpid(),
        "at": _now() if at is None else at,
    }
    with _file("acts", body, label).open("a") as file:
        file.write(json.dumps(line) + "\n")


def first_here(body: str, label: str) -> bool:
    """Whether nobody has asked for this before, in any process."""
    try:
        _file("tried", body, label).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def mood(body: str, label: str) -> str:
    """Return what the first attempt comes to."""
    return MOODS[zlib.crc32(f"{body} {label}".encode()) % len(MOODS)]


async def transact(body: str, label: str) -> str:
    """Act, in the mood of the day. Everything up to the act happens in one callback."""
    began = _now()
    today = mood(body, label) if first_here(body, label) else "act"
    if today == "fail":
        raise ConnectionError("the receiver refused the connection")
    act(body, label, began + LATE_SECONDS if "late" in today else began)
    if "fail" in today:
        raise ConnectionError("the receiver did not answer")
    await asyncio.sleep(60 if today == "act, then hang" else 0.01)
    return f"{body} {label}"


# Steps


@outlast.step
async def chaos_work(number: int) -> int:
    """Take a moment."""
    await asyncio.sleep(0.02)
    return number


@outlast.step(retry=QUICK)
async def chaos_flaky(number: int) -> int:
    """Fail twice."""
    if outlast.attempt().number <= 2:
        raise RuntimeError("not yet")
    return number


@outlast.step
def chaos_crunch(number: int) -> int:
    """Take a moment in a thread."""
    time.sleep(0.01)
    return number


# Effects


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, retry=QUICK)
async def chaos_pay(label: str) -> str:
    """Pay, at a receiver that knows the key."""
    return await transact("pay", label)


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, retry=QUICK)
def chaos_post(label: str) -> str:
    """Post, in a thread, at a receiver that knows the key."""
    act("post", label)
    return f"post {label}"


async def find_order(label: str) -> outlast.Applied[str] | outlast.NotApplied:
    """Ask the receiver."""
    return outlast.Applied(f"order {label}") if acts("order", label) else outlast.NotApplied()


@outlast.effect(probe=find_order, start_to_close_timeout=TIMEOUT, settle=SETTLE, retry=QUICK)
async def chaos_order(label: str) -> str:
    """Order, at a receiver that can be asked."""
    return await transact("order", label)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def chaos_transfer(label: str) -> str:
    """Transfer, at a receiver that knows nothing."""
    return await transact("transfer", label)


# Effects that fill the disk while their outcome is not recorded


def fill_disk() -> None:
    """Leave this process no room to write: on the small disk that the test mounted, or by a limit on the size of its files."""
    ballast = os.environ.get(BALLAST)
    if not ballast:
        size = Path(os.environ[LOG]).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return
    with contextlib.suppress(OSError), Path(ballast).open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def brim(body: str, label: str) -> str:
    """Act, and fill the disk the first time."""
    act(body, label)
    if first_here("brim", label):
        fill_disk()
    return f"{body} {label}"


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT)
async def chaos_brim_pay(label: str) -> str:
    """Pay, and fill the disk."""
    return await brim("brim_pay", label)


async def find_brim_order(label: str) -> outlast.Applied[str] | outlast.NotApplied:
    """Ask the receiver."""
    done = acts("brim_order", label)
    return outlast.Applied(f"brim_order {label}") if done else outlast.NotApplied()


@outlast.effect(probe=find_brim_order, start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def chaos_brim_order(label: str) -> str:
    """Order, and fill the disk."""
    return await brim("brim_order", label)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def chaos_brim_transfer(label: str) -> str:
    """Transfer, and fill the disk."""
    return await brim("brim_transfer", label)


# Waits for the clock tests


@outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2))
async def chaos_second_time(label: str) -> int:
    """Fail the first time."""
    number = outlast.attempt().number
    if number == 1:
        raise RuntimeError("not yet")
    return number


@outlast.effect(
    idempotent=True,
    retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2),
)
async def chaos_pay_again(label: str) -> str:
    """Pay, and fail the first time."""
    act("pay_again", label)
    if outlast.attempt().number == 1:
        raise RuntimeError("not yet")
    return f"pay_again {label}"


@outlast.step
async def chaos_held(label: str) -> int:
    """Wait until the file `go` exists."""
    act("held", label)
    while not (Path(os.environ[DIRECTORY]) / "go").exists():
        await asyncio.sleep(0.01)
    return 1


@outlast.workflow
async def chaos_nap(seconds: float) -> float:
    """Sleep, and return for how long by the run's own time."""
    before = outlast.now()
    await outlast.sleep(seconds)
    return (outlast.now() - before).total_seconds()


@outlast.workflow
async def chaos_stubborn(label: str) -> list[Any]:
    """A step and an effect that are tried twice."""
    return [await chaos_second_time(label), await chaos_pay_again(label)]


@outlast.workflow
async def chaos_busy(label: str) -> list[Any]:
    """A held step, then the two effects that are careful."""
    return [await chaos_held(label), await chaos_order(label), await chaos_pay(label)]


@outlast.workflow
async def chaos_asking(label: str) -> str:
    """Ask for an hour."""
    try:
        grant = await outlast.approval(
            {"label": label}, covers=[chaos_pay(label)], role="payer", expires_in=HOUR
        )
    except outlast.ApprovalExpiredError:
        return "expired"
    await chaos_pay(label)
    return grant.by


# Workflows


@outlast.workflow
async def chaos_brimful(label: str) -> list[Any]:
    """Three effects in parallel; each has acted when the disk is full, and none is recorded."""
    calls = [chaos_brim_pay(label), chaos_brim_order(label), chaos_brim_transfer(label)]
    return [await chaos_work(1), *await asyncio.gather(*calls), await chaos_work(2)]


@outlast.workflow
async def chaos_mixed(label: str) -> list[Any]:
    """Steps in parallel, retries, a timer, two effects in parallel and one in a thread."""
    numbers = await asyncio.gather(*(chaos_work(number) for number in range(3)), chaos_flaky(3))
    await outlast.sleep(0.2)
    first = chaos_crunch(4)
    done = await asyncio.gather(chaos_pay(label), chaos_order(label))
    return [*numbers, await first, *done, await chaos_post(label)]


@outlast.workflow
async def chaos_talk(label: str) -> list[Any]:
    """A message, an approval of two effects, both in parallel."""
    word = await outlast.receive(ChaosGo)
    calls = [chaos_pay(label), chaos_order(label)]
    grant = await outlast.approval({"label": label}, covers=calls, role="payer", expires_in=AGES)
    return [word, grant.by, *await asyncio.gather(*calls)]


@outlast.workflow
async def chaos_lone(label: str) -> list[Any]:
    """An effect that nobody can ask about, beside a step."""
    return list(await asyncio.gather(chaos_work(1), chaos_transfer(label)))


@outlast.workflow
async def chaos_collect(count: int) -> list[int]:
    """Messages, in order."""
    return [await outlast.receive(ChaosGo) for _ in range(count)]


@outlast.workflow
async def chaos_family(label: str) -> list[Any]:
    """Two children at the same time, and a step after them."""
    names = [f"lone-of-{label}", f"mixed-of-{label}"]
    calls = [chaos_lone(names[0]), chaos_mixed(names[1])]
    children = [outlast.run_child(call, id=name) for call, name in zip(calls, names, strict=True)]
    lone, mixed = await asyncio.gather(*children)
    return [*lone, *mixed, await chaos_work(5)]


@outlast.workflow
async def chaos_lapse(label: str) -> str:
    """An approval that nobody gives, and a message that does not come."""
    with contextlib.suppress(TimeoutError):
        await outlast.receive(Never, timeout=timedelta(seconds=0.2))
    try:
        await outlast.approval(
            {"label": label}, covers=[], role="payer", expires_in=timedelta(seconds=0.3)
        )
    except outlast.ApprovalExpiredError:
        return "expired"
    return "decided"


@outlast.workflow
async def chaos_endless(label: str) -> int:
    """Wait for ever, and pay when cancelled."""
    try:
        return await outlast.receive(Never)
    except asyncio.CancelledError:
        await chaos_pay(label)
        raise
