"""What the page on doubts shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from outlast.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs/effects_doubt.md").read_text()
PRINTED = """\
invoice-10 r:1 {'amount': 10}
1 ConnectionError: the answer was lost
3 unknown: the bank's search is closed
10
[('invoice-10', False, 'it is no longer in doubt'), ('invoice-20', True, ''), ('invoice-30', True, '')]
"""


def test_the_program_of_the_page_on_doubts_runs(tmp_path: Path) -> None:
    """All its Python, in its order, is one program, and prints what is written here."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "bank.py").write_text("\n\n".join(blocks))
    ran = subprocess.run(
        [sys.executable, "bank.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == PRINTED, ran.stderr


@pytest.mark.parametrize("command", ["doubts", "resolve"])
def test_every_option_of_the_page_is_one(command: str) -> None:
    """What is typed there is what the command takes."""
    (lines,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    found = typer.main.get_command(app).commands["runs"].commands[command]  # type: ignore[attr-defined]
    known = {option for one in found.params for option in one.opts}
    typed = [line for line in lines.splitlines() if line.startswith(f"outlast runs {command} ")]
    assert typed
    assert {word for line in typed for word in line.split() if word.startswith("--")} <= known
