"""What the page on policies shows is what happens, and its tables name what there is."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.main import app
from outlast.policy.lint import Kind
from outlast.policy.mode import MODES
from outlast.policy.predicate import OPERATORS
from outlast.policy.toml import _RULE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/policy.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the policy of the page."""
    (policy,) = blocks("toml")
    (tmp_path / "policy.toml").write_text(policy)
    (definition,) = blocks("json")
    (tmp_path / "write_file.json").write_text(definition)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_DATABASE_URL", raising=False)
    return tmp_path


def test_the_program_of_the_page_runs(folder: Path) -> None:
    """All its Python is one program, and prints what the page says."""
    (folder / "page.py").write_text("\n\n".join(blocks("python")))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [done.stdout] == blocks("text")


def test_the_commands_of_the_page_print_what_it_says(folder: Path) -> None:
    """As they are typed, on a new database."""

    async def create() -> None:
        async with outlast.connect(create=True):
            pass

    asyncio.run(create())
    assert (folder / "outlast.db").exists()
    for block in blocks("console"):
        command, _, output = block.partition("\n")
        result = CliRunner().invoke(app, shlex.split(command.removeprefix("$ outlast ")))
        assert result.output == output


def named(heading: str) -> set[str]:
    """Return what the first column of the tables of a section names in code."""
    section = re.split(r"\n## ", PAGE.partition(f"\n## {heading}\n")[2])[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


def test_the_tables_name_all_there_is() -> None:
    """Whoever adds a mode, key, operator or finding says what it means."""
    assert named("Modes") == set(MODES)
    assert named("Rules") == set(_RULE)
    assert named("What is asked of arguments") == set(OPERATORS)
    assert named("Finding what is said in vain") == set(Kind.__args__)
