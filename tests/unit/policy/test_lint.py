"""What a policy says in vain."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import PolicyError
from outlast.policy import Allow, Policy, Predicate, Rule, ToolCall, Window, check, strict
from outlast.policy.glob import covers, fits, meets

LARGE = (Predicate("amount", "greater", 100),)
EUROS = (Predicate("currency", "equals", "EUR"),)
DAYS = Window("UTC", ("mon-fri",))


def found(*rules: Rule, **parts: Any) -> list[tuple[str, str]]:
    """Return kind and rule of each finding."""
    return [(one.kind, one.rule) for one in check(Policy(rules, **parts))]


def test_a_rule_behind_a_wider_one() -> None:
    """Of its class, or of one that is asked before."""
    wide = {effect: Rule(effect, "p*") for effect in ("deny", "ask", "allow")}
    narrow = {effect: Rule(effect, "pay", agent="a") for effect in ("deny", "ask", "allow")}
    for first, second, dead in [
        ("deny", "deny", "deny 2"), ("deny", "ask", "ask 1"), ("deny", "allow", "allow 1"),
        ("ask", "ask", "ask 2"), ("ask", "allow", "allow 1"), ("allow", "allow", "allow 2"),
    ]:  # fmt: skip
        assert found(wide[first], narrow[second]) == [("shadowed", dead)]
        assert found(narrow[first], wide[second]) == []


@pytest.mark.parametrize(
    "narrowing",
    [
        {"tool": "p*"},
        {"tool": "pay?"},
        {"server": "bank"},
        {"agent": "a*"},
        {"principal": "ann"},
        {"tenant": "t"},
        {"workflow": "w"},
        {"between": DAYS},
        {"when": LARGE},
    ],
)
def test_a_rule_that_is_narrower_in_anything_covers_nothing(narrowing: dict[str, Any]) -> None:
    """Whatever it is; and it is covered by what says the same and more."""
    narrow, wide = Rule("deny", **{"tool": "*", **narrowing}), Rule("deny", "*")
    assert found(narrow, wide) == []
    assert found(wide, narrow) == [("shadowed", "deny 2")]
    assert found(narrow, narrow) == [("duplicate", "deny 2")]


def test_predicates_of_which_the_other_has_more() -> None:
    """What asks less matches more; what asks something else is compared with nothing."""
    assert found(Rule("deny", "*", LARGE), Rule("allow", "pay", LARGE + EUROS)) == [
        ("shadowed", "allow 1")
    ]
    assert found(Rule("deny", "*", LARGE + EUROS), Rule("allow", "pay", LARGE)) == []
    one, true = ((Predicate("x", "equals", value),) for value in (1, True))
    assert found(Rule("deny", "*", one), Rule("deny", "*", true)) == []


def test_windows() -> None:
    """By the minutes of the week, on one clock; a whole week is always."""
    for wide, narrow, dead in [
        (DAYS, Window("UTC", ("tue",), "08:00-09:00"), True),
        (DAYS, Window("UTC", ("sat",)), False),
        (DAYS, Window("Europe/Berlin", ("tue",), "08:00-09:00"), False),
        (Window("UTC", hours="22:00-06:00"), Window("UTC", hours="23:00-01:00"), True),
        (Window("UTC", ("mon",), "22:00-06:00"), Window("UTC", ("mon",), "00:00-01:00"), False),
        (Window("Asia/Tokyo"), DAYS, True),
    ]:
        rules = Rule("deny", "*", between=wide), Rule("deny", "*", between=narrow)
        assert found(*rules) == ([("shadowed", "deny 2")] if dead else [])


def test_hours_that_are_none() -> None:
    """No days, or an end that is the beginning."""
    assert found(Rule("deny", "*", between=Window("UTC", ()))) == [("empty_hours", "deny 1")]
    empty = Window("UTC", hours="08:00-08:00")
    assert found(Rule("deny", "*", between=empty)) == [("empty_hours", "deny 1")]


def test_a_rule_for_a_tool_that_none_of_its_agents_has() -> None:
    """Only where that is certain: what runs without an agent, and agents that are not named, have all tools."""
    agents = {"a": ("read_*", "files:put"), "b": ("pay",)}
    assert found(Rule("deny", "pay", agent="a"), agents=agents) == [("unlisted", "deny 1")]
    assert found(Rule("deny", "pay", agent="b"), agents=agents) == []
    assert found(Rule("deny", "*_x", agent="a"), agents=agents) == []
    assert found(Rule("deny", "other:put", agent="a"), agents=agents) == [("unlisted", "deny 1")]
    assert found(Rule("deny", "drop"), agents=agents) == []
    assert found(Rule("deny", "drop", agent="?*"), agents=agents) == []
    closed = {**agents, "*": ("search",)}
    assert found(Rule("deny", "drop", agent="?*"), agents=closed) == [("unlisted", "deny 1")]
    assert found(Rule("deny", "pay", agent="?*"), agents=closed) == []
    assert found(Rule("deny", "pay", agent="c"), agents=closed) == [("unlisted", "deny 1")]
    assert found(Rule("deny", "drop"), agents=closed) == []
    assert found(Rule("deny", "drop", agent="**"), agents=closed) == []


def test_an_ask_rule_where_nobody_is_asked() -> None:
    """In the mode dont_ask it denies."""
    assert found(Rule("ask", "pay"), mode="dont_ask") == [("never_asked", "ask 1")]
    assert found(Rule("ask", "pay"), mode="bypass") == []


def yes(call: ToolCall) -> Allow:
    """Allow."""
    return Allow()


def test_what_answers_before_a_callback() -> None:
    """An allow rule for a tool of which it is asked, and modes that are looser or stricter; the rest is what it is for."""
    assert found(Rule("allow", "Read"), callback=yes) == [("callback", "allow 1")]
    assert found(Rule("allow", "Read"), callback=yes, callback_tools=("Write*",)) == []
    assert found(Rule("allow", "Read", LARGE), callback=yes) == []
    assert found(Rule("deny", "Read"), Rule("ask", "Write"), callback=yes) == []
    (finding,) = check(Policy((Rule("allow", "*"),), callback=yes))
    assert "never asked about anything" in finding.text
    for mode, kinds in {
        "default": [],
        "dont_ask": [],
        "plan": ["callback"],
        "accept_edits": ["callback"],
        "bypass": ["callback"],
    }.items():
        assert [kind for kind, _ in found(mode=mode, callback=yes)] == kinds
        assert found(mode=mode) == []


def test_strict() -> None:
    """It passes a policy on, or tells all findings."""
    policy = Policy((Rule("deny", "a"),))
    assert strict(policy) is policy
    with pytest.raises(PolicyError, match="deny 2.*deny 3"):
        strict(Policy((Rule("deny", "*"), Rule("deny", "a"), Rule("deny", "b"))))


def test_globs_that_would_take_too_long_are_not_compared() -> None:
    """Nothing is claimed of them; matching them is quick all the same."""
    wide = "*a" + "?" * 40
    assert covers(wide, "*b*") is False
    assert covers("*" + "?a" * 90, "*" + "?a" * 90 + "?") is False
    assert meets(wide, "*" + "a?" * 60) is True
    assert not fits("*a" * 90 + "b", "a" * 1000)
