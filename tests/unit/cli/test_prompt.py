"""Deciding at a terminal: a real process on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from .conftest import World


class Terminal:
    """A command that believes to be typed at a terminal."""

    def __init__(self, world: World, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outlast.cli", *words],
            env={**world.environment, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def read_until(self, words: str) -> None:
        """Read until the words were shown."""
        deadline = time.monotonic() + 30
        while words not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += os.read(self._ours, 65536).decode()

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._ours, text.encode() + b"\n")

    def end(self) -> int:
        """Read to the end and return the exit status."""
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                break
            if not data:
                break
            self.shown += data.decode()
        return self._process.wait(timeout=30)


def _state(world: World) -> tuple[str, str]:
    (one,) = json.loads(world.cli("approvals", "list", "--all", "--json").stdout)
    return one["state"], one["subject_sha256"]


def test_yes_approves_what_was_shown(world: World) -> None:
    """The request is shown with its hash, in colour, escaped; `y` approves it."""
    with Terminal(world, "approvals", "approve", "approval", "--reason", "read it") as terminal:
        terminal.read_until("[y/N]")
        assert _state(world)[1] in terminal.shown
        assert re.search(r"\x1b\[9?2[0-9;]*m\+new|\x1b\[32[0-9;]*m\+new", terminal.shown), (
            "an added line is not green"
        )
        assert "\\u200b" in terminal.shown
        assert "\x1b[2J" not in terminal.shown
        assert "\u202e" not in terminal.shown
        assert "ship(place=" in terminal.shown
        terminal.type("y")
        assert terminal.end() == 0
        assert _state(world)[0] == "approved"


@pytest.mark.parametrize("answer", ["n", ""])
def test_anything_else_decides_nothing(world: World, answer: str) -> None:
    """`n` and an empty line leave the request as it is, and the status says that nothing was done."""
    with Terminal(world, "approvals", "approve", "approval") as terminal:
        terminal.read_until("[y/N]")
        terminal.type(answer)
        assert terminal.end() == 1
        assert "nothing was decided" in terminal.shown
        assert _state(world)[0] == "pending"


def test_a_decision_made_meanwhile_stands(world: World) -> None:
    """Who answers after somebody else decided is told so."""
    with Terminal(world, "approvals", "approve", "approval", "1~r:1") as terminal:
        terminal.read_until("[y/N]")
        assert world.cli("approvals", "deny", "approval", "--hash", _state(world)[1]).exit_code == 0
        terminal.type("y")
        assert terminal.end() == 1
        assert "somebody decided before" in terminal.shown
        assert _state(world)[0] == "denied"


def test_a_decided_request_is_not_asked(world: World) -> None:
    """What is decided already is shown as it is, and no question follows."""
    assert world.cli("approvals", "deny", "approval", "--hash", _state(world)[1]).exit_code == 0
    with Terminal(world, "approvals", "approve", "approval", "1~r:1") as terminal:
        assert terminal.end() == 1
        assert "it is denied" in terminal.shown
        assert "[y/N]" not in terminal.shown
