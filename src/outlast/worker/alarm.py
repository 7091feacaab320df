"""Alarms: what came for a run and cannot be acted on, kept in its journal. Nothing is dropped silently."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from outlast.effects.intent import Resolution
from outlast.errors import DecodeError
from outlast.journal.entry import NO_OPERATION, AlarmRaised, OperationId
from outlast.worker.text import plain


def alarm(what: str, operation: OperationId, detail: dict[str, Any]) -> AlarmRaised:
    """Return the entry that keeps what could not be acted on."""
    return AlarmRaised(operation, what, Raw(msgspec.json.encode(detail)))


def unfit(resolution: Resolution, why: str, *, is_open: bool = True) -> AlarmRaised:
    """Return the alarm; only that of an operation which waits goes on until it has its outcome."""
    detail = {
        "operation": resolution.operation,
        "outcome": resolution.outcome,
        "by": resolution.by,
        "why": plain(why),
    }
    operation = OperationId(resolution.operation) if is_open else NO_OPERATION
    return alarm("unfit_outcome", operation, detail)


def misfit_of(decode: Any, value: Raw) -> str:
    """Return why a value does not fit what `decode` makes of it; empty when it does."""
    try:
        decode(bytes(value))
    except DecodeError as error:
        return error.message
    return ""
