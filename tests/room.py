"""A room: a folder for servers of tests. It goes, with whoever lives in it, when nobody uses it any more, however the users end.

Each user holds a shared lock on a file in it. A keeper waits for the exclusive one, which the operating system grants when the last
user has left, or was killed. So several processes can use one room, and none of them has to be the last.

Servers refuse to run as root. Where tests run as root, rooms belong to an account without rights, and so do the servers in them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from room_keeper import left_after

_KEEPER = Path(__file__).with_name("room_keeper.py")

_LONGEST = 107 - len("/.s.PGSQL.65535.lock")
"""Bytes of a folder's path: what the address of a Unix socket leaves to it."""


def account() -> pwd.struct_passwd | None:
    """Return the account that servers run under, or None for one's own.

    Raises:
        RuntimeError: The process is root's, and there is no other account.
    """
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "postgres"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("servers refuse to run as root, and there is no account `nobody`: add one")


def environment() -> dict[str, str]:
    """Return the environment for a server and its tools: no setting of PostgreSQL's own, messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def as_account(folder: Path) -> dict[str, Any]:
    """Return how a program is started in `folder`, as arguments of `subprocess`."""
    other = account()
    rights = {} if other is None else {"user": other.pw_uid, "group": other.pw_gid}
    extra = {} if other is None else {"extra_groups": []}
    return {"cwd": folder, "env": environment(), "start_new_session": True, **rights, **extra}


@dataclass
class Room:
    """A folder, and the lock by which this process uses it."""

    folder: Path
    _lock: int
    _keeper: int | None = None

    @classmethod
    def made(cls, parent: Path | None = None) -> Room:
        """Make a room, in the folder for temporary files or in `parent`, and its keeper."""
        place = str(parent or tempfile.gettempdir())
        if len(os.fsencode(place)) + len("/outlast-12345678") > _LONGEST:
            place = "/tmp"
        folder = Path(tempfile.mkdtemp(prefix="outlast-", dir=place)).resolve()
        (folder / "used").touch()
        room = cls.entered(folder)
        other = account()
        if other is not None:
            os.chown(folder, other.pw_uid, other.pw_gid)
        done = subprocess.run(
            [sys.executable, str(_KEEPER), str(folder)],
            check=True,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        room._keeper = int(done.stdout)
        return room

    @classmethod
    def entered(cls, folder: Path) -> Room:
        """Use a room that another process has made.

        Raises:
            FileNotFoundError: It is gone.
            BlockingIOError: It is about to go.
        """
        file = os.open(folder / "used", os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise
        return cls(folder, file)

    def leave(self) -> None:
        """Use it no more. The last one to leave does not wait until it is gone."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def close(self) -> None:
        """Leave, and wait until it is gone: for who has made it, and is its only user."""
        self.leave()
        if self._keeper is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            assert not left_after([psutil.Process(self._keeper)], seconds=60), self.folder
