"""What the page on PostgreSQL names is what there is: commands, options of the URL, rights, settings of tables."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer.main

from outlast.cli.main import app
from outlast.store.postgres import schema, setting
from outlast.store.postgres.role import RIGHTS
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import READERS

PAGE = (Path(__file__).parents[2] / "docs/postgres.md").read_text()
COMMAND: Any = typer.main.get_command(app)
TYPED = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("outlast ")
] + re.findall(r"`(outlast [a-z]+[^`]*)`", PAGE)


@pytest.mark.parametrize("command", TYPED)
def test_commands_can_be_typed(command: str) -> None:
    """With their options."""
    found, words = COMMAND, shlex.split(command)[1:]
    while words and getattr(found, "commands", None):
        found = found.commands[words.pop(0)]
    found.make_context("outlast", words).close()


def test_every_option_of_the_url_is_named() -> None:
    """And each that is named is one."""
    named = {
        one.partition("=")[0] for one in re.findall(r"^\| `([a-z]+=[^`]*)`", PAGE, re.MULTILINE)
    }
    assert named == setting._OURS


@pytest.mark.parametrize("url", re.findall(r"^postgresql://\S+$", PAGE, re.MULTILINE))
def test_urls_are_read(url: str) -> None:
    """Those that stand alone."""
    found = read_setting(url)
    assert found.pooled == ("pooler" in url)
    assert ("target_session_attrs" in found.conninfo) == ("db2" in url)


def test_rights_are_those_that_are_granted() -> None:
    """Table by table."""
    rows = re.findall(r"^\| `([a-z]+)` \| ([A-Z][^|]*) \| SELECT \|$", PAGE, re.MULTILINE)
    assert dict(rows) == RIGHTS


def test_settings_of_tables() -> None:
    """As they are made."""
    first = files("outlast.store.postgres").joinpath("migrations/0001_pre_initial.sql").read_text()
    worker = first.partition("CREATE TABLE worker")[2].partition(";")[0]
    table = PAGE.partition("| tables | setting |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        where, settings = (cell.strip() for cell in row.strip().strip("|").split("|")[:2])
        for one in re.findall(r"`([^`]*)`", settings):
            assert one in (worker if where == "`worker`" else schema._HOT)
    assert "seven for each process" in PAGE
    assert READERS == 3
