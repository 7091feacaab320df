"""What the page on forks shows is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlast.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/forks.md").read_text()
PRINTED = """\
the courier does not answer
sent: Dear Ann; Ann has a parcel on the way
1
0 Started
1 Taken
2 StepCompleted
3 EffectIntended
4 EffectCompleted
5 Forked
6 StepCompleted
7 Completed
sent: Dear Ann; Ann has a parcel on the way
ForkedEffectError
sent: Hi Ann; Ann has a parcel on the way
['Dear Ann', 'Hi Ann']
"""


def test_the_program_of_the_page_on_forks_runs(tmp_path: Path) -> None:
    """All its Python, in its order, is one program, and prints what its comments say."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "letters.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "letters.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED
    for told in ("the courier does not answer", "ForkedEffectError", "['Dear Ann', 'Hi Ann']"):
        assert f"# {told}" in PAGE
    listed = subprocess.run(
        [Path(sys.executable).with_name("outlast"), "-d", "sqlite:///letters.db", "runs", "show", "letter-1/hi"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "fork       of letter-1/retry-1 with another outcome of r:1 by " in listed.stdout


@pytest.mark.parametrize(
    "line",
    [line for line in PAGE.splitlines() if line.startswith("outlast runs")],
    ids=lambda line: line.split()[2],
)
def test_the_commands_of_the_page_can_be_typed(line: str) -> None:
    """They are parsed; there is no such database."""
    words = shlex.split(line, comments=True)[1:]
    result = CliRunner(env={"OUTLAST_DATABASE_URL": "sqlite:////nowhere/x.db"}).invoke(app, words)
    assert result.exit_code == 1, result.output
    assert "nowhere" in result.stderr
