"""`outlast runs query` and `outlast runs published`, against a database that no worker has open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from outlast.cli.main import app

TELLER = """
import outlast

told = outlast.Query("told", int, list[str])
go = outlast.Signal("go", str)

@outlast.workflow
async def teller() -> str:
    words = ["one", "two \\x1b[31m"]
    outlast.on_query(told, lambda most: words[:most])
    outlast.publish("stage", {"done": 1, "word": "\\x1b[31m"})
    return await outlast.receive(go)
"""
MAKE = """
import asyncio, outlast, teller
from datetime import timedelta

async def main():
    async with outlast.open(idle=timedelta(milliseconds=1)) as app:
        handle = await app.start(teller.teller(), id="r")
        while (await handle.status()).status != "waiting":
            await asyncio.sleep(0.01)

asyncio.run(main())
"""
OTHER = TELLER.replace("return await", "await outlast.sleep(1)\n    return await").replace(
    'outlast.publish("stage"', 'outlast.publish("state"'
)
BROKEN = "import outlast\nraise RuntimeError('this module is broken')\n"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database with one run that waits, beside its code and beside other code."""
    folder = tmp_path_factory.mktemp("teller")
    (folder / "teller.py").write_text(TELLER)
    (folder / "make.py").write_text(MAKE)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "later").mkdir()
    (folder / "later" / "teller.py").write_text(OTHER)
    done = run(folder, [sys.executable, "make.py"])
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command beside the database."""
    environment = {**os.environ, "OUTLAST_DATABASE_URL": f"sqlite:///{folder / 's.db'}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def query(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask, in a process of its own: what it imports is declared for good."""
    return run(folder, [sys.executable, "-m", "outlast.cli", "runs", "query", *words])


def cli(folder: Path, *words: str) -> Result:
    """Run a command in this process."""
    environment = {"OUTLAST_DATABASE_URL": f"sqlite:///{folder / 's.db'}"}
    return CliRunner(env=environment).invoke(app, ["runs", *words])


@pytest.mark.parametrize("module", ["teller.py", "teller"])
def test_the_answer_is_one_json_document(folder: Path, module: str) -> None:
    """The module is named as a file or as a module; no terminal obeys anything in what is printed."""
    done = query(folder, "r", "told", "2", "-m", module, "--timeout", "30s")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["one", "two \x1b[31m"]
    assert "\x1b" not in done.stdout


def test_code_that_does_not_fit_ends_in_an_error(folder: Path) -> None:
    """It says which query, what differs, and what to do."""
    done = query(folder, "r", "told", "2", "-m", "later/teller.py", "--timeout", "30s")
    assert (done.returncode, done.stdout) == (1, "")
    assert "query 'told' was not answered: the code here is not the code of the run" in done.stderr
    assert "publish stage at r:1" in done.stderr
    assert "publish state at r:1" in done.stderr
    assert "handle.published(key) needs no code" in done.stderr


def test_a_module_that_raises_is_told_without_our_frames(folder: Path) -> None:
    """As with the worker."""
    done = query(folder, "r", "told", "2", "-m", "broken.py")
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: this module is broken\n")
    assert "outlast/cli" not in done.stderr


def test_without_the_code_the_error_says_how_to_name_it(folder: Path) -> None:
    """And a wrong value, or a wrong length of time, is an error of typing."""
    result = cli(folder, "query", "r", "told")
    assert result.exit_code == 1
    assert "the code has no workflow 'teller'" in result.stderr
    assert "-m MODULE" in result.stderr
    assert cli(folder, "query", "r", "told", "{").exit_code == 2
    assert cli(folder, "query", "r", "told", "--timeout", "never").exit_code == 2
    assert "no such run" in cli(folder, "query", "nobody", "told").stderr


def test_published_values_are_printed_as_json(folder: Path) -> None:
    """Without any code; `null` under a key that was never used, an error where there is no such run."""
    result = cli(folder, "published", "r", "stage")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"done": 1, "word": "\x1b[31m"}
    assert "\x1b" not in result.stdout
    assert cli(folder, "published", "r", "other").stdout == "null\n"
    assert "no such run" in cli(folder, "published", "nobody", "stage").stderr


def test_the_journal_shows_what_was_published(folder: Path) -> None:
    """With its key and its value."""
    entry = json.loads(cli(folder, "journal", "r", "--json").stdout)[2]
    assert (entry["kind"], entry["name"], entry["operation"]) == ("published", "stage", "r:1")
    assert entry["body"] == {"value": {"done": 1, "word": "\x1b[31m"}}
