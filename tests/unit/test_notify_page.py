"""What the page on reaching people shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlast.cli.main import app as commands
from outlast.http.decision import LARGEST_BYTES
from outlast.notify import notifier
from outlast.notify.file import read_notify

PAGE = (Path(__file__).parents[2] / "docs/notify.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """It prints what the page says."""
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "reach.py").write_text(BLOCKS[1])
    done = subprocess.run(
        [sys.executable, "reach.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_the_settings_of_the_page_are_taken() -> None:
    """As code and as a file, with the same channels."""
    (file,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    given: dict[str, object] = {}
    exec(BLOCKS[0], given)
    names = [
        [one.name for one in setting.channels_of(role)]
        for setting in (given["notify"], read_notify(file))
        for role in ("maintainer", "boss")
    ]
    assert names[:2] == names[2:] and names[0] != names[1]


def test_the_command_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has the option; a file that is not there, or is none, is said before anything runs."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Noted, so that what is loaded under this name is forgotten afterwards.
    monkeypatch.setitem(sys.modules, "agent", None)
    monkeypatch.delitem(sys.modules, "agent")
    (tmp_path / "agent.py").write_text(
        "import outlast\n\n@outlast.workflow\nasync def flow(kind: str) -> None:\n    pass\n"
    )
    assert "outlast worker agent.py --notify notify.toml" in PAGE
    (tmp_path / "bad.toml").write_text("[channels]\n")
    for file, words in (("none.toml", "No such file"), ("bad.toml", "nobody to reach")):
        arguments = ["worker", str(tmp_path / "agent.py"), "--notify", str(tmp_path / file)]
        result = CliRunner().invoke(commands, arguments)
        assert result.exit_code == 1 and words in " ".join(result.stderr.split())


def test_the_numbers_of_the_page_hold() -> None:
    """Gaps, holds and sizes."""
    assert notifier.LONGEST_GAP.total_seconds() == 15 * 60 and "up to 15 minutes" in PAGE
    assert notifier.HOLD.total_seconds() == 90 and "a minute and a half" in PAGE
    assert LARGEST_BYTES == 64 * 1024 and "64 KiB" in PAGE
