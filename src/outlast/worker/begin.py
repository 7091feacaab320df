"""Begins attempts and probes when nothing holds them: between asking and the first line of the body no pause can come."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.journal.entry import OperationId
from outlast.worker.bridge import Bridge
from outlast.worker.call import Check
from outlast.worker.executor import Ending, LateEnd
from outlast.worker.hold import HeldBack
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Effect, Step
from outlast.workflows.heartbeat import Beats


async def attempt_if_free(  # noqa: PLR0913 - as many as an attempt has
    bridge: Bridge,
    definition: Step[..., Any] | Effect[..., Any],
    arguments: bytes,
    attempt: Attempt,
    check: Check | None = None,
    *,
    beats: Beats | None = None,
    left: timedelta | None = None,
    late: LateEnd | None = None,
) -> Ending:
    """Make one attempt; see `Executor.attempt`.

    Raises:
        HeldBack: Something holds it, and it has not begun. Whether there is time for it is to be asked again when nothing does.
    """
    begin = _begin(bridge, attempt, check)
    bridge.hold.check(OperationId(attempt.operation))
    return await bridge.executor.attempt(
        definition, arguments, attempt, begin, beats=beats, left=left, late=late
    )


async def probe_when_free(
    bridge: Bridge, effect: Effect[..., Any], arguments: bytes, attempt: Attempt
) -> Applied[bytes] | NotApplied | Unknown:
    """Ask what became of an attempt as soon as nothing holds that; see `Executor.probe`."""
    begin = _begin(bridge, attempt, bridge.check_lease)
    while True:
        await bridge.hold.free(OperationId(attempt.operation), asks=True)
        try:
            return await bridge.executor.probe(effect, arguments, attempt, begin)
        except HeldBack:
            continue


def _begin(bridge: Bridge, attempt: Attempt, check: Check | None) -> Check:
    """Return what is called immediately before a body begins: what waits for a free thread when the pause comes has not begun."""

    def begin() -> None:
        bridge.hold.check(OperationId(attempt.operation))
        if check is not None:
            check()

    return begin
