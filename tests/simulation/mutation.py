"""Breaks one line of the code under test, for the length of a `with`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Break:
    """One line of one function.

    Args:
        owner: The class or module that has the function.
        line: The line, or a part of it, which occurs there once.
        instead: What is written for it.
        also: Names that only the broken line needs.
    """

    owner: Any
    name: str
    line: str
    instead: str
    also: dict[str, Any] = field(default_factory=dict)

    def broken(self) -> Any:
        """Return the function with the line broken."""
        function = inspect.getattr_static(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.line) == 1, f"{self.name} has no such line any more: {self.line}"
        code = compile(
            "from __future__ import annotations\n" + source.replace(self.line, self.instead),
            f"<broken {self.name}>",
            "exec",
        )
        names: dict[str, Any] = {}
        exec(code, {**function.__globals__, **self.also}, names)
        return names[self.name]


@contextmanager
def broken(*breaks: Break) -> Iterator[None]:
    """Break lines."""
    with ExitStack() as stack:
        for one in breaks:
            stack.enter_context(patch.object(one.owner, one.name, one.broken()))
        yield
