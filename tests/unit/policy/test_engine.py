"""The order in which a call is judged, and what each mode makes of what is undecided."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from outlast.policy import (
    Allow,
    Allowed,
    Ask,
    Asked,
    Denied,
    Deny,
    Narrow,
    Policy,
    Predicate,
    Rule,
    Stop,
    ToolCall,
    decide,
)
from outlast.policy.mode import MODES
from outlast.policy.verdict import Verdict

from .conftest import MONDAY, judge

STOP = Stop(scope="everything", reason="paid twice", by="ann", at=MONDAY)


def deny_hook(call: ToolCall) -> Deny:
    """Deny everything."""
    return Deny("the hook says no")


def yes(call: ToolCall) -> Allow:
    """Allow everything."""
    return Allow()


def outcome(verdict: Verdict) -> str:
    """Return what a verdict is, and by what."""
    return f"{type(verdict).__name__} {verdict.code}"


LADDER: list[tuple[str, dict[str, Any]]] = [
    ("Denied stopped", {"stopped": STOP}),
    ("Denied unlisted", {"agents": {"a": ("other",)}}),
    ("Denied hook", {"hooks": (deny_hook,)}),
    ("Denied rule", {"rules": (Rule("deny", "edit"),)}),
    ("Asked rule", {"rules": (Rule("ask", "edit"),)}),
    ("Asked definition_changed", {"definition": "changed"}),
    ("Allowed mode", {"mode": "accept_edits"}),
    ("Allowed rule", {"rules": (Rule("allow", "edit"),)}),
    ("Allowed callback", {"callback": yes}),
    ("Asked undecided", {}),
]


@pytest.mark.parametrize("first", range(len(LADDER)))
def test_the_order(first: int) -> None:
    """Of everything that would answer, the first in this order does."""
    parts: dict[str, Any] = {"rules": (), "definition": "", "stopped": None}
    for _, given in reversed(LADDER[first:]):
        rules = given.get("rules", ()) + parts["rules"]
        parts = {**parts, **given, "rules": rules}
    definition, stopped = parts.pop("definition"), parts.pop("stopped")
    call = {"kind": "tool", "agent": "a", "writes": True, "edits": True, "definition": definition}
    verdict = judge(Policy(**parts), "edit", stopped=stopped, **call)
    assert outcome(verdict) == LADDER[first][0]


READS, WRITES, UNKNOWN = {"writes": False}, {"writes": True}, {"writes": None}
TABLE: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("effect", UNKNOWN, {"default": "Allowed", "plan": "Denied", "accept_edits": "Allowed", "dont_ask": "Allowed", "bypass": "Allowed"}),
    ("effect", READS, {"default": "Allowed", "plan": "Allowed", "accept_edits": "Allowed", "dont_ask": "Allowed", "bypass": "Allowed"}),
    ("tool", READS, {"default": "Allowed", "plan": "Allowed", "accept_edits": "Allowed", "dont_ask": "Allowed", "bypass": "Allowed"}),
    ("tool", WRITES, {"default": "Asked", "plan": "Denied", "accept_edits": "Asked", "dont_ask": "Denied", "bypass": "Allowed"}),
    ("tool", UNKNOWN, {"default": "Asked", "plan": "Denied", "accept_edits": "Asked", "dont_ask": "Denied", "bypass": "Allowed"}),
    ("tool", {"writes": True, "edits": True}, {"default": "Asked", "plan": "Denied", "accept_edits": "Allowed", "dont_ask": "Denied", "bypass": "Allowed"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "known", "said"), TABLE)
def test_what_is_undecided(kind: str, known: dict[str, Any], said: dict[str, str]) -> None:
    """Of each mode, for the author's own effects and for foreign tools."""
    assert set(said) == set(MODES)
    for mode, name in said.items():
        policy = Policy(mode=mode)  # type: ignore[arg-type]
        assert type(judge(policy, "t", kind=kind, may_bypass=True, **known)).__name__ == name, mode


def test_deny_and_ask_rules_count_in_bypass() -> None:
    """So do lists and hooks: bypass is about what is undecided alone."""
    policy = Policy((Rule("deny", "a"), Rule("ask", "b")), "bypass", {"x": ("a", "b")})
    assert outcome(judge(policy, "a", may_bypass=True)) == "Denied rule"
    assert outcome(judge(policy, "b", may_bypass=True)) == "Asked rule"
    assert outcome(judge(policy, "c", may_bypass=True, agent="x")) == "Denied unlisted"
    assert outcome(judge(policy, "c", may_bypass=True)) == "Allowed mode"


def test_nothing_is_taken_from_what_is_merely_true() -> None:
    """What permits is `True`, or `False`, and nothing like it."""
    assert judge(Policy(mode="bypass"), "t", kind="tool", may_bypass="no").mode == "default"
    assert judge(Policy(mode="accept_edits"), "t", kind="tool", edits="no").code == "undecided"
    assert judge(Policy(mode="plan"), "t", kind="tool", writes=0).code == "plan"


def test_an_ask_rule_names_who_is_asked_and_for_how_long() -> None:
    """And the verdict holds the arguments that the person sees."""
    rule = Rule(
        "ask",
        "pay",
        role="boss",
        expires_in=timedelta(hours=72),
        reason="money",
        name="large",
        sticky="run",
    )
    verdict = judge(Policy((rule,)), "pay", {"amount": 5})
    assert isinstance(verdict, Asked)
    assert (verdict.role, verdict.expires_in, verdict.reason) == (
        "boss",
        timedelta(hours=72),
        "money",
    )
    assert (verdict.rule, verdict.arguments) == ("large", {"amount": 5})
    assert verdict.sticky == "run"


def test_the_first_rule_of_a_class_decides() -> None:
    """And is named by its class and number."""
    verdict = judge(Policy((Rule("deny", "x"), Rule("deny", "p*"), Rule("deny", "pay"))), "pay")
    assert (verdict.rule, outcome(verdict)) == ("deny 2", "Denied rule")


def test_modes_that_let_nobody_be_asked_name_the_rule() -> None:
    """In plan mode a person's yes would let a write pass."""
    for mode, code in (("dont_ask", "dont_ask"), ("plan", "plan")):
        verdict = judge(Policy((Rule("ask", "pay"),), mode), "pay")  # type: ignore[arg-type]
        assert (outcome(verdict), verdict.rule) == (f"Denied {code}", "ask 1")


def test_agents() -> None:
    """An agent has what its list says; `*` speaks of those that are not named; what runs without one has all."""
    policy = Policy(agents={"a": ("read_*", "files:put"), "*": ("search",)})
    for agent, tool, server, there in [
        ("a", "read_x", "", True), ("a", "put", "files", True), ("a", "put", "", False), ("a", "search", "", False),
        ("b", "search", "", True), ("b", "read_x", "", False), ("", "anything", "", True),
    ]:  # fmt: skip
        verdict = judge(policy, tool, agent=agent, server=server)
        assert (verdict.code == "unlisted") != there, (agent, tool)
    assert judge(Policy(agents={"a": ()}), "x", agent="b").code == "default"


def test_hooks_run_in_order_and_each_sees_what_the_one_before_has_narrowed() -> None:
    """Async or not; and rules judge what is left."""
    seen = []

    async def halve(call: ToolCall) -> Narrow:
        await asyncio.sleep(0)
        return Narrow({**call.arguments, "amount": call.arguments["amount"] // 2})

    def note(call: ToolCall) -> None:
        seen.append(call.arguments["amount"])

    policy = Policy(
        (Rule("deny", "*", (Predicate("amount", "greater", 60),)),), hooks=(note, halve, note)
    )
    assert judge(policy, "pay", {"amount": 100, "to": "x"}).arguments == {"amount": 50, "to": "x"}
    assert seen == [100, 50]
    assert judge(policy, "pay", {"amount": 200}).code == "rule"


def test_a_hook_that_adds_an_argument_is_an_error() -> None:
    """It may narrow, and nothing else."""
    verdict = judge(Policy(hooks=(lambda call: Narrow({"a": 1, "force": True}),)), "t", {"a": 1})
    assert outcome(verdict) == "Denied error"
    assert "force" in verdict.trace[-1].why


def test_a_hook_cannot_change_the_call_in_place() -> None:
    """It gets a copy, whatever lies how deep."""

    def meddle(call: ToolCall) -> None:
        call.arguments["lines"].append("more")

    given = {"lines": ["one"]}
    assert judge(Policy(hooks=(meddle,), callback=meddle), "t", given).arguments == {
        "lines": ["one"]
    }
    assert given == {"lines": ["one"]}


def test_the_caller_cannot_change_the_call_while_it_is_judged() -> None:
    """What it does to its own arguments meanwhile changes nothing that is judged or returned."""
    given = {"amount": 5}

    async def slow(call: ToolCall) -> None:
        given["amount"] = 5000
        await asyncio.sleep(0)

    limit = Rule("deny", "*", (Predicate("amount", "greater", 100),))
    assert judge(Policy((limit,), hooks=(slow,)), "pay", given).arguments == {"amount": 5}


class SilentError(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error", [ValueError("x"), SilentError(), ExceptionGroup("g", [KeyError(1)])]
)
@pytest.mark.parametrize("where", ["hooks", "callback"])
def test_an_error_denies_and_says_whose_it_is(where: str, error: Exception) -> None:
    """In the reason its type alone, which may go to a model."""

    async def broken(call: ToolCall) -> Any:
        raise error

    policy = Policy(hooks=(broken,)) if where == "hooks" else Policy(callback=broken)
    verdict = judge(policy, "t")
    assert outcome(verdict) == "Denied error"
    assert "broken failed with" in verdict.reason
    assert verdict.rule.endswith("broken")


@pytest.mark.parametrize(
    "said",
    [
        True,
        "allow",
        Deny(None),
        Ask(role=5),
        Ask(expires_in="1h"),
        Ask(sticky="ever"),
        Deny("\ud800"),
        Narrow({}),
    ],
)  # type: ignore[arg-type]
def test_a_callback_that_says_something_else_denies(said: Any) -> None:
    """What was meant cannot be guessed."""
    assert outcome(judge(Policy(callback=lambda call: said), "t")) == "Denied error"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, "Allowed default"),
        (Allow(), "Allowed callback"),
        (Deny("no"), "Denied callback"),
        (Ask("boss"), "Asked callback"),
    ],
)
def test_what_a_callback_says(said: Any, expected: str) -> None:
    """Where nothing else has decided, and it is meant for the tool."""
    assert outcome(judge(Policy(callback=lambda call: said), "t")) == expected
    elsewhere = Policy(callback=lambda call: said, callback_tools=("other",))
    assert outcome(judge(elsewhere, "t")) == "Allowed default"


def test_a_callback_says_how_far_a_yes_may_stick() -> None:
    """Not at all by default."""
    for ask in (Ask("boss"), Ask("boss", sticky="turn")):
        verdict = judge(Policy(callback=lambda call, ask=ask: ask), "t")
        assert isinstance(verdict, Asked)
        assert verdict.sticky == ask.sticky


@pytest.mark.parametrize(
    "fields", [{"name": ""}, {"name": "x" * 1001}, {"agent": None}, {"server": "\ud800"}]
)
def test_a_call_without_a_proper_name_is_denied(fields: dict[str, Any]) -> None:
    """Nothing could be told of it."""
    call = ToolCall(**{"name": "t", **fields})
    verdict = asyncio.run(decide(Policy(), call, stopped=None, now=MONDAY))
    assert outcome(verdict) == "Denied error"


def test_a_time_without_a_zone_denies() -> None:
    """Hours would mean nothing."""
    assert outcome(judge(Policy(), "t", now=datetime(2026, 3, 2))) == "Denied error"


def test_a_new_or_changed_definition_is_asked_about() -> None:
    """Unless a rule denies; an allow rule does not help, and what asks anyway says it too, and lets no yes stick. Effects have none."""
    money = Rule("ask", "q", reason="money", sticky="run")
    policy = Policy((Rule("deny", "d"), money, Rule("allow", "*")))
    for definition in ("new", "changed"):
        call: dict[str, Any] = {"kind": "tool", "writes": False, "definition": definition}
        assert outcome(judge(policy, "t", **call)) == f"Asked definition_{definition}"
        assert outcome(judge(policy, "d", **call)) == "Denied rule"
        seen = judge(policy, "q", **call)
        assert isinstance(seen, Asked)
        assert ("definition" in seen.reason, seen.sticky) == (True, "no")
    assert outcome(judge(policy, "t", kind="tool", definition="pinned")) == "Allowed rule"
    assert outcome(judge(policy, "t", kind="tool", definition="what?")) == "Asked definition_new"
    assert outcome(judge(policy, "t", kind="effect", definition="new")) == "Allowed rule"


def test_a_verdict_is_data() -> None:
    """It can be kept, and read again as the same."""
    policy = Policy((Rule("ask", "pay", expires_in=timedelta(minutes=5)), Rule("deny", "drop")))
    for name in ("pay", "drop", "read"):
        verdict = judge(policy, name, {"a": [1, None]})
        kept = msgspec.json.encode(verdict)
        assert msgspec.json.decode(kept, type=Allowed | Denied | Asked) == verdict


def test_no_value_of_an_argument_is_told() -> None:
    """Neither in a reason nor in the trace: they may be secret, and traces are shown."""
    rule = Rule("deny", "*", (Predicate("token", "starts_with", "sk-"),))
    for token in ("sk-12345", "12345", 12345):
        assert "12345" not in str(judge(Policy((rule,)), "t", {"token": token}).trace)
