"""The call that is judged, as data: what is to be called, with what, for whom."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from outlast.journal.plan import kind_of

Definition = Literal["", "pinned", "new", "changed"]

LONGEST_NAME = 1_000
"""Characters of a name: no tool and no agent is called more than that."""

_DEEPEST = 100


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an effect or of a foreign tool, immediately before it is made.

    Args:
        name: Of the effect or tool.
        kind: `effect`: declared by the author's own code; `tool`: of a framework or an MCP server.
        arguments: By name, as plain JSON data.
        tenant: Whose run it is.
        agent: The agent that calls; empty where none does.
        principal: The subject for whom it is made; empty where nobody is known.
        workflow: Its name.
        server: The configured name of the MCP server that has the tool; empty for none.
        version: Of the effect or tool.
        writes: Whether it changes the world, where that is known.
        edits: Whether it changes files or drafts, and nothing else.
        definition: How a foreign tool's definition stands to the pinned one; empty where none is pinned.

    Example:
        ```python
        from outlast.policy import ToolCall

        call = ToolCall(name="pay", arguments={"amount": "120.50"}, agent="buyer", writes=True)
        assert call.kind == "effect" and call.tenant == "default"
        ```
    """

    name: str
    kind: Literal["effect", "tool"] = "effect"
    arguments: Mapping[str, Any] = {}
    tenant: str = "default"
    agent: str = ""
    principal: str = ""
    workflow: str = ""
    server: str = ""
    version: str = ""
    writes: bool | None = None
    edits: bool = False
    definition: Definition = ""

    @property
    def is_known_to_read(self) -> bool:
        """Whether it is known to change nothing."""
        return self.writes is False and not self.edits


def check_names(call: ToolCall) -> None:
    """Raise ValueError where a name is no text, or longer than any name is."""
    for field in ("name", "kind", "tenant", "agent", "principal", "workflow", "server", "version"):
        value: Any = getattr(call, field)
        if type(value) is not str or len(value) > LONGEST_NAME:
            raise ValueError(f"{field} is no text of at most {LONGEST_NAME} characters")
        value.encode()
    if not call.name:
        raise ValueError("name is empty")


def plain(arguments: Any) -> dict[str, Any]:
    """Return a copy of arguments that shares nothing with them.

    Raises:
        TypeError: They are no mapping.
        ValueError: They hold what is no plain JSON data.
    """
    if not isinstance(arguments, Mapping):
        raise TypeError("the arguments are no mapping")
    return cast("dict[str, Any]", _copied(dict(cast("Mapping[Any, Any]", arguments)), 0))


def _copied(value: Any, depth: int) -> Any:
    kind = kind_of(value)
    if kind is str:
        value.encode()  # a lone surrogate is no text; UnicodeEncodeError is a ValueError
        return value
    if value is None or kind in (int, bool) or (kind is float and math.isfinite(value)):
        return value
    if depth > _DEEPEST:
        raise ValueError(f"the arguments are nested deeper than {_DEEPEST} levels")
    if kind is list:
        return [_copied(one, depth + 1) for one in value]
    if kind is dict and all(type(name) is str for name in value):
        return {_copied(name, depth): _copied(one, depth + 1) for name, one in value.items()}
    raise ValueError(f"the arguments hold what is no JSON data, of type {kind.__name__}")
