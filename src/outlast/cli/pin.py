"""`outlast policy pins`: which definitions of foreign tools were looked at, and taken as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from outlast.cli.output import print_json, print_table, say
from outlast.cli.session import Session, stored, usage_error
from outlast.cli.text import at
from outlast.errors import DefinitionError
from outlast.journal.parse import NotJsonError, parse
from outlast.policy import ForeignTool, Pin, Pins
from outlast.policy.tool import words_of

pins = typer.Typer(
    no_args_is_help=True, help="See which definitions of foreign tools are pinned, and change it."
)

Server = Annotated[
    str, typer.Argument(metavar="SERVER", help="The server's name in the configuration.")
]
Tool = Annotated[
    str, typer.Argument(metavar="TOOL", help="The tool's name, as the server lists it.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the change.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

_OF_A_TOOL = ("name", "inputSchema", "input_schema")
"""What an object holds, one or the other, that defines a tool."""

_DIGITS = 16
"""Of a hash, in a table."""


@pins.command("list")
@stored
def list_pins(session: Session, as_json: Json = False) -> None:
    """List what is pinned, by whom and since when."""
    found = session.call(lambda client: client.pins.list())
    if as_json:
        print_json(found)
    elif not found:
        say("no definition is pinned: each foreign tool is asked about")
    else:
        print_table(("SERVER", "TOOL", "SHA-256", "BY", "SINCE"), map(_row, found))


def _row(one: Pin) -> tuple[str, ...]:
    return one.server, one.tool, one.sha256[:_DIGITS], one.by, at(one.first_seen)


@pins.command("pin", no_args_is_help=True)
@stored
def pin(
    session: Session,
    server: Server,
    tool: Tool,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Its definition, in JSON; or what the server answers to tools/list, also as JSON-RPC has it.",
        ),
    ],
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Take the definition of a tool as it is. Look at it first: its description is what a model reads."""
    listed = tool_in(file, server, tool)
    made = session.call(lambda client: client.pins.pin(listed, reason))
    if as_json:
        print_json(made)
    else:
        say(f"pinned: {listed} as {made.sha256}")
        for line in told(listed):
            say(line)


@pins.command("forget", no_args_is_help=True)
@stored
def forget(
    session: Session, server: Server, tool: Tool, reason: Reason = "", as_json: Json = False
) -> None:
    """Take a pin back: the tool is asked about from now on."""
    session.call(lambda client: client.pins.forget(server, tool, reason))
    if as_json:
        print_json({"server": server, "tool": tool})
    else:
        say(f"forgotten: {server}:{tool}")


def pins_of(session: Session, tenant: str) -> Pins:
    """Return the pins of a tenant."""
    found = Session(session.database, tenant).call(lambda client: client.pins.list())
    return Pins(tuple(found))


def tool_in(file: Path, server: str, name: str, identity: str = "") -> ForeignTool:
    """Return the tool whose definition a file holds, alone or in a list of several."""
    try:
        held: Any = parse(file.read_bytes())
    except OSError as error:
        raise usage_error(f"{file} cannot be read: {error.strerror}") from None
    except NotJsonError as error:
        raise usage_error(f"{file} is not JSON ({error})") from None
    try:
        return ForeignTool(server, name, _definition(held, name, file), identity)
    except DefinitionError as error:
        raise usage_error(f"{error.message}; {error.hint}") from None


def told(tool: ForeignTool) -> list[str]:
    """Return the lines that say what a tool says of itself, in whole."""
    return [f"    {name.replace('_', ' ')}: {text}" for name, text in words_of(tool).items()] or [
        "    it says nothing of itself"
    ]


def _definition(held: Any, name: str, file: Path) -> dict[str, Any]:
    whole = cast("dict[str, Any]", held) if isinstance(held, dict) else {"tools": held}
    if "jsonrpc" in whole:
        whole = _result(whole, file)
    listed: Any = whole.get("tools")
    if listed is None:
        if whole.keys().isdisjoint(_OF_A_TOOL):
            raise usage_error(
                f"{file} holds no definition of a tool: it has neither a name nor an inputSchema; give it as the server lists it, or all that the "
                "server answers to tools/list"
            )
        return whole
    tools = cast("list[Any]", listed) if isinstance(listed, list) else []
    found = [cast("dict[str, Any]", one) for one in tools if isinstance(one, dict)]
    of_name = [one for one in found if one.get("name") == name]
    if len(of_name) != 1:
        raise usage_error(f"{file} holds {len(of_name) or 'no'} definitions of a tool {name!r:.80}")
    return of_name[0]


def _result(answer: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return what is in an answer as it came over the wire."""
    result: Any = answer.get("result")
    if not isinstance(result, dict):
        raise usage_error(
            f"{file} holds an answer of JSON-RPC without a result; give what the server answers to tools/list"
        )
    return cast("dict[str, Any]", result)
