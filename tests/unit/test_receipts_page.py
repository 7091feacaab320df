"""What the page on receipts shows is what happens, and its table names every check."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlast.approvals.proof import CHECKS
from outlast.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/receipts.md").read_text()
PROGRAM, WITHOUT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PRINTED,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("outlast ")]


def run(folder: Path, *words: str) -> str:
    """Run Python in a folder; return what it prints."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_on_receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program prints what the page says; the commands sign and verify it; and so does what needs no Outlast."""
    (tmp_path / "bills.py").write_text(PROGRAM)
    assert run(tmp_path, "bills.py") == PRINTED
    monkeypatch.chdir(tmp_path)
    said = [CliRunner().invoke(app, shlex.split(line)[1:]) for line in COMMANDS]
    assert [one.exit_code for one in said] == [0, 0, 0], said[-1].output
    assert "the receipt holds" in said[-1].stdout
    assert "yes by" in said[-1].stdout
    (tmp_path / "without.py").write_text(WITHOUT)
    assert run(tmp_path, "without.py", "bill-7.json", "receipts.pub.pem") == "1~r:1 approved\n"


def test_the_table_names_every_check() -> None:
    """In the order in which they are printed."""
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert named == ["signature", "form", "tenant", *(name for name, _, _ in CHECKS)]
