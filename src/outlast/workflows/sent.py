"""What one attempt has sent, and what is known of it: whether any of it may have been carried out.

A request is *open* from the moment it may leave until an answer says what came of it; one whose answer is lost stays open, whatever
later requests end in. So an attempt in which something is open, or of whose requests only some were carried out, has no error that
proves that nothing happened.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Sent:
    """The requests of one attempt that change something. Callable from any thread; a sender sends one request, as often as it likes."""

    __slots__ = ("_done", "_going", "_is_partial", "_lock", "_lost", "_seen")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: dict[object, Hashable] = {}
        self._lost: dict[Hashable, Exception] = {}
        self._seen: set[Hashable] = set()
        self._done: set[Hashable] = set()
        self._is_partial = False

    @property
    def may_have_acted(self) -> bool:
        """Whether some of it may have been carried out without the author's knowledge.

        A single request that was answered is none: the author has the answer, and judges what it says.
        """
        with self._lock:
            is_part = self._is_partial or len(self._seen) > 1
            return bool(self._going or self._lost or (self._done and is_part))

    def lost(self, request: Hashable) -> Exception | None:
        """Return the error by which the answer to an equal request was lost first, if none has said since what came of it."""
        return self._lost.get(request)

    def goes(self, sender: object, request: Hashable) -> None:
        """Note that a request is sent now. Until its end is noted it may have been carried out."""
        with self._lock:
            self._going[sender] = request
            self._seen.add(request)

    def has_failed(self, sender: object, error: Exception, *, arrived: bool) -> None:
        """Note that a request got no answer.

        Args:
            sender: One of which no request was noted may have read only; that it failed after others were carried out is noted, too.
            arrived: The receiver may have had something of it.
        """
        with self._lock:
            self._is_partial = self._is_partial or bool(self._done)
            if sender not in self._going:
                return
            request = self._going.pop(sender)
            if arrived:
                self._lost.setdefault(request, error)

    def was_answered(self, sender: object, *, acted: bool, settles: bool) -> None:
        """Note that a request was answered.

        Args:
            acted: The answer says that it was carried out.
            settles: The answer holds for equal requests before it, too.
        """
        with self._lock:
            if sender not in self._going:
                return
            request = self._going.pop(sender)
            if acted:
                self._done.add(request)
            if settles:
                self._lost.pop(request, None)
