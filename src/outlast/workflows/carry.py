"""How the key of an effect leaves the process: with one request, into one environment, and no further than the attempt lasts.

A key stands for one thing that a receiver does. Under one key two different requests would be one to it: it would refuse the second,
or, worse, answer it with the first one's result. So an errand notes what the key went out with, and refuses another thing. It does
not number the requests: their order may differ from one attempt to the next (a token is fetched only when the old one has expired,
two of them race), and a key that moved to another request would be no protection. An author who means two gives each a name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar

from outlast.errors import DefinitionError
from outlast.workflows.attempt import current_attempt, idempotency_key
from outlast.workflows.heartbeat import Beats
from outlast.workflows.sent import Sent

KEY_VARIABLE = "OUTLAST_IDEMPOTENCY_KEY"
"""The environment variable in which a subprocess finds the key."""

_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")


class Errand:
    """What goes out of one attempt. Everything here may be called from any thread.

    Args:
        left: How many seconds the attempt may go on; None for no limit.
        beats: Knows whether the body was told to stop.

    Attributes:
        sent: What is known of the requests that went out.
    """

    __slots__ = ("_beats", "_claims", "_is_closed", "left", "sent")

    def __init__(self, left: Callable[[], float | None], beats: Beats) -> None:
        self.left = left
        self._beats = beats
        self.sent = Sent()
        self._claims: dict[str, tuple[Hashable, str]] = {}
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether nothing may be sent any more: the attempt or its time is over, or its body was told to stop."""
        left = self.left()
        return self._is_closed or self._beats.stopped or (left is not None and left <= 0)

    @property
    def is_closed(self) -> bool:
        """Whether the attempt has ended."""
        return self._is_closed

    def close(self) -> None:
        """Let nothing out any more: the attempt has ended, and what its body has left running is no part of it."""
        self._is_closed = True

    def claim(self, part: str, request: Hashable, what: str) -> str:
        """Note what the key goes out with; return what it went out with before, in words, where that was another request."""
        first, told = self._claims.setdefault(part, (request, what))
        return "" if first == request else told


current_errand: ContextVar[Errand] = ContextVar("outlast_errand")


def key_for(request: Hashable, what: str, *, part: str = "", naming: str = "part=") -> str:
    """Return the key under which the running effect sends a request; empty where no effect acts: in a step, in a probe, elsewhere.

    Args:
        request: Equal for the same request only.
        what: The request in words, for messages; no secrets.
        part: The author's name of this request, where an effect makes several: it is appended to the key.
        naming: How an author writes that name there.

    Raises:
        DefinitionError: The key went out with another request before, the part is no name, or the attempt has ended.
    """
    attempt = current_attempt.get(None)
    if attempt is None or not attempt.key or attempt.probing:
        return ""
    if part and not _PART.fullmatch(part):
        raise DefinitionError(
            f"{part!r} is no name for a part of an effect",
            step=attempt.name,
            run=attempt.run_id,
            hint="up to 64 of A-Z a-z 0-9 _ . - with a letter or digit at both ends",
        )
    errand = current_errand.get(None)
    if errand is not None and errand.is_closed:
        raise DefinitionError(
            f"effect {attempt.name} was about to send its key with {what} after its attempt had ended; it was not sent",
            step=attempt.name,
            run=attempt.run_id,
            operation=attempt.operation,
            hint="wait in the effect for every task and thread that it begins",
        )
    before = errand.claim(part, request, what) if errand is not None else ""
    if before:
        first = "one that looks the same and holds something else" if before == what else before
        raise DefinitionError(
            f"effect {attempt.name} was about to send its key with a second request: {what}; it went out with {first}. "
            "The second one was not sent",
            step=attempt.name,
            run=attempt.run_id,
            operation=attempt.operation,
            hint=f"make an effect of each; or name the parts of this one, each of which then has a key of its own, by {naming}; or "
            "exclude what needs no key",
        )
    return f"{attempt.key}-{part}" if part else attempt.key


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment for a subprocess of an effect: a copy with the key in `OUTLAST_IDEMPOTENCY_KEY`.

    The program reads that variable and sends it on to its receiver. Outlast itself never reads it: an environment reaches every process
    below, and a key that nobody asked for would go out with something else.

    Args:
        base: What is copied; this process's environment by default.

    Raises:
        DefinitionError: No effect is running here.

    Example:
        ```python
        import subprocess
        import sys

        import outlast

        PROGRAM = "import os; print('sent under', os.environ['OUTLAST_IDEMPOTENCY_KEY'])"

        @outlast.effect(idempotent=True)
        def send(letter: str) -> str:
            command = [sys.executable, "-c", PROGRAM, letter]
            done = subprocess.run(command, env=outlast.environment(), capture_output=True, text=True, check=True)
            return done.stdout.strip()

        @outlast.workflow
        async def write(letter: str) -> str:
            return await send(letter)

        async with outlast.open("memory://") as app:
            assert (await app.run(write("hello"), id="write-1")).startswith("sent under ")
        ```
    """
    return {**(os.environ if base is None else base), KEY_VARIABLE: idempotency_key()}
