"""What the page on effects shows is what happens, and its tables name what there is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import outlast
from outlast.effects.key import idempotency_key

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/effects.md").read_text()
NOT_TOLD = {"function", "name", "version", "heartbeat_timeout", "idempotent", "probe"}
"""Options that other tables and pages tell of."""


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """All its Python is one program, and prints what the page says; the answer that was lost costs no second charge."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "billing.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "billing.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said, charges = done.stdout.splitlines()
    assert said == "['r:1 is done', 'paid: 1200 for invoice-7']"
    assert charges.count("1200 for invoice-7") == 1
    assert f"It prints `{said}`" in PAGE
    assert "ConnectionError" in done.stderr


def test_the_table_of_options_names_all_of_them() -> None:
    """Whoever adds one says what it means."""
    declared = set(inspect.signature(outlast.effect).parameters) - NOT_TOLD
    table = PAGE.partition("### What each option says")[2].partition("### What is refused")[0]
    assert declared <= set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def test_the_vector_of_the_page_is_the_key() -> None:
    """Whoever computes it by hand comes to the same."""
    row = re.search(
        r"^\| `(.+?)` \| `(.+?)` \| `([0-9a-f]{64})`.*\| `([0-9a-f]{32})` \|$", PAGE, re.MULTILINE
    )
    assert row is not None
    *parts, key = row.groups()
    assert idempotency_key(*parts) == key
