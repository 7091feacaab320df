"""The way to a client that may go at any time: what is said when it has gone is dropped, and stops nobody."""

from __future__ import annotations

import asyncio
import logging

from outlast.http.asgi import Message, Send

logger = logging.getLogger("outlast.http")


class Outlet:
    """The server's `send`, from a task that outlives the server's own."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sending: asyncio.Task[None] | None = None
        self.is_closed = False

    async def send(self, message: Message) -> None:
        """Send a message, or drop it when nobody listens any more."""
        if self.is_closed:
            return
        self._sending = asyncio.ensure_future(self._pass_on(message))
        try:
            await asyncio.wait({self._sending})
        except asyncio.CancelledError:
            self._sending.cancel()
            raise

    def close(self) -> None:
        """Say nothing any more: the server has given this request up."""
        self.is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    async def _pass_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:  # how a server says that the client has gone
            self.is_closed = True
        except Exception:
            self.is_closed = True
            logger.warning(
                "an answer under an Idempotency-Key could not be sent; the request is carried out to its end, and its answer kept",
                exc_info=True,
            )
