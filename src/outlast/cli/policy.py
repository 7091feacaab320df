"""`outlast policy`: what a policy file says in vain, and what becomes of a call under it.

Reads the file alone, and a store where it is asked for pins.

Hooks and callbacks are code and stand in no file, so these commands do not ask them.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer

from outlast.cli.output import complain, print_json, say
from outlast.cli.pin import pins, pins_of, told, tool_in
from outlast.cli.session import Session, json_of, usage_error
from outlast.cli.text import counted
from outlast.errors import PolicyError
from outlast.policy import Policy, PolicyFile, ToolCall, check, decide, explain

policy = typer.Typer(no_args_is_help=True, help="Check a policy file, and explain what it says.")

policy.add_typer(pins, name="pins")

_STANDING = {
    "pinned": "pinned",
    "new": "new, nothing is pinned of this tool",
    "changed": "changed, another one is pinned",
}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@policy.command("check", no_args_is_help=True)
def check_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy, in TOML.")],
    as_json: Json = False,
) -> None:
    """Read a policy as a whole, and find what it says in vain. The exit status is 1 when there is something."""
    found = _load(file)
    findings = check(found)
    if as_json:
        print_json({"version": found.version, "rules": len(found.rules), "findings": findings})
    else:
        for one in findings:
            say(one.text)
        rules = counted(len(found.rules), "rule")
        say(
            f"{file}: {rules}, mode {found.mode}, version {found.version}, {counted(len(findings), 'finding')}"
        )
    if findings:
        raise typer.Exit(1)


@policy.command("explain", no_args_is_help=True)
def explain_call(  # noqa: PLR0913 - what can be said of a call, each an option
    ctx: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The effect's or tool's name.")],
    arguments: Annotated[
        str, typer.Argument(metavar="ARGS_JSON", help="A JSON object, as '{\"amount\": 5}'.")
    ],
    file: Annotated[Path, typer.Option("--file", "-f", help="The policy, in TOML.")],
    agent: Annotated[str, typer.Option(help="The agent that calls.")] = "",
    principal: Annotated[str, typer.Option(help="For whom.")] = "",
    tenant: Annotated[str, typer.Option(help="Whose run; else that of the command line.")] = "",
    workflow: Annotated[str, typer.Option(help="Its name.")] = "",
    server: Annotated[str, typer.Option(help="The MCP server that has the tool.")] = "",
    foreign: Annotated[
        bool, typer.Option("--foreign", help="A framework's tool; so is that of a server.")
    ] = False,
    writes: Annotated[
        bool | None,
        typer.Option("--writes/--reads", help="What is known: whether it changes the world."),
    ] = None,
    edits: Annotated[
        bool, typer.Option("--edits", help="It edits files or drafts, and nothing else.")
    ] = False,
    definition: Annotated[
        Path | None,
        typer.Option(
            "--definition",
            metavar="FILE",
            help="With --server: the tool's definition, in JSON. It is held against the pins in the store, and its annotations count "
            "where the policy trusts the server.",
        ),
    ] = None,
    identity: Annotated[
        str, typer.Option(help="With --definition: what the server is, as its URL.")
    ] = "",
    at: Annotated[
        str,
        typer.Option("--at", metavar="TIME", help="When, as 2026-03-02T08:30:00+01:00; else now."),
    ] = "",
    may_bypass: Annotated[
        bool, typer.Option("--may-bypass", help="The caller may use the mode bypass.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what becomes of a call, and what was looked at: every rule up to the one that decides."""
    session = ctx.find_root().ensure_object(Session)
    call = ToolCall(
        name=tool, kind="tool" if foreign or server else "effect", arguments=_arguments(arguments),
        tenant=tenant or session.tenant, agent=agent, principal=principal,
        workflow=workflow, server=server, writes=writes, edits=edits,
    )  # fmt: skip
    now = _time(at)
    found = _load(file)
    says: list[str] = []
    if definition is not None:
        listed = tool_in(definition, server, tool, identity)
        call = found.called(call, listed, pins_of(session, call.tenant))
        says = told(listed)
    verdict = asyncio.run(decide(found, call, stopped=None, now=now, may_bypass=may_bypass))
    if as_json:
        known = {} if definition is None else {"definition": call.definition}
        print_json({**msgspec.to_builtins(verdict), **known})
        return
    headline, *lines = explain(verdict)
    say(headline)
    if definition is not None:
        say(f"definition of {server}:{tool}: {_STANDING[call.definition]}")
    for line in (*says, *lines):
        say(line)


def _load(file: Path) -> Policy:
    try:
        return PolicyFile(file).load()
    except PolicyError as error:
        complain(error)
        raise typer.Exit(1) from None


def _arguments(text: str) -> dict[str, Any]:
    found = json_of(text)
    if not isinstance(found, dict):
        raise usage_error("ARGS_JSON is one object of arguments by name, as '{\"amount\": 5}'")
    return cast("dict[str, Any]", found)


def _time(text: str) -> datetime:
    if not text:
        return datetime.now(UTC)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise usage_error(
            f"{text[:100]!r} is no time; write it as 2026-03-02T08:30:00+01:00"
        ) from None
    if found.utcoffset() is None:
        raise usage_error("--at needs its offset, as 2026-03-02T08:30:00Z or …+01:00")
    return found
