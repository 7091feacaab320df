"""Begins an attempt when nothing holds it: between asking and the first line of the body no pause can come."""

from __future__ import annotations

from typing import Any

from outlast.journal.entry import OperationId
from outlast.worker.bridge import Bridge
from outlast.worker.call import Check
from outlast.worker.executor import Ending
from outlast.worker.hold import HeldBack
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Effect, Step


async def attempt_when_free(
    bridge: Bridge,
    definition: Step[..., Any] | Effect[..., Any],
    arguments: bytes,
    attempt: Attempt,
    check: Check | None = None,
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
            return await bridge.executor.attempt(definition, arguments, attempt, begin)
        except HeldBack:
            continue
