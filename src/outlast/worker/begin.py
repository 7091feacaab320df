"""Begins attempts and probes when nothing holds them: between asking and the first line of the body no pause can come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.journal.entry import OperationId
from outlast.worker.bridge import Bridge
from outlast.worker.call import Check
from outlast.worker.executor import Ending
from outlast.worker.hold import HeldBack
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Effect, Step
from outlast.workflows.heartbeat import Beats

T = TypeVar("T")


async def attempt_when_free(  # noqa: PLR0913 - as many as an attempt has
    bridge: Bridge,
    definition: Step[..., Any] | Effect[..., Any],
    arguments: bytes,
    attempt: Attempt,
    check: Check | None = None,
    *,
    beats: Beats | None = None,
    left: timedelta | None = None,
) -> Ending:
    """Make one attempt as soon as nothing holds it; see `Executor.attempt`."""

    def act(begin: Check) -> Awaitable[Ending]:
        return bridge.executor.attempt(
            definition, arguments, attempt, begin, beats=beats, left=left
        )

    return await _when_free(bridge, attempt, check, act, asks=False)


async def probe_when_free(
    bridge: Bridge, effect: Effect[..., Any], arguments: bytes, attempt: Attempt
) -> Applied[bytes] | NotApplied | Unknown:
    """Ask what became of an attempt as soon as nothing holds that; see `Executor.probe`."""

    def act(begin: Check) -> Awaitable[Applied[bytes] | NotApplied | Unknown]:
        return bridge.executor.probe(effect, arguments, attempt, begin)

    return await _when_free(bridge, attempt, bridge.check_lease, act, asks=True)


async def _when_free(
    bridge: Bridge,
    attempt: Attempt,
    check: Check | None,
    act: Callable[[Check], Awaitable[T]],
    *,
    asks: bool,
) -> T:
    """Act when nothing holds it. What waits for a free thread when the pause comes has not begun: it waits for the resume instead."""
    operation = OperationId(attempt.operation)

    def begin() -> None:
        bridge.hold.check(operation)
        if check is not None:
            check()

    while True:
        await bridge.hold.free(operation, asks=asks)
        try:
            return await act(begin)
        except HeldBack:
            continue
