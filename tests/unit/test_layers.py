"""The layers are kept, and each contract of `.importlinter` would notice a breach.

The contracts run on copies of the package that hold one breach each: a contract that cannot fail guards nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "outlast"
CONTRACTS = ROOT / ".importlinter"

BREACHES = [
    # (module, what is added to it, the contract that must break)
    ("replay/loop.py", "import outlast.store.change", "layers"),
    ("store/change.py", "import outlast.replay.loop", "layers"),
    ("errors.py", "import outlast.clock", "layers"),
    ("client.py", "import outlast.worker.worker", "layers"),
    ("effects/retry.py", "import outlast.approvals.request", "layers"),
    ("policy/rule.py", "import outlast.effects.retry", "layers"),
    ("worker/worker.py", "import outlast.app", "layers"),
    ("demo/process.py", "import outlast.testing", "layers"),
    ("unplaced.py", "", "layers"),
    ("worker/worker.py", "import outlast", "root"),
    ("client.py", "import outlast.store.memory", "stores"),
    ("worker/worker.py", "import outlast.store.sqlite.store", "stores"),
    ("store/change.py", "import outlast.store.protocol", "acyclic"),
    ("replay/loop.py", "import time", "pure"),
    ("replay/machine.py", "from random import Random", "pure"),
    ("journal/codec.py", "import secrets", "pure"),
    ("journal/text.py", "import socket", "pure"),
    ("replay/task.py", "import threading", "pure"),
    ("journal/entry.py", "import sqlite3", "pure"),
    ("errors.py", "import time", "pure"),  # by way of what the machine imports
    ("worker/worker.py", "import time", "outside"),
    ("client.py", "import secrets", "outside"),
    ("policy/engine.py", "import time", "outside"),
    ("store/memory.py", "import apsw", "apsw"),
    ("worker/worker.py", "import outlast.store.postgres.store", "stores"),
    ("store/migrate.py", "import psycopg", "psycopg"),
    ("app.py", "import sqlite3", "sqlite3"),
    ("client.py", "import httpx", "httpx"),
    ("http/__init__.py", "import mcp", "mcp"),
    ("app.py", "import opentelemetry.metrics", "opentelemetry"),
    ("store/change.py", "import outlast.meter", "layers"),
    ("app.py", "import outlast.http", "layers"),
    ("app.py", "import http_sf", "http_sf"),
    ("approvals/receipt.py", "import cryptography", "cryptography"),
    ("journal/canonical.py", "import outlast.crypto.signing", "layers"),
    ("worker/worker.py", "import outlast.notify", "layers"),
    ("app.py", "import apprise", "apprise"),
    ("http/route.py", "import itsdangerous", "apprise"),
    ("notify/link.py", "import standardwebhooks", "webhook"),
    ("http/route.py", "import starlette.routing", "framework"),
    ("app.py", "import rich.console", "terminal"),
    ("worker/worker.py", "import typer", "terminal"),
    ("journal/codec.py", "import pickle", "pickle"),
]


def judge(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the package `outlast` in `folder`."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def title_of(contract: str) -> str:
    """The name of a contract as the report prints it."""
    text = CONTRACTS.read_text(encoding="utf-8").partition(f"[importlinter:contract:{contract}]\n")[
        2
    ]
    return text.splitlines()[0].removeprefix("name = ")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package and its contracts."""
    shutil.copytree(
        PACKAGE, tmp_path / "outlast", ignore=shutil.ignore_patterns("__pycache__", "data")
    )
    shutil.copy(CONTRACTS, tmp_path / ".importlinter")
    return tmp_path


def test_the_package_keeps_every_contract(copy: Path) -> None:
    """All imports go down."""
    done = judge(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("module", "line", "contract"), BREACHES)
def test_a_breach_is_noticed(copy: Path, module: str, line: str, contract: str) -> None:
    """One wrong import, or one module without a place, breaks the contract that forbids it."""
    with (copy / "outlast" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    done = judge(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{title_of(contract)} BROKEN" in done.stdout


def test_every_contract_has_a_breach_that_proves_it() -> None:
    """A new contract comes with a breach here."""
    prefix = "[importlinter:contract:"
    lines = CONTRACTS.read_text(encoding="utf-8").splitlines()
    contracts = {line[len(prefix) : -1] for line in lines if line.startswith(prefix)}
    assert contracts == {contract for _, _, contract in BREACHES}
