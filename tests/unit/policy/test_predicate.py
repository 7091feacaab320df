"""What is asked of arguments: yes, no, or not to be told."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import PolicyError
from outlast.policy import Allowed, Policy, Predicate, Rule
from outlast.policy.pattern import LONGEST_TEXT, check_pattern
from outlast.policy.predicate import OPERATORS

from .conftest import judge

CASES: list[tuple[str, Any, Any, bool | None]] = [
    # operator, what it is held against, the argument, what it says
    ("equals", "EUR", "EUR", True), ("equals", "EUR", "USD", False), ("equals", "EUR", 5, None), ("equals", "EUR", None, None),
    ("equals", 1, True, None), ("equals", True, 1, None), ("equals", 1, 1.0, True), ("equals", 1.5, "1.50", True), ("equals", "1.5", 1.5, None),
    ("equals", [1, "a"], [1, "a"], True), ("equals", [1], [True], False), ("equals", {"a": 1}, {"a": 1.0}, True), ("equals", {"a": 1}, {"a": 1, "b": 2}, False),
    ("equals", None, None, True), ("equals", None, 0, None),
    ("not_equals", "EUR", "USD", True), ("not_equals", "EUR", "EUR", False), ("not_equals", "EUR", 5, None),
    ("in", ["EUR", 5], "EUR", True), ("in", ["EUR", 5], "USD", False), ("in", ["EUR", 5], 6, False), ("in", ["EUR"], 6, None), ("in", ["EUR"], ["EUR"], None),
    ("not_in", ["EUR"], "USD", True), ("not_in", ["EUR"], "EUR", False), ("not_in", ["EUR"], None, None),
    ("greater", 100, 100.01, True), ("greater", 100, "100.01", True), ("greater", 100, 100, False), ("greater", "99.95", "1E+2", True),
    ("greater", 100, "a lot", None), ("greater", 100, True, None), ("greater", 100, "NaN", None), ("greater", 100, None, None), ("greater", 100, "1e9999", None),
    ("greater", 0.1, "0.1", False), ("at_least", 0.1, "0.1", True), ("greater", 5, " 9", None), ("greater", 5, "٩", None), ("greater", 1, 10**400, True),
    ("at_least", 5, 5, True), ("at_least", 5, 4, False), ("less", 5, -1, True), ("less", 5, None, None), ("at_most", 5, {}, None), ("at_least", 5, "x", None), ("less", 5, 5, False), ("at_most", 5, 5, True), ("at_most", 5, 6, False),
    ("matches", "[a-z]+", "abc", True), ("matches", "[a-z]+", "abc1", False), ("matches", "a.c", "a\nc", False), ("matches", "a", "a\n", False), ("matches", ".*+", "x" * (LONGEST_TEXT + 1), None), ("matches", "1", 1, None),
    ("starts_with", "draft-", "draft-1", True), ("starts_with", "draft-", "x", False), ("starts_with", "draft-", ["draft-1"], None),
    ("inside", "/srv/p", "/srv/p", True), ("inside", "/srv/p", "/srv/p/a/b", True), ("inside", "/srv/p/", "/srv/p/a", True), ("inside", "/srv/p", "/srv/px", False),
    ("inside", "/srv/p", "/srv/p/../x", False), ("inside", "/srv/p", "/srv/p/a/../../../etc/passwd", False), ("inside", "/srv/p", "/srv/x/../p/a", True),
    ("inside", "/srv/p", "//srv/p/a", True), ("inside", "/srv/p", "//srv//x", False), ("inside", "/srv/p", "/srv/p/./a", True), ("inside", "/srv/p", "/", False),
    ("inside", "/srv/p", "a", None), ("inside", "/srv/p", "../srv/p", None), ("inside", "/srv/p", "", None), ("inside", "/srv/p", "~/a", None),
    ("inside", "/srv/p", "/srv/p\\..\\..\\x", None), ("inside", "/srv/p", "/srv/p/\0x", None), ("inside", "/srv/p", ["/srv/p/a"], None), ("inside", "/", "/etc", True),
    ("inside", "/srv/p", "/srv/P/a", False), ("inside", "src", "src/a", True), ("inside", "src", "src/../a", False), ("inside", "src", "/src/a", None), ("inside", ".", "a/b", True), ("inside", ".", "../a", False), ("inside", ".", "a/../..", False),
    ("outside", "/srv/p", "/etc", True), ("outside", "/srv/p", "/srv/p/a", False), ("outside", "/srv/p", "a", None),
    ("exists", True, None, True), ("exists", False, None, False), ("exists", True, 0, True),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "value", "argument", "said"), CASES)
def test_operators(operator: str, value: Any, argument: Any, said: bool | None) -> None:
    """Each says yes, no, or None where the value is of another type than it needs."""
    assert Predicate("x", operator, value).holds({"x": argument}) is said


def test_every_operator_says_each_thing() -> None:
    """In the table above: none is untested."""
    for operator in OPERATORS:
        said = {case[3] for case in CASES if case[0] == operator}
        assert said >= {True, False}
        assert None in said or operator == "exists"


@pytest.mark.parametrize(
    ("path", "exists", "equals"),
    [
        ("a", True, None),
        ("a.b", True, None),
        ("a.b.0.c", True, True),
        ("a.b.1.c", False, None),
        ("a.b.-1", None, None),
        ("a.b.c", None, None),
        ("a.x", False, None),
        ("z", False, None),
        ("a.b.0.c.d", None, None),
        ("a.b.²", None, None),
    ],
)
def test_paths(path: str, exists: bool | None, equals: bool | None) -> None:
    """Through objects and lists; what is not there is missing, and what could not be there cannot be told."""
    arguments = {"a": {"b": [{"c": 5}]}, "a.b": 5}
    assert Predicate(path, "exists", True).holds(arguments) is exists
    assert Predicate(path, "equals", 5).holds(arguments) is equals


@pytest.mark.parametrize("arguments", [{}, {"amount": None}, {"amount": "many"}, {"amount": [500]}])
def test_what_cannot_be_told_counts_against_the_call(arguments: dict[str, Any]) -> None:
    """An allow rule does not match then; a deny rule and an ask rule do."""
    small = (Predicate("amount", "at_most", 100),)
    assert (
        judge(Policy((Rule("allow", "*", small),)), "pay", arguments, kind="tool").code
        == "undecided"
    )
    assert judge(Policy((Rule("deny", "*", small),)), "pay", arguments).code == "rule"
    assert judge(Policy((Rule("ask", "*", small),)), "pay", arguments).code == "rule"
    said = judge(Policy((Rule("deny", "*", small),)), "pay", arguments).trace[-1].why
    assert "cannot be told" in said


def test_all_predicates_have_to_fit() -> None:
    """One that does not is enough, also beside one that cannot be told."""
    rule = Rule("deny", "*", (Predicate("a", "equals", 1), Predicate("b", "equals", 1)))
    assert isinstance(judge(Policy((rule,)), "t", {"a": 2}), Allowed)
    assert not isinstance(judge(Policy((rule,)), "t", {"a": 1}), Allowed)


@pytest.mark.parametrize(
    ("path", "operator", "value", "words"),
    [
        ("", "equals", 1, "names no argument"),
        ("a..b", "equals", 1, "names no argument"),
        ("a", "like", 1, "no operator"),
        ("a", "in", "EUR", "no list"),
        ("a", "in", [], "no list"),
        ("a", "greater", "lots", "no number"),
        ("a", "greater", True, "no number"),
        ("a", "matches", "(", "no regular expression"),
        ("a", "matches", "(a+)+", "very long"),
        ("a", "starts_with", "", "no text"),
        ("a", "inside", "/srv/../etc", "no folder"),
        ("a", "inside", "~/x", "no folder"),
        ("a", "exists", 1, "neither true nor false"),
        ("a", "equals", float("nan"), "cannot be held"),
        ("a", "equals", 1 << 53, "cannot be held"),
        ("a", "equals", {1: 2}, "cannot be held"),
        ("a", "equals", "\ud800", "cannot be held"),
        ("a", "equals", [0xF << 40_000], "cannot be held"),
    ],
)
def test_what_cannot_be_asked_is_refused(path: str, operator: str, value: Any, words: str) -> None:
    """When the policy is made, with what to write instead."""
    with pytest.raises(PolicyError, match=words) as caught:
        Predicate(path, operator, value)
    assert caught.value.hint


SLOW = [
    r"(a+)+", r"(a|b)*", r"(?:a{1,9}){1,9}", r"(a+){30}", r"(a)\1", r"(?P<n>a)(?P=n)", r"(a)(?(1)b|c)", r"(?x)(a+) *",
    r".*.*.*x", r"a?a?a?a?a?a?a?a?", r"(?=a*)*", "((a|a))+?",
]  # fmt: skip
QUICK = [
    r"[a-z]+@[a-z]+\.com", r"(?:[a-z]++\.)*+example", r"(?:a|b)++", r"[+*(]{3}\+\*", r"(?i)abc.*", r"\d{4}-\d{2}", r"[]a]+",
    r"v\d+(-\w+)?", r"(?>a+)b", r"a|b|c",
]  # fmt: skip


@pytest.mark.parametrize("pattern", SLOW)
def test_patterns_that_could_take_very_long_are_refused(pattern: str) -> None:
    """Where going back could multiply."""
    with pytest.raises(PolicyError, match="very long"):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", QUICK)
def test_patterns_that_people_write_are_taken(pattern: str) -> None:
    """Two repetitions and some choices, and as many as one likes that give nothing back."""
    assert check_pattern(pattern) == pattern


def test_the_slowest_pattern_that_is_taken() -> None:
    """It ends, on the longest text that it may hold against it."""
    slowest = Predicate("x", "matches", "(?:a?a?a?a?a?a?).*.*x")
    assert slowest.holds({"x": "a" * LONGEST_TEXT}) is False
