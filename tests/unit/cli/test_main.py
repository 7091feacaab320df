"""The command itself: version, usage errors, the demo, and what an import costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli import main
from outlast.cli.main import app
from outlast.workflows.registry import library_version


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version(words: list[str]) -> None:
    """Both ways print one line."""
    assert CliRunner().invoke(app, words).stdout == f"outlast {library_version()}\n"


@pytest.mark.parametrize(
    "words", [["nonsense"], ["runs", "show"], ["runs", "list", "--limit", "0"]]
)
def test_usage_errors(words: list[str]) -> None:
    """What is typed wrong ends with status 2."""
    assert CliRunner().invoke(app, words).exit_code == 2


def test_url_that_names_no_store() -> None:
    """A path in the place of a URL says how URLs look."""
    result = CliRunner().invoke(app, ["-d", "agent.db", "runs", "list"])
    assert result.exit_code == 1
    assert "sqlite:///file.db" in result.stderr
    memory = CliRunner().invoke(app, ["-d", "memory://", "runs", "list"])
    assert memory.exit_code == 1
    assert "ends with the process" in memory.stderr


def test_demo_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything behind `demo` is the demo's; its status is the command's."""
    given: list[list[str]] = []
    show = ModuleType("outlast.demo.show")
    vars(show)["main"] = lambda words: given.append(list(words)) or 3
    monkeypatch.setitem(sys.modules, "outlast.demo.show", show)
    result = CliRunner().invoke(app, ["demo", "--yes", "--json", "--help"])
    assert result.exit_code == 3
    assert given == [["--yes", "--json", "--help"]]


def test_demo_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package names the extra to install."""

    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "outlast.demo.show":
                raise ModuleNotFoundError("No module named 'httpx'", name="httpx")

    monkeypatch.delitem(sys.modules, "outlast.demo.show", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "pip install '.[demo]'" in result.stderr


def test_library_does_not_import_the_command_line() -> None:
    """`import outlast` brings no typer, no rich and no driver."""
    code = "import sys, outlast; print([m for m in ('typer', 'rich', 'outlast.cli', 'apsw') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_warning_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours stand without the place in our code that gave them; those of others are shown as ever."""
    shown: list[tuple[object, ...]] = []
    monkeypatch.setattr(main, "_show", lambda *given: shown.append(given))
    main._warn("run r waits", outlast.NoWorkerWarning, "events.py", 80)
    assert capsys.readouterr().err == "Warning: run r waits\n"
    main._warn("old", DeprecationWarning, "theirs.py", 7)
    assert shown == [("old", DeprecationWarning, "theirs.py", 7, None, None)]
