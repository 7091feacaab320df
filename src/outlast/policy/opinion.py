"""What hooks and callbacks, which are code, say of a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from msgspec import Struct

from outlast.journal.asking import Sticks
from outlast.policy.call import ToolCall


class Allow(Struct, frozen=True):
    """A callback's yes.

    Example:
        ```python
        import asyncio
        from datetime import UTC, datetime
        from outlast.policy import Allow, Allowed, Policy, ToolCall, decide

        policy = Policy(callback=lambda call: Allow())
        call = ToolCall(name="send", kind="tool")
        now = datetime(2026, 3, 2, tzinfo=UTC)
        assert isinstance(asyncio.run(decide(policy, call, stopped=None, now=now)), Allowed)
        ```
    """


class Deny(Struct, frozen=True):
    """A hook's or a callback's no.

    Args:
        reason: Why, for the agent and for people.

    Example:
        ```python
        from outlast.policy import Deny, Policy, ToolCall

        def no_nights(call: ToolCall) -> Deny | None:
            return Deny("not at night") if call.arguments.get("hour") == 3 else None

        policy = Policy(hooks=(no_nights,))
        ```
    """

    reason: str


class Ask(Struct, frozen=True):
    """A callback's wish that a person decides.

    Args:
        role: Who is asked; empty for anybody.
        expires_in: How long that person has; None for as long as the caller says.
        sticky: How far a yes may stick.

    Example:
        ```python
        from datetime import timedelta
        from outlast.policy import Ask, Policy

        policy = Policy(callback=lambda call: Ask("treasurer", timedelta(hours=4)))
        ```
    """

    role: str = ""
    expires_in: timedelta | None = None
    sticky: Sticks = "no"


class Narrow(Struct, frozen=True):
    """A hook's wish that the call is made with other arguments, of names that were there before.

    Args:
        arguments: All of them, by name.

    Example:
        ```python
        from outlast.policy import Narrow, Policy, ToolCall

        def at_most_ten(call: ToolCall) -> Narrow | None:
            if call.name != "search":
                return None
            return Narrow({**call.arguments, "limit": min(10, call.arguments["limit"])})

        policy = Policy(hooks=(at_most_ten,))
        ```
    """

    arguments: Mapping[str, Any]


Hook: TypeAlias = Callable[[ToolCall], "Deny | Narrow | Awaitable[Deny | Narrow | None] | None"]
Callback: TypeAlias = Callable[
    [ToolCall], "Allow | Deny | Ask | Awaitable[Allow | Deny | Ask | None] | None"
]
