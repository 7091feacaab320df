"""A policy as a whole: rules, mode, tools of each agent, hooks, callback, and the version by which verdicts name it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from outlast.errors import PolicyError
from outlast.journal.canonical import canonical
from outlast.policy.annotation import Annotations, TrustedServers
from outlast.policy.call import ToolCall
from outlast.policy.glob import ToolGlob, check_glob, is_name
from outlast.policy.mode import MODES, Mode
from outlast.policy.opinion import Callback, Hook
from outlast.policy.pin import Pins
from outlast.policy.rule import EFFECTS, Effect, Rule
from outlast.policy.shown import shown
from outlast.policy.tool import ForeignTool

EVERY_OTHER = "*"
"""In the table of agents: each agent that is not named there."""

_VERSION_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may do what, as data, with hooks and a callback in Python where data does not suffice.

    Calls are judged in this order: kill switch, tools of the agent, hooks, deny rules, ask rules, mode, allow rules, callback, and what the
    mode says of the rest. Within a class the first rule that matches decides. Whatever fails denies.

    Args:
        rules: In any order of their classes; within a class the order counts.
        mode: `default`, `plan`, `accept_edits`, `dont_ask` or `bypass`.
        agents: Of each agent, globs over the tools that exist for it; `*` names all other agents. An agent that is not named has all tools,
            and so has what runs without an agent.
        hooks: Functions, async or not, that look at each call before the rules: they deny it, narrow its arguments, or return None.
        callback: A function, async or not, that is asked of what nothing else has decided.
        callback_tools: Globs over the tools of which the callback is asked.
        trusted: The servers whose word on their own tools counts, each with what it must also be: see `TrustedServers`.

    Raises:
        PolicyError: A part of it could not be judged.

    Example:
        ```python
        import asyncio
        from datetime import UTC, datetime
        from outlast.policy import Policy, Predicate, Rule, ToolCall, decide

        policy = Policy(
            rules=(
                Rule("deny", "delete_*", tenant="prod-*", reason="an agent deletes nothing in production"),
                Rule("ask", "pay", (Predicate("amount", "greater", 100),), role="treasurer"),
            ),
            agents={"researcher": ("search", "read_*")},
        )
        call = ToolCall(name="pay", arguments={"amount": 250}, agent="researcher")
        verdict = asyncio.run(decide(policy, call, stopped=None, now=datetime(2026, 3, 2, tzinfo=UTC)))
        assert verdict.code == "unlisted"  # the researcher has no such tool
        ```
    """

    rules: tuple[Rule, ...] = ()
    mode: Mode = "default"
    agents: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    hooks: tuple[Hook, ...] = ()
    callback: Callback | None = None
    callback_tools: tuple[str, ...] = ("*",)
    trusted: Mapping[str, str] = field(default_factory=dict[str, str])
    version: str = field(init=False)

    def __post_init__(self) -> None:
        """Refuse what could not be judged; order the rules by their classes, and name the whole."""
        if self.mode not in MODES:
            raise PolicyError(
                f"there is no mode {shown(self.mode)}", hint=f"modes are {', '.join(MODES)}"
            )
        given: Any = self.rules
        if not isinstance(given, tuple | list) or not all(type(one) is Rule for one in self.rules):
            raise PolicyError(
                "rules is no tuple of rules", hint='write rules=(Rule("deny", "pay"),)'
            )
        names = [one.name for one in self.rules if one.name]
        if twice := next((one for one in names if names.count(one) > 1), ""):
            raise PolicyError(
                f"two rules are called {shown(twice)}", hint="a verdict names one of them"
            )
        ordered = sorted(self.rules, key=lambda one: EFFECTS.index(one.effect))
        object.__setattr__(self, "rules", tuple(ordered))
        object.__setattr__(self, "agents", _agents(self.agents))
        object.__setattr__(self, "hooks", tuple(_function("a hook", one) for one in self.hooks))
        if self.callback is not None:
            _function("the callback", self.callback)
        object.__setattr__(self, "callback_tools", _globs("callback_tools", self.callback_tools))
        object.__setattr__(self, "trusted", _trusted(self.trusted))
        object.__setattr__(self, "version", _version(self))

    def labelled(self, *effects: Effect) -> Iterator[tuple[str, Rule]]:
        """Yield the rules of some classes in order, each with the name by which verdicts call it."""
        for effect in effects:
            found = (one for one in self.rules if one.effect == effect)
            for number, rule in enumerate(found, 1):
                yield rule.name or f"{effect} {number}", rule

    def tools_of(self, agent: str) -> tuple[ToolGlob, ...] | None:
        """Return the tools that exist for an agent; None: all of them."""
        if not agent:
            return None
        found = self.agents.get(agent, self.agents.get(EVERY_OTHER))
        return None if found is None else tuple(map(ToolGlob.of, found))

    def callback_globs(self) -> tuple[ToolGlob, ...]:
        """Return the tools of which the callback is asked."""
        return tuple(map(ToolGlob.of, self.callback_tools))

    def annotations_of(self, tool: ForeignTool) -> Annotations:
        """Return what is taken to be true of a foreign tool: what its server says of it where that counts, else the worst."""
        hints: Any = tool.definition.get("annotations")
        servers = TrustedServers(self.trusted)
        return servers.annotations(tool.server, hints, identity=tool.identity)

    def called(self, call: ToolCall, tool: ForeignTool, pins: Pins) -> ToolCall:
        """Return a call as one of a foreign tool: what of its annotations counts, and how its definition stands to the pinned one."""
        said = self.annotations_of(tool)
        return msgspec.structs.replace(
            call,
            name=tool.name,
            kind="tool",
            server=tool.server,
            writes=not said.read_only,
            edits=not (said.read_only or said.destructive or said.open_world),
            definition=pins.look(tool.server, tool.name, tool.sha256),
        )

    def data(self) -> dict[str, Any]:
        """Return its data parts as they stand in a file."""
        found: dict[str, Any] = {"mode": self.mode}
        if self.agents:
            found["agents"] = {name: list(globs) for name, globs in self.agents.items()}
        if self.trusted:
            found["trusted"] = dict(self.trusted)
        for rule in self.rules:
            found.setdefault(rule.effect, []).append(rule.data())
        return found


def qualified_name(function: Callable[..., Any]) -> str:
    """Return the module and the name of a function, or of the class of what is called like one."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _version(policy: Policy) -> str:
    """Return what differs whenever policies differ, and is the same on every machine.

    Of code it knows the names alone.
    """
    callback = policy.callback
    whole = {
        **policy.data(),
        "hooks": [qualified_name(one) for one in policy.hooks],
        "callback": qualified_name(callback) if callback is not None else None,
        "callback_tools": list(policy.callback_tools) if callback is not None else [],
    }
    return hashlib.sha256(canonical(whole)).hexdigest()[:_VERSION_DIGITS]


def _agents(given: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(given, Mapping):
        raise PolicyError("agents is no table", hint='write agents = {"researcher": ("search",)}')
    table = cast("Mapping[Any, Any]", given)
    for name in table:
        check_glob(name, "the name of an agent")
        if name != EVERY_OTHER and not is_name(name):
            raise PolicyError(
                f"the name of an agent is no glob: {shown(name)}",
                hint="name each agent; `*` alone stands for all that are not named",
            )
    return {name: _globs(f"agents.{name}", globs) for name, globs in sorted(table.items())}


def _trusted(given: Any) -> dict[str, str]:
    table = cast("Mapping[Any, Any]", given) if isinstance(given, Mapping) else {None: None}
    for server, identity in table.items():
        is_named = isinstance(server, str) and server.strip() and ":" not in server
        if not is_named or not isinstance(identity, str):
            raise PolicyError(
                "trusted is no table of servers",
                hint='write trusted = {"files": "https://files.example/mcp"}: the name of each, and what it must also be; "" where the '
                "name is enough",
            )
    return dict(sorted(table.items()))


def _globs(what: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, tuple | list):
        raise PolicyError(
            f"{what} is no list of tools", hint=f'write {what} = ["search", "read_*"]'
        )
    return tuple(str(ToolGlob.of(one, what)) for one in cast("tuple[Any, ...]", given))


def _function(what: str, given: Any) -> Any:
    if not callable(given):
        raise PolicyError(
            f"{what} is no function: {shown(given)}", hint="give one that takes a ToolCall"
        )
    return given
