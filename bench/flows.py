"""The workflows that are measured. Their steps do nothing but return what they were given."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import outlast
from bench.figure import note_line

PAYLOAD = {"id": 12345, "role": "tool", "text": "x" * 150, "ok": True}
"""About 200 bytes of JSON."""

GO = outlast.Signal("go", dict)


class Doom:
    """Kills this process once `runs` of them have come to a step; or lets steps pass, and notes them.

    Attributes:
        runs: How many have to come; 0 for never.
        notes: The file that has a line for each body that was run.
        first: When the first body began, by the clock of all processes.
    """

    runs = 0
    notes = ""
    first: float | None = None
    _come = 0

    @classmethod
    async def meet(cls, where: str) -> None:
        """Wait for the others, and for the end."""
        cls._come += 1
        if cls._come >= cls.runs:
            os.kill(os.getpid(), 9)
        await asyncio.sleep(600)


@outlast.step
async def answer(number: int) -> dict[str, Any]:
    """Return what a small tool would."""
    return PAYLOAD


@outlast.step
async def answer_large(number: int, size: int) -> str:
    """Return a text of so many bytes."""
    return "x" * size


@outlast.step
async def survive(run: str, number: int, last: int) -> dict[str, Any]:
    """Return what a small tool would, unless this is the step in which the process ends."""
    if Doom.first is None:
        Doom.first = time.time()
    note_line(Doom.notes, f"{run}:{number}")
    if Doom.runs and number == last:
        await Doom.meet(run)
    return PAYLOAD


@outlast.effect(idempotent=True, repeats=True)
async def act(number: int) -> dict[str, Any]:
    """Return what a small tool would that changes something."""
    return PAYLOAD


@outlast.workflow
async def acting(effects: int) -> int:
    """Do effects one after the other."""
    for number in range(effects):
        await act(number)
    return effects


@outlast.workflow
async def in_turn(steps: int) -> int:
    """Take steps one after the other."""
    for number in range(steps):
        await answer(number)
    return steps


@outlast.workflow
async def in_turn_large(steps: int, size: int) -> int:
    """Take steps with larger results."""
    for number in range(steps):
        await answer_large(number, size)
    return steps


@outlast.workflow
async def in_danger(run: str, steps: int, last: int) -> int:
    """Take steps in one of which the process ends."""
    for number in range(1, steps + 1):
        await survive(run, number, last)
    return steps


@outlast.workflow
async def waiting() -> dict[str, Any]:
    """Wait for a message."""
    return await outlast.receive(GO)
