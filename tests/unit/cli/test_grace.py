"""How long attempts may go on when a worker stops is said where it is started."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outlast.cli.main import app
from outlast.errors import DefinitionError


@pytest.mark.parametrize(("typed", "meant"), [([], 10), (["--grace", "25s"], 25)])
def test_the_command_line_hands_it_on(
    typed: list[str], meant: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds, where nothing is said."""
    module = tmp_path / "agent_of_grace.py"
    module.write_text(
        "import outlast\n\n\n@outlast.workflow\nasync def greet_in_grace() -> str:\n    return 'hello'\n"
    )
    told: dict[str, Any] = {}

    def opened(*_: Any, **options: Any) -> Any:
        told.update(options)
        raise DefinitionError("enough")

    monkeypatch.setattr("outlast.cli.worker.open_app", opened)
    CliRunner().invoke(app, ["worker", str(module), "-d", f"sqlite:///{tmp_path}/x.db", *typed])
    assert told["grace"] == timedelta(seconds=meant)
