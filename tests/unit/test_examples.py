"""Every public name has an example in its docstring, and every example is a program that runs."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
import outlast.crypto
import outlast.http
import outlast.http.carry
import outlast.http.transport
import outlast.integrations.mcp
import outlast.integrations.opentelemetry
import outlast.meter
import outlast.notify
import outlast.policy
import outlast.testing

HOMES = {
    "outlast": outlast,
    "outlast.testing": outlast.testing,
    "outlast.crypto": outlast.crypto,
    "outlast.http": outlast.http,
    "outlast.http.carry": outlast.http.carry,
    "outlast.http.transport": outlast.http.transport,
    "outlast.integrations.mcp": outlast.integrations.mcp,
    "outlast.integrations.opentelemetry": outlast.integrations.opentelemetry,
    "outlast.meter": outlast.meter,
    "outlast.notify": outlast.notify,
    "outlast.policy": outlast.policy,
}
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def examples_of(thing: Any) -> list[str]:
    """Return the programs in a docstring."""
    return [textwrap.dedent(block) for block in _BLOCK.findall(inspect.getdoc(thing) or "")]


def documented() -> Iterator[tuple[str, Any]]:
    """Return all that a reader may call: public names, and the public methods of public classes."""
    for home, module in HOMES.items():
        for name in module.__all__:
            thing = getattr(module, name)
            yield f"{home}.{name}", thing
            if inspect.isclass(thing) and thing.__module__.startswith("outlast"):
                for method, function in vars(thing).items():
                    if not method.startswith("_") and inspect.isfunction(function):
                        yield f"{home}.{name}.{method}", function


PROGRAMS = [
    pytest.param(program, id=f"{name}-{number}")
    for name, thing in documented()
    for number, program in enumerate(examples_of(thing))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_example_runs(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As a file of its own, in an empty folder; `await` may stand outside a function, as at Python's async prompt."""
    monkeypatch.chdir(tmp_path)
    name = re.sub(r"\W", "_", f"example_{request.node.callspec.id}")
    file = f"<{name}>"
    module = types.ModuleType(name)
    # Names are unique in an app, and every example is an app of its own.
    monkeypatch.setattr("outlast.workflows.registry._declared", [])
    monkeypatch.setattr("outlast.workflows.message._declared", {})
    lines = program.splitlines(keepends=True)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(linecache.cache, file, (len(program), None, lines, file))
    code = compile(program, file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    module.__file__ = file
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, vars(module)))
    else:
        exec(code, vars(module))


def test_names_are_the_same_everywhere() -> None:
    """The names whose examples are run are those that a user can import."""
    for home, module in HOMES.items():
        assert vars(importlib.import_module(home))["__all__"] == module.__all__


WHOLE = {home: module for home, module in HOMES.items() if module is not outlast.testing}


@pytest.mark.parametrize(
    ("home", "name"), [(home, name) for home, module in WHOLE.items() for name in module.__all__]
)
def test_there_is_an_example(home: str, name: str) -> None:
    """Of each public name: in its own docstring. A constant has none."""
    thing = getattr(HOMES[home], name)
    assert isinstance(thing, str) or examples_of(thing), f"{home}.{name} has no example"
