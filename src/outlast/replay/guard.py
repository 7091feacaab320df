"""Catching what a workflow must not do: files, sockets, processes and threads while its loop runs, and early bindings.

Invariant: the hook refuses only what workflow code does itself; imports, logging and the reading of source for a
traceback pass. No audit event exists for clocks and randomness: those are for `check_source` and for always-replay.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from outlast.replay.refusal import refuse
from outlast.replay.source import Finding, check_source
from outlast.replay.wait import originals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

__all__ = [
    "Finding",
    "check_source",
    "early_bindings",
    "guard",
    "install_guard",
    "outside_replay",
    "unguard",
]

_HINTS = {
    "file": "Read and write files in a @step, and return what the workflow needs.",
    "socket": "Use the network in a @step (or an @effect, if it changes the world).",
    "process": "Start processes in a @step (or an @effect, if it changes the world).",
    "thread": "Put blocking work into a plain `def` @step: it runs in a thread of the worker.",
}
_EVENTS = {
    "file": "open os.chmod os.chown os.link os.listdir os.mkdir os.remove os.rename os.rmdir os.scandir os.symlink"
    " os.truncate os.utime shutil.copyfile shutil.move shutil.rmtree sqlite3.connect tempfile.mkdtemp"
    " tempfile.mkstemp",
    "socket": "ftplib.connect http.client.connect imaplib.open poplib.connect smtplib.connect socket.__new__"
    " socket.bind socket.connect socket.getaddrinfo socket.gethostbyaddr socket.gethostbyname socket.gethostname"
    " socket.getnameinfo socket.getservbyname socket.getservbyport socket.sendmsg socket.sendto urllib.Request"
    " webbrowser.open",
    "process": "os.exec os.fork os.forkpty os.posix_spawn os.spawn os.startfile os.system pty.spawn"
    " subprocess.Popen",
    "thread": "_thread.start_joinable_thread _thread.start_new_thread",
}
_WATCHED = {event: _HINTS[kind] for kind, events in _EVENTS.items() for event in events.split()}
_LIBRARIES = frozenset({
    "_frozen_importlib", "_frozen_importlib_external", "importlib", "inspect", "linecache", "logging", "loguru",
    "pkgutil", "structlog", "traceback", "warnings", "zipimport", "zoneinfo",
})  # fmt: skip
"""Modules that open files for their own purposes: code, its source, logs and time zones are not part of a run."""

_WAITING = frozenset({"as_completed", "wait", "wait_for"})

_guarded: set[asyncio.AbstractEventLoop] = set()
_installed: list[Callable[..., None]] = []


def install_guard() -> None:
    """Install the audit hook, once per process: it cannot be taken out again."""
    if not _installed:
        _installed.append(_audit)
        sys.addaudithook(_audit)


def guard(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse files, sockets, processes and threads in this thread while that loop is the running one, until `unguard`."""
    _guarded.add(loop)


def unguard(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse nothing any more."""
    _guarded.discard(loop)


@contextmanager
def outside_replay() -> Generator[None, None, None]:
    """Lift the guard for a moment: for the library's own work while a workflow runs, never for a workflow's."""
    loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    if loop is None or loop not in _guarded:
        yield
        return
    _guarded.discard(loop)
    try:
        yield
    finally:
        _guarded.add(loop)


def early_bindings(function: Callable[..., Any]) -> list[str]:
    """Return the names in a workflow function's code that are bound to asyncio's own waiting functions.

    `from asyncio import wait_for`, run before Outlast put its own in place, keeps the original: write
    `asyncio.wait_for` instead. What only other functions of the module use is their own affair.
    """
    function = inspect.unwrap(function)
    code: CodeType | None = getattr(function, "__code__", None)
    names = getattr(function, "__globals__", {})
    early = {id(original) for name, original in originals().items() if name in _WAITING}
    return sorted(name for name in _names(code) if id(names.get(name)) in early) if code else []


def _names(code: CodeType) -> set[str]:
    """Return the global names that a function uses, with those of the functions within it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    # Every event of the process comes by here: the look-up by name has to be the first thing.
    hint = _WATCHED.get(event)
    if hint is None:
        return
    loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    if loop is None or loop not in _guarded:
        return
    if _is_library(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
        return
    if event == "open" and _is_time_zone(arguments[0]):
        return
    subject = next((argument for argument in arguments if isinstance(argument, str | bytes)), "")
    refuse(f"{event}({subject!r})" if subject else event, hint)


def _is_library(frame: FrameType | None) -> bool:
    """Return whether the interpreter or a logger is at work, rather than the workflow."""
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module == "outlast.replay.loop":
            return False
        if module.partition(".")[0] in _LIBRARIES:
            return True
        frame = frame.f_back
    return False


def _is_time_zone(path: object) -> bool:
    """Return whether a file is the definition of a time zone, which `ZoneInfo` opens without a frame of its own."""
    folders: tuple[str, ...] = getattr(sys.modules.get("zoneinfo"), "TZPATH", ())
    return isinstance(path, str) and path.startswith(tuple(f"{folder}/" for folder in folders))
