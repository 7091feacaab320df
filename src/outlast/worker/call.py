"""One call of an author's function, on the event loop or in a thread: begun or called off, never both.

Whether it may begin is asked immediately before it does, wherever that is and however long it waited for a free thread. What it
raises is handed back as a value: an exception that means something to a loop, a thread or a generator means nothing there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Threw:
    """The function raised."""

    error: BaseException


Check: TypeAlias = Callable[[], None]
"""Called immediately before a function begins, in its thread where it has one; raises when it must not."""


def anytime() -> None:
    """Nothing keeps a function from beginning."""


async def call_async(body: Callable[[], Any], check: Check) -> Any:
    """Call a coroutine function; return its value, or what it threw. A cancel goes through."""
    check()
    try:
        return await body()
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the border to the author's code
        return Threw(error)


class ThreadCall:
    """A function on its way into a thread. To be made on the event loop, and called in the thread."""

    def __init__(self, body: Callable[[], Any], check: Check) -> None:
        self._body = body
        self._check = check
        self._lock = threading.Lock()
        self._is_off = False
        self.has_begun = False
        """Whether the function has begun; true before `begun` is done, and from any thread."""
        self._loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = self._loop.create_future()
        """Done once the function has begun."""

    def __call__(self) -> Any:
        """Call the function, unless it was called off; return its value, or what it threw."""
        with self._lock:
            if self._is_off:
                return None
            self._check()
            # From here on it counts as begun. A loop that is closed raises: nobody would learn of the end.
            self._loop.call_soon_threadsafe(self._note_begun)
            self.has_begun = True
        try:
            return self._body()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the border to the author's code
            return Threw(error)

    def call_off(self) -> bool:
        """Have it never begin; False when it has begun already."""
        with self._lock:
            self._is_off = not self.has_begun
            return self._is_off

    def _note_begun(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
