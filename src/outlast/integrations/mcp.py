"""Tools of MCP servers, called under the key of the running effect.

The key travels in the request's `_meta`, beside the arguments and not in them, so no model sees it: it writes the arguments and reads the
results. The protocol has no field for it yet; the name is under the reverse of a domain, as the specification wants names of others.
Source: MCP specification 2025-11-25 and 2026-07-28, `_meta`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, cast

from outlast.errors import DefinitionError
from outlast.journal.canonical import canonical
from outlast.workflows.carry import key_for

try:
    from mcp import MCPError
    from mcp_types import CallToolResult, ErrorData, RequestParamsMeta
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "outlast.integrations.mcp needs the SDK of MCP; install the extra: in a clone of Outlast, pip install '.[mcp]'",
        name=error.name,
    ) from error

__all__ = ["META_KEY", "KeyedSession"]

META_KEY = "dev.outlast/idempotency-key"
"""Where a server finds the key, in `params._meta` of `tools/call`."""

_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME = re.compile(
    rf"(?:(?P<prefix>{_LABEL}(?:\.{_LABEL})*)/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
)
_HIDDEN = "(idempotency key)"


_Said = TypeVar("_Said", CallToolResult, ErrorData)


class Caller(Protocol):
    """What calls tools: `mcp.Client` and `mcp.ClientSession` do."""

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        meta: RequestParamsMeta | None = None,
    ) -> CallToolResult:
        """Call a tool."""
        ...


class KeyedSession:
    """Calls tools of an MCP server, within an effect under its key; the server answers an equal key with the first result.

    In a step, in a probe and elsewhere no key is sent. One effect has one key, so it calls one tool with one set of arguments, as often
    as it likes; several calls are named by `part`.

    Args:
        session: An open `mcp.Client` or `mcp.ClientSession`.
        meta_key: The name in `_meta` under which the server looks for a key.

    Raises:
        DefinitionError: The name cannot be one in `_meta`, or is reserved for the protocol.

    Example:
        ```python
        import mcp
        import outlast
        from mcp.server.mcpserver import Context, MCPServer
        from outlast.integrations.mcp import META_KEY, KeyedSession

        server = MCPServer("shop")
        orders: dict[str, str] = {}

        @server.tool()
        def order(item: str, context: Context) -> str:
            return orders.setdefault(context.request_context.meta[META_KEY], f"order of {item}")

        @outlast.effect(idempotent=True)
        async def buy(item: str) -> str:
            async with mcp.Client(server) as client:
                result = await KeyedSession(client).call_tool("order", {"item": item})
                return result.content[0].text

        @outlast.workflow
        async def shop(item: str) -> str:
            return await buy(item)

        async with outlast.open("memory://") as app:
            assert await app.run(shop("tea"), id="shop-1") == "order of tea"
        assert len(orders) == 1
        ```
    """

    def __init__(self, session: Caller, *, meta_key: str = META_KEY) -> None:
        self._session = session
        self._meta_key = _checked(meta_key)

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        part: str = "",
        **options: Any,
    ) -> CallToolResult:
        """Call a tool; the other options are those of the session.

        Where the server's answer or error repeats the key, something else stands in its place: a model may read it.

        Args:
            meta: More for `_meta`. A key that is given here stays.
            part: The name of this call, where an effect makes several.

        Raises:
            DefinitionError: The effect's key would go out with a second call.
        """
        given = dict(meta or {})
        if self._meta_key in given:
            key = str(given[self._meta_key])
        else:
            key = key_for((name, canonical(arguments)), f"a call of tool {name}", part=part)
        if key:
            given[self._meta_key] = key
        try:
            result = await self._session.call_tool(
                name, arguments, meta=cast("RequestParamsMeta", given) if given else None, **options
            )
        except MCPError as error:
            if key:
                error.error = _without(key, error.error)
                error.args = (error.code, error.message, error.data)
            raise
        return _without(key, result) if key else result


def _without(key: str, said: _Said) -> _Said:
    text = said.model_dump_json(by_alias=True)
    if key not in text:
        return said
    return type(said).model_validate_json(text.replace(key, _HIDDEN))


def _checked(name: str) -> str:
    found = _NAME.fullmatch(name)
    if found is None:
        raise DefinitionError(
            f"{name!r} cannot be a name in _meta", hint="write it as com.example/idempotency-key"
        )
    labels = (found["prefix"] or "").split(".")
    if len(labels) > 1 and labels[1] in ("mcp", "modelcontextprotocol"):
        raise DefinitionError(
            f"{name!r} is reserved for the protocol",
            hint="use a prefix of a domain of yours, as com.example/",
        )
    return name
