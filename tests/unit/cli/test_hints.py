"""Every command that the library tells somebody to type is one that the command line takes: names, options, and what is required."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer.main
from msgspec.structs import replace

import outlast
from outlast.cli.main import app
from outlast.cli.session import Session
from outlast.client import RunDetail, RunStatus, Status
from outlast.client.explain import REMEDIES, explain
from outlast.effects.standing import Standing

SOURCE = Path(outlast.__file__).parent
COMMAND: Any = typer.main.get_command(app)
TYPED = re.compile(r"`(outlast [a-z][^`]*)`")
HOLE = "1"
"""Stands for what is put in where a hint is told; some options take only numbers."""


def strings_in(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module that are not a part of others, with a word for each value in them."""
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(id(one) for one in node.values)
            yield "".join(
                str(one.value) if isinstance(one, ast.Constant) else HOLE for one in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "" if id(node) in parts else re.sub(r"%[sd]", HOLE, node.value)


def hinted() -> Iterator[tuple[str, str]]:
    """Yield each command that is named in the code, with the module."""
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for text in strings_in(tree):
            for command in TYPED.findall(text):
                yield str(file.relative_to(SOURCE)), " ".join(command.split())


def problem(command: str) -> str:
    """Return why a command cannot be typed; empty when it can, or is only named."""
    words = shlex.split(command)[1:]
    found: Any = COMMAND
    while words and getattr(found, "commands", None):
        if words[0] not in found.commands:
            return f"there is no command {words[0]!r}"
        found = found.commands[words.pop(0)]
    if not words:
        return ""
    # What stands for a number is written as a letter.
    words = [HOLE if word in {"N", "TIME"} else word for word in words]
    try:
        found.make_context("outlast", list(words)).close()
    except Exception as error:  # noqa: BLE001 - of click, which typer may bring with it
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return ""


def test_hints_can_be_typed() -> None:
    """As they stand in the code; a command that is named without its words only has to be there."""
    found = set(hinted())
    assert len(found) > 40
    assert {one: why for one in found if (why := problem(one[1]))} == {}


NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
PAY = Standing("r:1", "effect", "pay", "in doubt", since=NOON, key="k", arguments={}, doubt=3)
OPEN = (
    *(PAY, replace(PAY, compensation="repay", needs_result=True)),
    *(replace(PAY, compensates="r:0", has_given_up=True), replace(PAY, state="handed out")),
)
WAITS = {"signals": ["go"], "updates": ["set"], "runs": {"r:2": "other"}, "timers": {}}


def told(status: Status, reason: str, *operations: Standing) -> list[str]:
    """Return what is offered of such a run."""
    run = RunStatus("a b", "flow", status, reason, 1, 3, NOON, NOON, None, None, WAITS)
    detail = RunDetail(run, [], 0, list(operations), [], 0, NOON, [], attended=True, paused_by="x")
    return explain(detail, Session().command).commands


@pytest.mark.parametrize("reason", [*REMEDIES, "compensation failed", "budget"])
def test_what_explain_offers_can_be_typed(reason: str) -> None:
    """Of every state of a run and of what is open in it."""
    ends = {command for status in Status if status.closed for command in told(status, "", *OPEN)}
    offered = {*told(Status.BLOCKED, reason, *OPEN), *told(Status.WAITING, ""), *ends}
    assert len(offered) > 8
    assert {one: why for one in offered if (why := problem(one))} == {}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("outlast runs fork a --at 1 --effects new_key --id b --reason c", "new_key"),
        ("outlast runs fork a --at 1", "MissingParameter"),
        ("outlast runs complain", "no command 'complain'"),
        ("outlast runs cancel a --why x", "--why"),
        ("outlast runs fork a --at 1 --effects new-key --id b --reason c", ""),
    ],
)
def test_what_cannot_be_typed_is_noticed(command: str, why: str) -> None:
    """The test above would fail for it."""
    assert why in problem(command)
    assert bool(problem(command)) == bool(why)
