"""There is no network in a simulation: code that reaches for it, in whichever way, is told what to write, and the simulation ends.

An audit hook sees what no event loop does: a blocking socket in an async body, and all that a plain one does in its simulated thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

_EVENTS = frozenset(
    {
        *("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr"),
        *("socket.gethostbyname", "socket.getnameinfo", "socket.sendmsg", "socket.sendto"),
        *("ftplib.connect", "http.client.connect", "imaplib.open", "poplib.connect"),
        *("smtplib.connect", "urllib.Request", "webbrowser.open"),
    }
)

_refusals: dict[
    type[asyncio.AbstractEventLoop], Callable[[asyncio.AbstractEventLoop, str], None]
] = {}


def refuse_network(
    loop: type[asyncio.AbstractEventLoop], refusal: Callable[[asyncio.AbstractEventLoop, str], None]
) -> None:
    """Refuse the network in every thread in which a loop of this type runs.

    Args:
        refusal: Called with the loop and the name of what was asked for; raises.
    """
    if not _refusals:
        sys.addaudithook(_audit)  # it cannot be taken out again
    _refusals[loop] = refusal


def _audit(event: str, _: tuple[object, ...]) -> None:
    if event in _EVENTS:
        loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage] - the public one raises where there is none
        refusal = _refusals.get(type(loop)) if loop is not None else None
        if loop is not None and refusal is not None:
            refusal(loop, event)
