"""Foreign programs end, with all that they started."""

from __future__ import annotations

import os
import select
import sys

import pytest

from outlast.demo.process import run

# Starts a child that keeps the parent's output open and would live for long; prints the child's pid.
PARENT = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(p.pid, flush=True)"


def gone(pid: int) -> bool:
    """Say whether a process ends; the kernel may take a moment after the kill."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 20)[0])
    finally:
        os.close(handle)


def test_input_output_and_status() -> None:
    """What goes in and comes out is bytes; the status is the program's."""
    code = "import sys; print(sys.stdin.read()); sys.exit(3)"
    done = run([sys.executable, "-c", code], cwd=None, env=os.environ, text="é", timeout=20)
    assert (done.returncode, done.out) == (3, "é\n".encode())


@pytest.mark.parametrize("tail", ["", "; p.wait()"])
def test_nothing_of_the_group_survives(tail: str) -> None:
    """At the timeout the child dies too, whether its parent ended before or waited for it."""
    done = run([sys.executable, "-c", PARENT + tail], cwd=None, env=os.environ, timeout=1.5)
    assert done.returncode is None
    assert gone(int(done.out))
