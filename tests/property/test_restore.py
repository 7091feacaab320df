"""Laws of restores: from a backup at any commit, released with care, effects happen as often as they may, whatever was forgotten."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.app import back_up_store, restore_store
from outlast.client import Status
from outlast.effects.intent import Applied, NotApplied
from outlast.journal.entry import EffectInDoubt
from outlast.testing import Receiver

receiver = Receiver()
attempts: Counter[str] = Counter()
SHORT = timedelta(milliseconds=50)
NONE = timedelta(0)


@outlast.step
async def double(number: int) -> int:
    return number * 2


@outlast.effect(idempotent=True)
async def idempotent(name: str) -> str:
    attempts[name] += 1
    return receiver.apply_once(outlast.idempotency_key(), name)


def find(name: str) -> Applied[str] | NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=SHORT, settle=NONE)
async def probed(name: str) -> str:
    attempts[name] += 1
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.effect(start_to_close_timeout=SHORT, settle=NONE)
async def neither(name: str) -> str:
    attempts[name] += 1
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.workflow
async def child_of(name: str) -> str:
    return f"{await idempotent(f'{name} i')} {await neither(f'{name} n')}"


@outlast.workflow
async def flow(generation: int = 1) -> str:
    """Effects of each kind, between steps, in a child, and in the next generation."""
    await double(1)
    said = [await idempotent(f"i{generation}"), await probed(f"p{generation}")]
    said.append(await neither(f"n{generation}"))
    await double(2)
    if generation == 1:
        said.append(await outlast.run_child(child_of("child"), id="child"))
        outlast.continue_as_new(flow(2))
    return " ".join(said)


CODE = [flow, child_of, double, idempotent, probed, neither]
RESULT = "i2 p2 n2"
EFFECTS = {"i1", "p1", "n1", "child i", "child n", "i2", "p2", "n2"}


def happened() -> Counter[str]:
    """Return how often each effect reached the world."""
    return Counter(one.value for one in receiver.applied)


async def settle_doubts(app: outlast.App, truth: Counter[str]) -> int:
    """Say of each doubt what the world says; return how many there were."""
    count = 0
    for doubt in await app.runs.doubts():
        name = doubt.arguments["name"]
        handle = app.handle(doubt.run_id)
        if truth[name]:
            await handle.resolve(doubt.operation, applied=name, reason="looked up")
        else:
            await handle.resolve(doubt.operation, not_applied=True, reason="looked up")
        count += 1
    return count


async def finished(app: outlast.App) -> tuple[str, int]:
    """Return the result of the run, and how often somebody had to say what had happened."""
    doubts = 0
    handle = app.handle("r", flow)
    waiting = asyncio.ensure_future(handle.result())
    while not waiting.done():
        doubts += await settle_doubts(app, happened())
        await asyncio.wait([waiting], timeout=0.02)
    return waiting.result(), doubts
