"""What an MCP server says of its tools, and what of that counts.

Annotations are hints. Those of a server that is not trusted by configuration count for nothing: its tools are taken to destroy. What a tool is
(its name, descriptions, schemas, annotations) has a hash, so that a change can be noticed.

Source: MCP 2025-11-25 and 2026-07-28, `ToolAnnotations`; both have the same hints and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from outlast.journal.canonical import sha256_of

_HINTS = {
    "readOnlyHint": "read_only_hint",
    "destructiveHint": "destructive_hint",
    "idempotentHint": "idempotent_hint",
    "openWorldHint": "open_world_hint",
}
_DEFINING = {
    "name": "name",
    "title": "title",
    "description": "description",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
    "annotations": "annotations",
}
"""Names on the wire, and those that Python's SDK gives them."""


class Annotations(Struct, frozen=True):
    """What is taken to be true of a tool; by default what is assumed of one that says nothing.

    Args:
        read_only: It changes nothing.
        destructive: What it changes may be lost. A tool that only reads destroys nothing, whatever it says.
        idempotent: Calling it again with the same arguments changes nothing more. A tool that only reads can always be called again.
        open_world: It deals with things outside a closed domain, as a search of the web does.

    Example:
        ```python
        from outlast.policy import Annotations

        assert Annotations.of(None) == Annotations(False, True, False, True)
        assert Annotations.of({"readOnlyHint": True, "destructiveHint": True}).destructive is False
        ```
    """

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True

    @classmethod
    def of(cls, hints: Mapping[str, Any] | None) -> Annotations:
        """Return what hints say, by their names on the wire or in Python; what is absent, null or no boolean takes its default.

        Does not ask whose they are: `TrustedServers.annotations` does.
        """
        said: Mapping[str, Any] = hints if isinstance(hints, Mapping) else {}
        read_only = _hint(said, "readOnlyHint", default=False)
        return cls(
            read_only,
            not read_only and _hint(said, "destructiveHint", default=True),
            read_only or _hint(said, "idempotentHint", default=False),
            _hint(said, "openWorldHint", default=True),
        )


class TrustedServers:
    """The MCP servers whose annotations count, by the names that they have in the configuration.

    Args:
        identities: Of each name, what the server must also be, as its URL or the hash of its program; empty where the name is enough.
            What a server says of itself is no identity.

    Example:
        ```python
        from outlast.policy import TrustedServers

        trusted = TrustedServers({"files": "stdio:/usr/bin/files-server"})
        hints = {"readOnlyHint": True}
        assert trusted.annotations("files", hints, identity="stdio:/usr/bin/files-server").read_only
        assert not trusted.annotations("files", hints, identity="https://elsewhere.example").read_only
        assert not trusted.annotations("others", hints).read_only
        ```
    """

    __slots__ = ("_identities",)

    def __init__(self, identities: Mapping[str, str] | None = None) -> None:
        self._identities = dict(identities or {})

    def trusts(self, server: str, identity: str = "") -> bool:
        """Say whether what this server says of its tools counts."""
        wanted = self._identities.get(server) if server else None
        return wanted is not None and wanted in ("", identity)

    def annotations(
        self, server: str, hints: Mapping[str, Any] | None, *, identity: str = ""
    ) -> Annotations:
        """Return what is taken to be true of a tool of this server."""
        return Annotations.of(hints if self.trusts(server, identity) else None)


def definition_sha256(tool: Mapping[str, Any]) -> str:
    """Return the hash of what a foreign tool is: name, title, description, schemas, annotations, in hex.

    The order of keys, names on the wire or in Python, and null or absent fields make no difference.

    Raises:
        EncodeError: A field holds what JSON cannot.

    Example:
        ```python
        from outlast.policy import definition_sha256

        wire = {"name": "search", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        python = {"name": "search", "title": None, "input_schema": {"type": "object"}, "annotations": {"read_only_hint": True}}
        assert definition_sha256(wire) == definition_sha256(python)
        assert definition_sha256(wire) != definition_sha256({**wire, "description": "now with a twist"})
        ```
    """
    found = spelled(tool, _DEFINING)
    said = found.get("annotations")
    if isinstance(said, Mapping):
        hints = cast("Mapping[str, Any]", said)
        known = {*_HINTS, *_HINTS.values()}
        others = {name: one for name, one in hints.items() if name not in known and one is not None}
        found["annotations"] = {**others, **spelled(hints, _HINTS)}
    if not found.get("annotations"):
        found.pop("annotations", None)
    return sha256_of(found)


def _hint(hints: Mapping[str, Any], wire: str, *, default: bool) -> bool:
    said = spelled(hints, {wire: _HINTS[wire]}).get(wire)
    return said if isinstance(said, bool) else default


def spelled(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return fields by their names on the wire; one that is there in both spellings, and differs, as both."""
    found: dict[str, Any] = {}
    for wire, python in names.items():
        said = [one for one in (given.get(wire), given.get(python)) if one is not None]
        if said:
            found[wire] = said[0] if all(one == said[0] for one in said) else said
    return found
