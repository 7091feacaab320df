"""What the page on testing shows is what happens."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

RUN = """

import inspect

for name, test in list(globals().items()):
    if name.startswith("test_"):
        done = test()
        if inspect.iscoroutine(done):
            asyncio.run(done)
        print(name)
"""


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    """All Python of the page, in its order, is one module of tests, and each of them passes."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    (tmp_path / "test_shop.py").write_text("\n\n".join(blocks) + RUN)
    done = subprocess.run(
        [sys.executable, "-W", "error", "test_shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == re.findall(r"def (test_\w+)", "\n".join(blocks))
    assert len(done.stdout.split()) == 4


def test_every_name_of_the_page_exists() -> None:
    """Whatever the page calls `testing.…` is there."""
    from outlast import testing

    text = (ROOT / "docs/testing.md").read_text()
    names = set(re.findall(r"(?<!outlast\.)\btesting\.(\w+)", text)) - {"md"}
    assert not {name for name in names if not hasattr(testing, name)}
    for path in set(re.findall(r"\b(outlast\.testing(?:\.\w+)+)", text)):
        module, _, name = path.rpartition(".")
        if importlib.util.find_spec(path) is None:
            assert hasattr(importlib.import_module(module), name), path
