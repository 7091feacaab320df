"""The public API under pyright strict: what is right has no error, what is wrong has exactly the expected ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def problems() -> dict[str, set[tuple[int, str]]]:
    """Line and rule of each problem that pyright finds, by file name."""
    pytest.importorskip("pyright")
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
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    found: dict[str, set[tuple[int, str]]] = {"api.py": set(), "wrong.py": set()}
    for problem in report["generalDiagnostics"]:
        line = problem["range"]["start"]["line"] + 1
        found[Path(problem["file"]).name].add((line, problem.get("rule", problem["message"])))
    return found


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
