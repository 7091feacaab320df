"""Running a foreign program to its end.

Guards: when the call returns, all that the program started in its group has been killed, whatever ended the wait.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a program; `returncode` is None when it was killed at its timeout."""

    returncode: int | None
    out: bytes
    err: bytes


def run(
    command: Sequence[str],
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    text: str = "",
    timeout: float,
) -> Finished:
    """Run a program in a process group of its own and return what it said.

    Args:
        text: What it reads from its standard input.
        timeout: Seconds until the whole group is killed.

    Raises:
        OSError: It cannot be started.
    """
    process = subprocess.Popen(
        command, cwd=cwd, env=env, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    returncode: int | None = None
    try:
        out, err = process.communicate(text.encode(), timeout=timeout)
        returncode = process.returncode
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
        out, err = process.communicate()
    finally:
        # A program that ended may have left others behind, and an exception may have cut the wait short.
        _kill_group(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # input that nobody reads any more
                    pipe.close()
    return Finished(returncode, out, err)


def _kill_group(pid: int) -> None:
    # macOS says PermissionError where only zombies are left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
