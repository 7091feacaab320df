"""What the page on seeing what workers do says is so."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import psycopg
from typer.main import get_command

import outlast
from outlast.app import examine_store, migrate_store
from outlast.cli.log import JsonFormatter
from outlast.cli.main import app as commands
from outlast.meter.instrument import INSTRUMENTS
from outlast.worker.report import REPORT_SECONDS
from outlast.worker.vital import LIVE_SECONDS, READY_SECONDS
from outlast.workflows.log import FIELDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operating.md").read_text(encoding="utf-8")


def test_every_instrument_is_listed_as_it_is() -> None:
    """Name, kind, unit, attribute and text, in the order of the code."""
    rows = [
        line for line in PAGE.splitlines() if re.match(r"\| `outlast\.[a-z_.]+` \| [a-z]+ \|", line)
    ]
    assert rows == [
        f"| `{one.name}` | {one.kind} | `{one.unit}` | {f'`outlast.{one.label}`' if one.label else ''} | {one.text} |"
        for one in INSTRUMENTS
    ]


def test_every_alarm_is_on_an_instrument() -> None:
    """No alarm waits for a number that nobody tells."""
    table = PAGE.partition("### What to be woken for")[2].partition("\n## ")[0]
    names = re.findall(r"`(outlast\.[a-z_.]+)`", table)
    assert len(names) >= 12
    assert set(names) <= {one.name for one in INSTRUMENTS}


def test_the_numbers_of_the_page_hold() -> None:
    """Times of health and reports."""
    assert (LIVE_SECONDS, READY_SECONDS, REPORT_SECONDS) == (30, 10, 10)
    assert "stood still for 30 seconds" in PAGE
    assert "look for work for 10 seconds" in PAGE
    assert "every 10 seconds" in PAGE


def test_the_programs_of_the_page_run() -> None:
    """They declare and open as shown."""
    given: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, {"__name__": "page_on_operating"} | given, given)
    assert isinstance(given["app"], outlast.App)
    assert isinstance(given["log"], logging.LoggerAdapter)


def test_the_line_of_the_page_is_one_of_the_log() -> None:
    """With its fields, in their order."""
    (shown,) = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    line = json.loads(shown)
    record = logging.makeLogRecord(
        {
            "name": line["logger"],
            "msg": line["message"],
            "levelname": "INFO",
            "created": 1772366400.125,
        }
        | {name: line[name] for name in FIELDS if name in line}
    )
    assert JsonFormatter().format(record) == shown
    assert ", ".join(f"`{name}`" for name in FIELDS) in " ".join(PAGE.split())


def test_commands_exist() -> None:
    """Each command that is named is one."""
    known = get_command(commands)
    for words in re.findall(r"`outlast ([a-z][a-z ]*)", PAGE):
        command: Any = known
        for word in words.split():
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, words
            command = command.commands[word]


def test_links_lead_somewhere() -> None:
    """Pages and headings."""
    for page, _, heading in (one.partition("#") for one in re.findall(r"\]\(([^)]+)\)", PAGE)):
        text = (DOCS / page).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^a-z -]", "", one.lower()).replace(" ", "-")
            for one in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        assert not heading or heading in headings


def test_what_doctor_finds_on_a_server(postgres_url: str) -> None:
    """Each finding of the page is one, and everything that the page asks the server it answers."""
    migrate_store(postgres_url, partitions=2)
    table = PAGE.partition("On PostgreSQL `doctor` looks")[2].partition("Three questions")[0]
    named = re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE)
    assert len(named) >= 6
    assert set(named) <= {one.check for one in examine_store(postgres_url)}
    (questions,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for question in filter(str.strip, questions.split(";")):
            assert connection.execute(question.encode()).description
        for view, columns in re.findall(r"`(pg_stat_[a-z_]+)`: ((?:`[a-z_]+`(?:, )?)+)", table):
            asked = f"SELECT {columns.replace('`', '').rstrip(', ')} FROM {view} LIMIT 0"
            connection.execute(asked.encode())
