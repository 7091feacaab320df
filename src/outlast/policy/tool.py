"""A foreign tool as an effect wraps it: whose it is, and what its server says that it is.

Invariant: what a tool says of itself is data that is shown and hashed. Whether it counts, the policy says (`Policy.trusted`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.errors import DefinitionError, EncodeError
from outlast.journal.canonical import canonical
from outlast.policy.annotation import definition_sha256, spelled
from outlast.policy.binding import LONGEST_NAME
from outlast.policy.call import plain
from outlast.policy.shown import shown

_WORDS = {"description": "description", "inputSchema": "input_schema"}
"""What a model reads of a tool, by its names on the wire and in Python."""


@dataclass(frozen=True, slots=True)
class ForeignTool:
    """A tool of an MCP server, or of another program, that an effect calls: `@effect(tool=ForeignTool(…))`.

    Calls of the effect are judged as calls of the tool: rules, tool lists and the kill switch name the tool and its server, and not the
    effect. What no rule decides asks a person, and so does a definition that is not pinned.

    Args:
        server: The name that the server has in your configuration.
        name: Of the tool, as the server lists it.
        definition: Of the tool, as the server lists it: `description`, `inputSchema`, `annotations` and the others, by their names on the wire or
            in Python's SDK.
        identity: What the server is, as you have found it: its URL, or the hash of its program. See `TrustedServers`.

    Raises:
        DefinitionError: It names no tool, or the definition is no plain JSON, or that of another tool.

    Example:
        ```python
        from outlast.policy import ForeignTool, Policy

        listed = {"name": "read_file", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        tool = ForeignTool(server="files", name="read_file", definition=listed)
        assert not Policy().annotations_of(tool).read_only  # it says so itself, which is not enough
        assert Policy(trusted={"files": ""}).annotations_of(tool).read_only
        ```
    """

    server: str
    name: str
    definition: Mapping[str, Any]
    identity: str = ""
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        """Refuse what names no tool; keep a copy of the definition, and its hash."""
        for what, text in (("server", self.server), ("name", self.name)):
            _check_name(what, text)
        if ":" in self.server:
            raise DefinitionError(
                f"the server {shown(self.server)} cannot be named in a policy",
                hint="give it a name without ':', since a policy writes server:tool",
            )
        identity: Any = self.identity
        if not isinstance(identity, str):
            raise DefinitionError(
                f"identity={shown(identity)} is no text", hint="give the server's URL, or a hash"
            )
        try:
            kept = plain(self.definition)
            sha256 = definition_sha256({**kept, "name": self.name})
        except (TypeError, ValueError, EncodeError):
            raise DefinitionError(
                f"the definition of the tool {self.name} is no object of plain JSON data",
                hint="give it as the server lists it; of a model of Python's SDK tool.model_dump(mode='json')",
            ) from None
        if kept.get("name", self.name) != self.name:
            raise DefinitionError(
                f"the definition of the tool {self.name} is that of {shown(kept['name'])}",
                hint="give the definition whose name is the tool's",
            )
        object.__setattr__(self, "definition", kept)
        object.__setattr__(self, "sha256", sha256)

    def __str__(self) -> str:
        """Return it as a policy names it."""
        return f"{self.server}:{self.name}"


def words_of(tool: ForeignTool) -> dict[str, str]:
    """Return what a model reads of a tool, in whole: its description, and the schema of its arguments as JSON.

    What it does not say is left out; what it says in both spellings, and differs, is there as both.
    """
    return {
        _WORDS[wire]: one if isinstance(one, str) else canonical(one).decode()
        for wire, one in spelled(tool.definition, _WORDS).items()
        if one != ""
    }


def _check_name(what: str, given: Any) -> None:
    is_text = isinstance(given, str) and given.strip() and given.isprintable()
    if not is_text or len(given) > LONGEST_NAME:
        raise DefinitionError(
            f"{what}={shown(given)} names no {'tool' if what == 'name' else 'server'}",
            hint=f"write a text that is not blank, of at most {LONGEST_NAME} characters, and without control characters",
        )
