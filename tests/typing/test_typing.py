"""The public API under pyright strict: what is right has no error, what is wrong has exactly the expected ones."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[tuple[int, str]]]:
    """Line and rule of each problem that pyright finds, by file name."""
    pytest.importorskip("pyright")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    # The tests below may be run by several processes at once. The first asks for all of them; the others wait for what it is told.
    with (folder / "pyright.json").open("a+") as told:
        fcntl.flock(told, fcntl.LOCK_EX)
        told.seek(0)
        output = told.read()
        if not output:
            output = asked()
            told.write(output)
    report: dict[str, Any] = json.loads(output)
    assert report["summary"]["filesAnalyzed"] == 2
    found: dict[str, set[tuple[int, str]]] = {"api.py": set(), "wrong.py": set()}
    for problem in report["generalDiagnostics"]:
        line = problem["range"]["start"]["line"] + 1
        found[Path(problem["file"]).name].add((line, problem.get("rule", problem["message"])))
    return found


def asked() -> str:
    """Return what pyright says, as JSON."""
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        str(HERE),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False
    )
    return done.stdout


def test_right_uses_have_no_error(problems):
    """Types flow from annotations through calls, handles, signals and grants."""
    assert problems["api.py"] == set()


def test_wrong_uses_are_found(problems):
    """Wrong arguments, results, messages and options are errors, each on its line."""
    lines = (HERE / "wrong.py").read_text().splitlines()
    expected = {
        (number, rule)
        for number, line in enumerate(lines, 1)
        for rule in line.partition("# expect:")[2].split()
    }
    assert problems["wrong.py"] == expected
