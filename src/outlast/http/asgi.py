"""The shapes of ASGI 3, and what every part of the server side says with them. No framework is known here.

Source: the ASGI specification, version 3, HTTP & WebSocket 2.5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""Each framework has types of its own for one and the same scope and messages."""
Headers: TypeAlias = tuple[tuple[str, str], ...]
"""Names in lower case and values, in the order in which they are sent."""

UNRECORDED = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"}
)
"""Extensions by which an application answers without showing its answer: they are not offered to it while that is recorded."""

_BODILESS = frozenset({204, 304})
"""Statuses whose answers have neither a body nor its length (RFC 9110, 6.4.1)."""


def values_of(scope: Scope, name: str) -> list[bytes]:
    """Return the values of a request's header, one for each time it was sent.

    Args:
        name: In lower case.
    """
    wanted = name.encode()
    return [value for header, value in scope["headers"] if header.lower() == wanted]


async def send_whole(
    send: Send, status: int, headers: Iterable[tuple[str, str]], body: bytes
) -> None:
    """Send an answer in one piece, with its length."""
    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if status in _BODILESS:
        body = b""
    else:
        lines.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
