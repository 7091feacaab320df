"""Begins an attempt when nothing holds it: between asking and the first line of the body no pause can come."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from outlast.journal.entry import OperationId
from outlast.worker.bridge import Bridge
from outlast.worker.call import Check
from outlast.worker.executor import Ending
from outlast.worker.hold import HeldBack
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Effect, Step
from outlast.workflows.heartbeat import Beats


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
    """Make one attempt as soon as nothing holds it; see `Executor.attempt`.

    A body that waits for a free thread when the pause comes has not begun, and waits for the resume instead.
    """
    operation = OperationId(attempt.operation)

    def begin() -> None:
        bridge.hold.check(operation)
        if check is not None:
            check()

    while True:
        await bridge.hold.free(operation)
        try:
            return await bridge.executor.attempt(
                definition, arguments, attempt, begin, beats=beats, left=left
            )
        except HeldBack:
            continue
