"""Rules and policies as a whole: what is refused, how they are named, what makes a version."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest

from outlast.errors import PolicyError
from outlast.policy import Policy, Predicate, Rule, explain

from .conftest import judge

LARGE = Predicate("amount", "greater", 100)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"effect": "forbid"}, "cannot say"),
        ({"tool": ""}, "has 0 characters"),
        ({"tool": 5}, "no text"),
        ({"tool": "a" * 201}, "has 201 characters"),
        ({"tool": "[ab]"}, "no glob"),
        ({"tool": "a\n"}, "no glob"),
        ({"tool": "a:b", "server": "c"}, "said twice"),
        ({"tool": ":b"}, "has 0 characters"),
        ({"agent": ""}, "agent has 0"),
        ({"tenant": None}, "tenant is no text"),
        ({"role": "boss"}, "asks nobody"),
        ({"expires_in": timedelta(hours=1)}, "asks nobody"),
        ({"sticky": "run"}, "asks nobody"),
        ({"effect": "ask", "sticky": "ever"}, "nothing sticks"),
        ({"effect": "ask", "sticky": True}, "nothing sticks"),
        ({"effect": "ask", "expires_in": timedelta(0)}, "no length of time"),
        ({"effect": "ask", "expires_in": timedelta(microseconds=1500)}, "no length of time"),
        ({"effect": "ask", "expires_in": 5}, "no length of time"),
        ({"reason": "a\nb"}, "no line of text"),
        ({"name": "ask 7"}, "are called"),
        ({"when": LARGE}, "no predicates"),
        ({"when": (LARGE, LARGE)}, "says something twice"),
        ({"between": "night"}, "no Window"),
    ],
)
def test_rules_that_could_not_be_judged(fields: dict[str, Any], words: str) -> None:
    """Are refused where they are made, with what to write."""
    with pytest.raises(PolicyError, match=words) as caught:
        Rule(**{"effect": "deny", "tool": "t", **fields})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"mode": "loose"}, "no mode"),
        ({"rules": Rule("deny", "t")}, "no tuple"),
        ({"rules": ("deny t",)}, "no tuple"),
        (
            {"rules": (Rule("deny", "t", name="x"), Rule("ask", "t", name="x"))},
            "two rules are called",
        ),
        ({"agents": ["a"]}, "no table"),
        ({"agents": {"a*": ()}}, "no glob"),
        ({"agents": {"a": "search"}}, "no list of tools"),
        ({"hooks": ("x",)}, "no function"),
        ({"callback": 5}, "no function"),
        ({"callback_tools": "x"}, "no list of tools"),
    ],
)
def test_policies_that_could_not_be_judged(parts: dict[str, Any], words: str) -> None:
    """The same."""
    with pytest.raises(PolicyError, match=words) as caught:
        Policy(**parts)
    assert caught.value.hint


def test_a_server_before_the_tool_is_the_rules_server() -> None:
    """One way to write it is the other."""
    rule = Rule("deny", "bank:pay")
    assert rule == Rule("deny", "pay", server="bank")
    assert judge(Policy((rule,)), "pay", server="bank").code == "rule"
    assert judge(Policy((rule,)), "pay").code == "default"


def test_rules_match_by_all_their_fields() -> None:
    """Agent, principal, tenant and workflow are globs; nobody is matched by `*` alone."""
    fields = {"agent": "buy*", "principal": "*@x", "tenant": "prod-?", "workflow": "fix"}
    fitting = {"agent": "buyer", "principal": "ann@x", "tenant": "prod-1", "workflow": "fix"}
    policy = Policy((Rule("deny", "t", **fields),))
    assert judge(policy, "t", **fitting).code == "rule"
    for field in fields:
        assert judge(policy, "t", **{**fitting, field: ""}).code == "default"


def one(call: object) -> None:
    """Be a hook."""


def two(call: object) -> None:
    """Be another."""


class Called:
    """Be called like a function."""

    def __call__(self, call: object) -> None:
        """Say nothing."""


def test_versions() -> None:
    """Every part makes another one; what says the same makes the same."""
    policies = [
        Policy(), Policy(mode="plan"), Policy((Rule("deny", "t"),)), Policy((Rule("ask", "t"),)), Policy((Rule("deny", "t", reason="x"),)),
        Policy((Rule("deny", "t"), Rule("deny", "u"))), Policy((Rule("deny", "u"), Rule("deny", "t"))), Policy((Rule("deny", "t", (LARGE,)),)),
        Policy((Rule("deny", "t", (Predicate("amount", "greater", "100"),)),)), Policy(agents={"a": ()}), Policy(agents={"a": ("t",)}),
        Policy(hooks=(one,)), Policy(hooks=(two,)), Policy(hooks=(one, two)), Policy(hooks=(two, one)), Policy(callback=one), Policy(callback=two),
        Policy(callback=one, callback_tools=("t",)), Policy(callback=Called()), Policy(callback=functools.partial(two)),
    ]  # fmt: skip
    versions = [policy.version for policy in policies]
    assert len(set(versions)) == len(versions)
    assert all(len(version) == 16 for version in versions)
    same = [
        (Policy((Rule("deny", "t", (Predicate("x", "equals", 1.0),)),)), Policy((Rule("deny", "t", (Predicate("x", "equals", 1),)),))),
        (Policy((Rule("allow", "t"), Rule("deny", "u"))), Policy((Rule("deny", "u"), Rule("allow", "t")))),
        (Policy(agents={"b": (), "a": ()}), Policy(agents={"a": (), "b": ()})),
        (Policy(callback=Called()), Policy(callback=Called())),
        (Policy(callback_tools=("x",)), Policy()),
    ]  # fmt: skip
    for left, right in same:
        assert left.version == right.version


def test_explain() -> None:
    """The outcome first, then every rule up to the one that decides, each with the first thing that does not fit."""
    policy = Policy(
        (
            Rule("deny", "drop"),
            Rule("deny", "pay", tenant="prod-*"),
            Rule(
                "ask", "pay", (LARGE,), role="boss", expires_in=timedelta(minutes=90), name="large"
            ),
        ),
        agents={"buyer": ("pay",)},
    )
    lines = explain(judge(policy, "pay", {"amount": 250}, agent="buyer"))
    assert lines == [
        "asked of boss, within 90m by large: the policy asks a person (ask pay when amount greater 100)",
        f"policy {policy.version}, mode default",
        "    kill switch: not set for this call",
        "    tool list buyer: the tool is on the list",
        "    deny 1: the tool is not drop",
        "    deny 2: the tenant is not prod-*",
        "  → ask large: matches ask pay when amount greater 100",
    ]
    assert (
        explain(judge(policy, "drop"))[0]
        == "denied by deny 1 (rule): the policy denies it (deny drop)"
    )
    assert explain(judge(policy, "read"))[0] == "allowed (default)"
    assert explain(judge(Policy((Rule("allow", "r"),)), "r"))[0] == "allowed by allow 1"
    assert explain(judge(Policy((Rule("ask", "r"),)), "r"))[0].startswith(
        "asked of anybody by ask 1"
    )
