"""What becomes of a call, by whom, and what was looked at on the way: data that can be kept, so that nothing is asked twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from outlast.journal.asking import Sticks
from outlast.policy.mode import Mode

Stage = Literal[
    "call", "kill switch", "tool list", "hook", "deny", "ask", "definition", "mode", "allow", "callback", "default"
]  # fmt: skip


class Look(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Args:
        stage: What kind of thing it is.
        name: The rule, hook or callback; empty where the stage has but one.
        matched: Whether it said something of the call.
        why: In words, without the values of arguments.

    Example:
        ```python
        from outlast.policy import Look

        assert Look("deny", "deny 1", False, "tool is not pay").stage == "deny"
        ```
    """

    stage: Stage
    name: str
    matched: bool
    why: str


class Allowed(msgspec.Struct, frozen=True, kw_only=True, tag="allowed", tag_field="verdict"):
    """The call may be made, with these arguments and no others.

    Args:
        arguments: As hooks have narrowed them.
        code: What allowed it: `rule`, `mode`, `callback` or `default`.
        rule: Its name; empty for a mode.
        mode: The mode in force: `default` where a bypass was not honoured.
        policy_version: Of the policy that decided.
        trace: What was looked at, in order.

    Example:
        ```python
        from outlast.policy import Allowed

        verdict = Allowed(arguments={"place": "here"}, code="default", policy_version="0" * 16)
        assert verdict.rule == "" and verdict.mode == "default"
        ```
    """

    arguments: dict[str, Any]
    code: Literal["rule", "mode", "callback", "default"]
    policy_version: str
    rule: str = ""
    mode: Mode = "default"
    trace: tuple[Look, ...] = ()


class Denied(msgspec.Struct, frozen=True, kw_only=True, tag="denied", tag_field="verdict"):
    """The call must not be made.

    Args:
        reason: Why, for the agent and for people.
        code: What denied it: `stopped` (the kill switch), `unlisted` (the agent does not have the tool), `hook`, `rule`, `plan`,
            `dont_ask`, `callback`, or `error`: something failed that should have judged.
        rule: The rule, hook or callback; empty where none has a part in it.
        mode: The mode in force.
        policy_version: Of the policy that decided.
        trace: What was looked at, in order.

    Example:
        ```python
        from outlast.policy import Denied

        verdict = Denied(reason="too late", code="rule", rule="deny 1", policy_version="0" * 16)
        assert verdict.code == "rule"
        ```
    """

    reason: str
    code: Literal["stopped", "unlisted", "hook", "rule", "plan", "dont_ask", "callback", "error"]
    policy_version: str
    rule: str = ""
    mode: Mode = "default"
    trace: tuple[Look, ...] = ()


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="asked", tag_field="verdict"):
    """A person decides about the call, with these arguments and no others.

    Args:
        role: Who is asked; empty for anybody.
        expires_in: How long that person has; None for as long as the caller says.
        sticky: How far a yes may stick.
        arguments: As hooks have narrowed them.
        reason: Why a person is asked.
        code: What wants it: `rule`, `definition_new`, `definition_changed`, `callback` or `undecided`.
        rule: Its name; empty where no rule and no callback has a part in it.
        mode: The mode in force.
        policy_version: Of the policy that decided.
        trace: What was looked at, in order.

    Example:
        ```python
        from outlast.policy import Asked

        verdict = Asked(arguments={}, reason="over 100", code="rule", role="treasurer", policy_version="0" * 16)
        assert verdict.expires_in is None
        ```
    """

    arguments: dict[str, Any]
    reason: str
    code: Literal["rule", "definition_new", "definition_changed", "callback", "undecided"]
    policy_version: str
    role: str = ""
    expires_in: timedelta | None = None
    sticky: Sticks = "no"
    rule: str = ""
    mode: Mode = "default"
    trace: tuple[Look, ...] = ()


Verdict: TypeAlias = Allowed | Denied | Asked
