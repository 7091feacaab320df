"""The keeper of a room (see `room.py`): a process that waits until nobody uses the room, ends who lives in it, and removes it.

It is a process of its own, in a session of its own, so that it outlives whoever is killed. It waits for a lock that the
operating system takes from the dead, and so needs neither a signal nor a parent.

    python room_keeper.py FOLDER
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

TENANTS = frozenset({"initdb", "pg_basebackup", "pg_ctl", "pgbouncer", "postgres"})
"""Programs that are ended when their arguments name the room."""

PATIENCE_SECONDS = 10
"""How long a server may take for an immediate shutdown. It gives its own children 5 s."""


def left_after(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended, and return those that have not after `seconds`.

    One that has ended, and that its parent has not yet asked about, has ended.
    """
    deadline = time.monotonic() + seconds
    while left := [one for one in processes if _lives(one)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return left


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def detach() -> None:
    """Go on as a child of nobody, without the files of who started this; tell it the process id."""
    if os.fork():
        os._exit(0)
    os.write(1, f"{os.getpid()}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def end_tenants(folder: Path) -> None:
    """End every server that lives in the room, and its children."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["name", "cmdline"]):
        line = process.info["cmdline"] or []
        if process.info["name"] in TENANTS and any(str(folder) in word for word in line):
            with contextlib.suppress(psutil.Error):
                found += [process, *process.children(recursive=True)]
                # What is stopped hears SIGQUIT when it goes on.
                process.send_signal(signal.SIGQUIT)
                process.send_signal(signal.SIGCONT)
    left = left_after(found, PATIENCE_SECONDS)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    left_after(left, PATIENCE_SECONDS)


def free_shared_memory(folder: Path) -> None:
    """Free what a server that was killed has left outside its folder: the segment by which a second server is kept out."""
    for file in folder.glob("*/postmaster.pid"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            number = int(file.read_text().splitlines()[6].split()[1])
            ctypes.CDLL(None).shmctl(number, 0, None)  # 0 is IPC_RMID


def main(folder: Path) -> None:
    """Keep the room."""
    file = os.open(folder / "used", os.O_RDWR)
    os.chdir("/")
    detach()
    fcntl.flock(file, fcntl.LOCK_EX)
    # A second time for what was just being started.
    for _ in range(2):
        end_tenants(folder)
        free_shared_memory(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
