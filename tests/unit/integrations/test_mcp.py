"""Tools of an MCP server in a process of its own, called under the key of the running effect."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import mcp
import msgspec
import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, TextContent

import outlast
from outlast.integrations.mcp import META_KEY, KeyedSession
from outlast.journal.entry import EffectIntended
from outlast.testing import attempt

SERVER = f"""
import json, sys
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("shop")
orders = {{}}

def note(name, arguments, context):
    request = context.request_context
    meta = {{name: value for name, value in dict(request.meta or {{}}).items() if "modelcontextprotocol" not in name}}
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps([name, arguments, meta]) + chr(10))
    return meta.get({META_KEY!r})

@server.tool()
def order(item: str, context: Context) -> str:
    key = note("order", dict(item=item), context)
    return orders.setdefault(key, f"order {{len(orders) + 1}} of {{item}}")

@server.tool()
def echo(context: Context) -> str:
    return "charged under " + str(note("echo", {{}}, context))

server.run("stdio")
"""


class Shop:
    """The server's program and its log."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._log.touch()
        (folder / "server.py").write_text(SERVER)
        self.parameters = StdioServerParameters(
            command=sys.executable, args=[str(folder / "server.py"), str(self._log)]
        )

    @property
    def calls(self) -> list[list[Any]]:
        """Each call: the tool, its arguments, and its `_meta` but for what the protocol itself puts there."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    @asynccontextmanager
    async def open(self, kind: str):
        """Open what calls tools: the SDK's client, by the newest protocol, or its session, by the older one."""
        if kind == "session":
            async with (
                stdio_client(self.parameters) as (read, write),
                mcp.ClientSession(read, write) as session,
            ):
                await session.initialize()
                yield KeyedSession(session)
        else:
            async with mcp.Client(stdio_client(self.parameters)) as client:
                yield KeyedSession(client)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


sessions: list[KeyedSession] = []


@outlast.effect(
    idempotent=True, retry=outlast.RetryPolicy(initial_interval=timedelta(milliseconds=1))
)
async def buy(item: str) -> str:
    result = await sessions[-1].call_tool("order", {"item": item})
    if outlast.attempt().number == 1:
        raise OSError("the answer was lost")
    return text_of(result)


@outlast.step
async def look() -> str:
    return text_of(await sessions[-1].call_tool("echo"))


@outlast.workflow
async def errand(item: str) -> list[str]:
    return [await buy(item), await look()]


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


@pytest.mark.parametrize("kind", ["client", "session"])
def test_each_attempt_sends_the_key_of_the_intent_beside_the_arguments(
    shop: Shop, kind: str
) -> None:
    """To a real server over stdio; a step sends none. The key is in no argument, and in nothing that is stored but the intent."""

    async def main() -> tuple[list[str], list[Any]]:
        async with shop.open(kind) as session, outlast.open("memory://") as app:
            sessions.append(session)
            results = await app.run(errand("tea"), id="e")
            return results, [one.entry for one in await app.handle("e").journal()]

    results, journal = asyncio.run(main())
    keys = [one.key for one in journal if isinstance(one, EffectIntended)]
    order = ["order", {"item": "tea"}, {META_KEY: keys[0]}]
    assert shop.calls == [order, order, ["echo", {}, {}]]
    assert results == ["order 1 of tea", "charged under None"]
    others = [one for one in journal if not isinstance(one, EffectIntended)]
    assert keys[0] not in repr(msgspec.json.encode(others))


class Echo:
    """A session that notes what it is called with, and answers with all of it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def call_tool(self, name, arguments=None, *, meta=None, **options) -> CallToolResult:
        """Answer."""
        self.calls.append((name, arguments, meta, options))
        told = {"tool": name, "meta": meta}
        text = TextContent(type="text", text=json.dumps(told))
        return CallToolResult(content=[text], structured_content=told, _meta=dict(meta or {}))


def call(session: KeyedSession, *args: Any, **options: Any) -> CallToolResult:
    return asyncio.run(session.call_tool(*args, **options))


def test_a_server_that_repeats_the_key_does_not_show_it() -> None:
    """Neither in the text nor in the data nor in the metadata of its answer: a model may read any of them."""
    echo = Echo()
    with attempt(key="3a8d389c"):
        result = call(KeyedSession(echo), "pay", {"amount": 1})
    assert echo.calls == [("pay", {"amount": 1}, {META_KEY: "3a8d389c"}, {})]
    assert "3a8d389c" not in result.model_dump_json()
    assert result.structured_content == {"tool": "pay", "meta": {META_KEY: "(idempotency key)"}}


def test_an_error_that_repeats_the_key_does_not_show_it() -> None:
    """It is the same error but for that."""

    class Refusing:
        async def call_tool(self, name: str, arguments: Any = None, *, meta: Any = None) -> Any:
            raise mcp.MCPError(
                -32000, f"key {meta[META_KEY]} is in use", {"keys": [meta[META_KEY]]}
            )

    with attempt(key="3a8d389c"), pytest.raises(mcp.MCPError) as refused:
        call(KeyedSession(Refusing()), "pay")
    error = refused.value
    assert (error.code, error.message) == (-32000, "key (idempotency key) is in use")
    assert error.data == {"keys": ["(idempotency key)"]}
    assert "3a8d389c" not in f"{error} {error.args}"


def test_a_second_call_in_one_effect_is_refused_unless_it_is_named() -> None:
    """Under one key it would be answered as the first; an equal one may be."""
    echo = Echo()
    session = KeyedSession(echo)
    with attempt(key="k"):
        call(session, "pay", {"amount": 1})
        call(session, "pay", {"amount": 1})
        for other in (("pay", {"amount": 2}), ("pay",), ("ship", {"amount": 1})):
            with pytest.raises(outlast.DefinitionError, match="second request"):
                call(session, *other)
        call(session, "ship", {"amount": 1}, part="ship")
    assert [meta[META_KEY] for _, _, meta, _ in echo.calls] == ["k", "k", "k-ship"]


def test_other_metadata_and_options_go_along() -> None:
    """A key that the author gives stays, and another name is used where the server wants it."""
    echo = Echo()
    named = KeyedSession(echo, meta_key="com.example/key")
    call(named, "pay", read_timeout_seconds=3.0)
    with attempt(key="k"):
        call(named, "pay", meta={"com.example/trace": "t"})
        call(KeyedSession(echo), "pay", meta={META_KEY: "mine"})
    assert echo.calls == [
        ("pay", None, None, {"read_timeout_seconds": 3.0}),
        ("pay", None, {"com.example/trace": "t", "com.example/key": "k"}, {}),
        ("pay", None, {META_KEY: "mine"}, {}),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "io.modelcontextprotocol/key",
        "dev.mcp/key",
        "com.mcp.tools/key",
        "",
        "a b",
        "-a/b",
        "a./b",
        "a/b/c",
        "a/-b",
        "é/b",
    ],
)
def test_a_name_that_the_protocol_forbids_or_keeps_is_refused(name: str) -> None:
    """When the session is made."""
    with pytest.raises(outlast.DefinitionError):
        KeyedSession(Echo(), meta_key=name)


@pytest.mark.parametrize(
    "name", [META_KEY, "com.example.mcp/key", "key", "x-1.example/a_b.c-d", "mcp/key"]
)
def test_other_names_are_fine(name: str) -> None:
    """A prefix in reverse DNS notation, or none."""
    KeyedSession(Echo(), meta_key=name)
