"""Where output goes: results to standard output, everything else to standard error.

With `--json` standard output holds one JSON document and nothing else. Text from elsewhere is printed without markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.cli.text import safe
from outlast.errors import DecodeError, OutlastError
from outlast.journal.entry import ENTRY_NESTING
from outlast.journal.parse import NotJsonError, parse

_NESTING = ENTRY_NESTING + 8
"""Entries are shown inside lists and objects of their own."""

_PIPE_WIDTH = 240
"""Columns where no terminal says how many there are: a line is cut for nobody."""


def console(stream: TextIO | None = None) -> Console:
    """Return a console for standard output, or for `stream`."""
    file = stream or sys.stdout
    return Console(
        file=file,
        width=None if file.isatty() else _PIPE_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def say(text: str) -> None:
    """Print one line of a result, never wrapped or cut; a line break in it is escaped."""
    console().print(Text(safe(text)), soft_wrap=True)


def say_lines(text: str) -> None:
    """Print lines of a result."""
    console().print(Text(safe(text, lines=True)), soft_wrap=True)


def note(text: str) -> None:
    """Print one line that is no result."""
    console(sys.stderr).print(Text(safe(text)), soft_wrap=True)


def note_lines(text: str) -> None:
    """Print lines that are no result."""
    console(sys.stderr).print(Text(safe(text, lines=True)), soft_wrap=True)


def complain(error: OutlastError) -> None:
    """Print what went wrong and what to do about it."""
    message, _, hint = str(error).partition("\n  → ")
    screen = console(sys.stderr)
    screen.print(Text(f"Error: {safe(message, lines=True)}", style="red"), soft_wrap=True)
    if hint:
        screen.print(Text(f"  → {safe(hint, lines=True)}"), soft_wrap=True)


def plain(value: Any) -> Any:
    """Return structs and what they hold as plain data, times as ISO 8601 in UTC.

    Raises:
        DecodeError: Stored JSON in it cannot be read.
    """
    try:
        return parse(msgspec.json.encode(value), nesting=_NESTING)
    except NotJsonError as error:
        raise DecodeError(
            f"what is stored cannot be shown: {error}",
            hint="the store was changed by hand or is damaged",
        ) from None


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII: no terminal obeys anything in it."""
    sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under headings; every cell is escaped, and folded rather than cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    console().print(table)
