"""`outlast backup`, `restore`, `release` and `worker --paused`, as they are typed; and the page on backups."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from .conftest import World
from .test_hints import problem

PAGE = (Path(__file__).parents[3] / "docs/backup.md").read_text()


def test_backup_restore_release(world: World) -> None:
    """Each says what it did; doctor sees the restore until everything was released and has ended."""
    file = world.folder / "copy.db"
    made = world.cli("backup", str(file))
    assert made.exit_code == 0, made.output
    assert f"backup     {file} ({file.stat().st_size:,} bytes)" in made.stdout
    assert re.search(r"runs +7, 5 of them open; until 20\d\d-", made.stdout)
    refused = world.cli("backup", str(file))
    assert (refused.exit_code, "no backup takes the place of another" in refused.output) == (
        1,
        True,
    )
    refused = world.cli("restore", str(file))
    assert refused.exit_code == 1
    assert "--replace, which keeps that one under another name" in refused.output
    restored = world.cli("restore", str(file), "--replace")
    assert restored.exit_code == 0, restored.output
    assert f"kept       {world.file}.before-" in restored.stdout
    assert "outlast release --all --reason WHY" in restored.output
    assert timeline_of(world)["verdict"] == "warn"
    assert "open runs of before: 5" in timeline_of(world)["text"]
    assert world.cli("release", "signal", "timer", "--reason", "looked at").stdout == (
        "released: 2 runs (what was restored goes on with care)\n"
    )
    told = world.cli("release", "--workflow", "flow", "--trust", "--reason", "nothing happened")
    assert told.stdout == "released: 5 runs (nothing of it was forgotten)\n"
    assert "open runs of before: 0" in timeline_of(world)["text"]
    assert world.cli("release", "--all", "--reason", "done").stdout.startswith(
        "released: everything"
    )
    assert timeline_of(world)["verdict"] == "ok"


def timeline_of(world: World) -> dict[str, str]:
    """Return what doctor finds about the line of history."""
    findings = json.loads(world.cli("doctor", "--json").stdout)["findings"]
    return {one["check"]: one for one in findings}["timeline"]


def test_restore_here(world: World) -> None:
    """A store that was put back by other means is said to be so, with a reason, and is held."""
    assert world.cli("restore").exit_code == 2
    assert world.cli("restore", "--here", "file.db").exit_code == 2
    assert world.cli("restore", "--here").exit_code == 2
    said = world.cli("restore", "--here", "--reason", "snapshot of monday")
    assert said.exit_code == 0, said.output
    found = timeline_of(world)
    assert found["verdict"] == "warn"
    assert "snapshot of monday" in found["text"]


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["--reason", "why"],
        ["run", "--all", "--reason", "why"],
        ["--workflow", "w", "--all", "--reason", "why"],
    ],
)
def test_release_is_typed_wholly(words: list[str], world: World) -> None:
    """What is released, in one way, and why."""
    assert world.cli("release", *words).exit_code == 2


def test_a_memory_store_has_no_backup(world: World) -> None:
    """Another kind of store is refused in words."""
    told = world.cli("backup", str(world.folder / "b.db"), "-d", "memory://")
    assert told.exit_code == 1
    assert "only a store that is a file" in told.output


def test_what_the_page_types_can_be_typed() -> None:
    """Each command of the page is one of the command line."""
    typed = re.findall(r"^\$ (outlast [^#\n]*)", PAGE, re.MULTILINE)
    named = [" ".join(one.split()) for one in re.findall(r"`(outlast [a-z][^`]*)`", PAGE)]
    assert len(typed) >= 8
    for command in (*typed, *named):
        assert problem(command.replace("…", "x")) == "", command
        assert shlex.split(command)[0] == "outlast"


def test_the_page_names_what_there_is() -> None:
    """Its columns are what is called so."""
    for name in ("Client.release(", "outlast.open(paused=True)", "--trust", "outlast:admin"):
        assert name in PAGE
