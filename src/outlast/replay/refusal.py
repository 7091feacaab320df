"""What a workflow may not ask of its event loop, and what to write instead.

Invariant: whatever could reach a socket, thread, process, signal or another loop raises `ForbiddenInWorkflowError` at
the call, before anything has happened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

from outlast.errors import ForbiddenInWorkflowError

if TYPE_CHECKING:
    from collections.abc import Callable

_STEP = "Put it into a @step (or an @effect, if it changes the world) and await that"
_MACHINE = "Outlast runs this loop; start work with asyncio.create_task, gather or TaskGroup"
_MESSAGE = "Send the run a signal from outside, or return the value from a @step"

_REFUSED: dict[str, tuple[str, ...]] = {
    f"{_STEP}: sync steps run in a thread of the worker.": (
        "run_in_executor",
        "set_default_executor",
        "shutdown_default_executor",
    ),
    f"{_STEP}; network access is not repeatable.": (
        "connect_accepted_socket",
        "create_connection",
        "create_datagram_endpoint",
        "create_server",
        "create_unix_connection",
        "create_unix_server",
        "getaddrinfo",
        "getnameinfo",
        "sendfile",
        "sock_accept",
        "sock_connect",
        "sock_recv",
        "sock_recv_into",
        "sock_recvfrom",
        "sock_recvfrom_into",
        "sock_sendall",
        "sock_sendfile",
        "sock_sendto",
        "start_tls",
    ),
    f"{_STEP}; processes and pipes belong to one machine.": (
        "add_reader",
        "add_writer",
        "connect_read_pipe",
        "connect_write_pipe",
        "remove_reader",
        "remove_writer",
        "subprocess_exec",
        "subprocess_shell",
    ),
    f"{_MESSAGE}; signals of the process do not reach a run.": (
        "add_signal_handler",
        "remove_signal_handler",
    ),
    f"{_MACHINE}.": (
        "run_forever",
        "run_until_complete",
        "set_exception_handler",
        "set_task_factory",
        "shutdown_asyncgens",
        "stop",
    ),
}


def refuse(what: str, hint: str) -> NoReturn:
    """Raise the error that names what workflow code asked for.

    Raises:
        ForbiddenInWorkflowError: Always.
    """
    message = f"{what} cannot be used in a workflow: replay could not repeat it"
    raise ForbiddenInWorkflowError(message, hint=hint)


def _refusal(name: str, hint: str) -> Callable[..., NoReturn]:
    def refused(self: asyncio.AbstractEventLoop, *args: Any, **options: Any) -> NoReturn:
        refuse(f"loop.{name}()", hint)

    refused.__name__ = name
    refused.__doc__ = f"Refuse: {hint}"
    return refused


class RefusingLoop(asyncio.AbstractEventLoop):
    """An event loop without network, threads, processes and signals."""

    def get_debug(self) -> bool:
        """Return False: the slow checks of debug mode read the clock."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignore the wish, see `get_debug`."""

    def get_task_factory(self) -> None:
        """Return None: tasks are always the loop's own."""

    def get_exception_handler(self) -> None:
        """Return None: errors of callbacks go to the machine."""


for _hint, _names in _REFUSED.items():
    for _name in _names:
        setattr(RefusingLoop, _name, _refusal(_name, _hint))
# The abstract base declares nothing abstract in the sense of `abc`, so a class stays constructible without these.
