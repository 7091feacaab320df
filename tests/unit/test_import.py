"""What `import outlast` brings with it: the core knows no framework, and pays only for what it uses.

How long it takes is measured by `make import-time`; what is loaded is held here, where a busy machine cannot matter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

import pytest

OURS = {"outlast", "msgspec", "rfc8785", "typing_extensions"}
"""Top-level packages outside the standard library that the import may load."""

SLOW_OR_FOREIGN = {
    "apsw",
    "click",
    "httpx",
    "multiprocessing",
    "pickle",
    "pydantic",
    "rich",
    "sqlite3",
    "typer",
    "unittest",
}


def loaded_by(statement: str) -> set[str]:
    """The modules that `statement` loads in a new interpreter, beyond those that it starts with."""
    code = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
    )
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that `import outlast` loads."""
    return loaded_by("import outlast")


def test_import_loads_no_package_that_is_not_needed(loaded: set[str]) -> None:
    """Outside the standard library, only the two libraries that encode, and what they need."""
    tops = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert tops <= OURS, f"import outlast also loads {sorted(tops - OURS)}"


def test_import_loads_no_framework_and_no_database_driver(loaded: set[str]) -> None:
    """Web clients, terminal libraries, models of others and databases wait until they are used."""
    assert not loaded & SLOW_OR_FOREIGN


def test_import_loads_no_store_and_no_front_end(loaded: set[str]) -> None:
    """A concrete store, the command line, the demo and the test kit are loaded by those who ask for them."""
    apart = {
        "outlast.store.sqlite",
        "outlast.store.memory",
        "outlast.cli",
        "outlast.demo",
        "outlast.testing",
    }
    assert not loaded & apart


def test_import_loads_no_worker(loaded: set[str]) -> None:
    """A process that declares and asks says how a worker would behave, and does not load one until it opens it."""
    behind = {"deck", "executor", "gate", "pilot", "report", "stall", "worker", "writer"}
    assert not loaded & {f"outlast.worker.{name}" for name in behind}
    opened = "import asyncio, outlast; asyncio.run(outlast.open('memory://').__aenter__())"
    assert "outlast.worker.worker" in loaded_by(opened)


def test_import_loads_no_module_for_what_is_read_later(loaded: set[str]) -> None:
    """Files of migrations and of policies are read by those who open a store or name a file."""
    assert not loaded & {"importlib.resources", "tempfile", "shutil", "tomllib"}


def test_import_generates_few_dataclasses() -> None:
    """Code is generated for each, which costs as much as loading a module: data that is frozen is a Struct.

    Left are those that have a computed field, or that callers replace in parts.
    """
    code = (
        "import outlast, sys\n"
        "ours = [vars(one).values() for name, one in list(sys.modules.items()) if name.startswith('outlast')]\n"
        "kinds = {one for some in ours for one in some if isinstance(one, type)}\n"
        "print(*sorted(one.__name__ for one in kinds if hasattr(one, '__dataclass_fields__')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
    )
    assert set(done.stdout.split()) <= {"ForeignTool", "Notify", "Policy", "WorkerOptions"}


def test_check_of_the_import_sees_what_is_loaded() -> None:
    """The look at `sys.modules` would notice a database driver."""
    assert "sqlite3" in loaded_by("import outlast, sqlite3")


def test_import_starts_no_thread_and_no_loop() -> None:
    """Importing does nothing but define."""
    code = (
        "import threading, asyncio, outlast\n"
        "assert threading.active_count() == 1\n"
        "assert asyncio._get_running_loop() is None"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, cwd=tempfile.gettempdir()
    )
