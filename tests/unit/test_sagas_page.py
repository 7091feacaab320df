"""What the page on sagas shows is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlast.cli.main import app
from outlast.store.change import Status

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/effects_sagas.md").read_text()
PRINTED = """\
3 tickets
completed
undone: train in Oslo
undone: flight to Oslo
no room in Oslo
compensated
undone: flight to Oslo
['insurance', 'flight to Bergen', 'no']
undone: seat to Oslo
Bergen
"""


def test_the_program_of_the_page_on_sagas_runs(tmp_path: Path) -> None:
    """All its Python, in its order, is one program, and undoes what the page says."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "travel.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "travel.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # The keys of the bookings are left out.
    assert re.sub(r"^(undone: .*) [0-9a-f]{4}$", r"\1", done.stdout, flags=re.MULTILINE) == PRINTED


@pytest.mark.parametrize("line", [one for one in PAGE.splitlines() if one.startswith("outlast ")])
def test_the_commands_of_the_page_can_be_typed(line: str) -> None:
    """They are parsed; there is no such database."""
    words = shlex.split(line)[1:]
    result = CliRunner(env={"OUTLAST_DATABASE_URL": "sqlite:////nowhere/x.db"}).invoke(app, words)
    assert result.exit_code == 1, result.output
    assert "nowhere" in result.stderr


def test_the_page_names_every_way_in_which_a_run_can_end() -> None:
    """Each closed status has its row."""
    table = PAGE.partition("## How a run ends")[2]
    assert {one.value for one in Status if one.closed} <= set(re.findall(r"`([a-z ]+)`", table))
