"""What the page on operating requests shows is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlast.cli.answer import TEMPLATE
from outlast.cli.main import app
from outlast.http.answer import Answer, decode
from outlast.store.request import RequestRow, RequestState

PAGE = (Path(__file__).parents[2] / "docs/http_operating.md").read_text()


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """It prints what the page says."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "requests.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "requests.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


@pytest.mark.parametrize(
    "line",
    [line for line in PAGE.splitlines() if line.startswith("outlast requests")],
    ids=lambda line: line.split()[2],
)
def test_the_commands_of_the_page_can_be_typed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are parsed; there is no such database."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answer.json").touch()
    runner = CliRunner(env={"OUTLAST_DATABASE_URL": "sqlite:////nowhere/x.db"})
    result = runner.invoke(app, shlex.split(line)[1:])
    assert result.exit_code == 1, result.output
    assert "nowhere" in result.stderr


def test_the_answer_of_the_page_is_one() -> None:
    """It is the one that `show` prints, and the middleware reads it."""
    (shown,) = re.findall(r"```json\n\s*(.*?)\n\s*```", PAGE, re.DOTALL)
    assert shown == TEMPLATE
    answer = decode(shown.encode())
    assert isinstance(answer, Answer) and answer.body == b'{"payment": 7}'


def test_the_tables_of_the_page_are_whole() -> None:
    """Every state and every field that is kept has its line, but for those that say whose it is and how long it would be kept."""
    assert all(f"| `{state.value}` |" in PAGE for state in RequestState)
    told = re.findall(r"`(\w+)`", PAGE.partition("## Requests in doubt")[0])
    assert set(RequestRow.__struct_fields__) - {"tenant", "keep", "started_at"} <= set(told)
