"""Workflows whose effects act upon a receiver in a process of its own, one effect for each declaration, and what undoes them."""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import timedelta
from typing import Any

import outlast
from outlast import Applied, NotApplied

TIMEOUT = timedelta(seconds=2)
SETTLE = timedelta(seconds=0.5)
SOON = outlast.RetryPolicy(initial_interval=timedelta(milliseconds=20), maximum_attempts=6)


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    """Send one request."""
    url = f"http://127.0.0.1:{os.environ['RECEIVER_PORT']}/{path}"
    headers = {} if body is None else {"Idempotency-Key": outlast.idempotency_key()}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=1.5) as answer:
        return json.loads(answer.read())["result"]


def act(*, idempotent: bool) -> str:
    """Have the receiver act."""
    return ask("apply", {"pid": os.getpid(), "idempotent": idempotent})


def find(label: str) -> Applied[str] | NotApplied:
    """Ask the receiver what it has done under the key."""
    result = ask(outlast.idempotency_key())
    return NotApplied() if result is None else Applied(result)


def find_undone(result: str) -> Applied[str] | NotApplied:
    """The same, of what undoes something."""
    return find(result)


@outlast.effect(probe=find_undone, start_to_close_timeout=TIMEOUT, settle=SETTLE, retry=SOON)
def undo(result: str) -> str:
    """Undo what a receiver has done that knows no keys."""
    return act(idempotent=False)


@outlast.effect(
    idempotent=True, start_to_close_timeout=TIMEOUT, settle=SETTLE, retry=SOON, compensate=undo
)
def keyed(label: str) -> str:
    """Ask a receiver that knows keys."""
    return act(idempotent=True)


@outlast.effect(
    probe=find, start_to_close_timeout=TIMEOUT, settle=SETTLE, retry=SOON, compensate=undo
)
def probed(label: str) -> str:
    """Ask a receiver that can be asked what it has done."""
    return act(idempotent=False)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
def bare(label: str) -> str:
    """Ask a receiver that knows nothing."""
    return act(idempotent=False)


@outlast.workflow
async def each(label: str) -> list[str]:
    """One after the other."""
    return [await keyed(label), await probed(label), await bare(label)]


@outlast.workflow
async def undone(label: str) -> None:
    """Two that are undone."""
    async with outlast.saga():
        await keyed(label)
        await probed(label)
        raise LookupError(label)
