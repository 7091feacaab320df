"""What the page on sending keys shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx

from outlast.http.carry import KEYED, REPEATABLE, Target
from outlast.http.course import LONGEST_WAIT, TRIES
from outlast.integrations.mcp import META_KEY
from outlast.workflows.carry import KEY_VARIABLE

PAGE = (Path(__file__).parents[2] / "docs/http_client.md").read_text()


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """It prints what its comments say."""
    program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["1", "2 1"]


def test_the_other_blocks_are_python() -> None:
    """What they leave to the reader is named beside them."""
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        compile(block, "docs/http_client.md", "exec")


def test_the_names_and_numbers_of_the_page_are_those_of_the_code() -> None:
    """Methods, waits, the names of header, metadata and variable."""
    first = next(line for line in PAGE.splitlines() if line.startswith("| | GET"))
    safe, keyed, _ = [cell.strip() for cell in first.strip("| ").split("|")]
    assert set(safe.split(", ")) == REPEATABLE
    assert set(keyed.split(" to ")[0].split(", ")) == KEYED
    assert [TRIES.gap(number).total_seconds() for number in (1, 2, 3)] == [0.5, 1, 2]
    assert TRIES.maximum_attempts == 4 and LONGEST_WAIT.total_seconds() == 30
    assert META_KEY in PAGE and KEY_VARIABLE in PAGE and f"`{Target().header}`" in PAGE
    assert Target("api.bank.example").matches(httpx.URL("https://api.bank.example/payments"))
