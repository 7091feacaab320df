"""The body of a request, read whole and within bounds before anything is begun, and handed on whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from outlast.http.asgi import Message, Receive, Scope, values_of


class BodyTooLargeError(ValueError):
    """The body has more bytes than are read."""


async def read_body(scope: Scope, receive: Receive, largest_bytes: int) -> bytes | None:
    """Return the body of a request, or None when the client has gone before all of it was there.

    Raises: BodyTooLargeError: It is larger, or says that it will be.
    """
    for value in values_of(scope, "content-length"):
        if value.isdigit() and int(value[:20]) > largest_bytes:
            raise BodyTooLargeError
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        length += len(part)
        if length > largest_bytes:
            raise BodyTooLargeError
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def handed_on(body: bytes, answered: Callable[[], Awaitable[object]]) -> Receive:
    """Return the application's way to receive: the body in one piece, and a disconnect when its answer is whole.

    That the client has gone is not said before: an application that stopped for it would leave its work half done.

    Args:
        answered: Returns when the answer is whole.
    """
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if not is_given:
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}
        await answered()
        return {"type": "http.disconnect"}

    return receive
