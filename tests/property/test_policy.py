"""Laws of the permission engine, over arbitrary policies and calls."""

from __future__ import annotations

import fnmatch
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from searching import examples

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
    ToolCall,
    Window,
    check,
    decide,
    policy_of,
    toml_of,
)
from outlast.policy.glob import covers, fits, meets
from outlast.policy.mode import MODES
from outlast.policy.verdict import Verdict

FEW = examples(0.4)
MONDAY = datetime(2026, 3, 2, 12, tzinfo=UTC)


def judge(policy: Policy, call: ToolCall, now: datetime = MONDAY, **options: Any) -> Verdict:
    """Judge a call; nothing in these tests waits."""
    coroutine = decide(policy, call, stopped=None, now=now, **options)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


globs = st.text("ab*?", min_size=1, max_size=4)
names = st.text("abc", min_size=1, max_size=3)
scalars = st.sampled_from([0, 1, 2, 1.5, "1", "2.5", "a", "ab", "/a", "/a/b", "/a/../b", True])
numbers = st.sampled_from([0, 1, 2, 1.5, "2.5"])
paths = st.sampled_from(["x", "y", "x.z"])
predicates = st.one_of(
    st.builds(Predicate, paths, st.sampled_from(["equals", "not_equals"]), scalars),
    st.builds(Predicate, paths, st.sampled_from(["in", "not_in"]), st.lists(scalars, min_size=1, max_size=2)),
    st.builds(Predicate, paths, st.sampled_from(["less", "at_most", "greater", "at_least"]), numbers),
    st.builds(Predicate, paths, st.sampled_from(["starts_with", "matches"]), st.sampled_from(["a", "ab"])),
    st.builds(Predicate, paths, st.sampled_from(["inside", "outside"]), st.sampled_from(["/a", "/"])),
    st.builds(Predicate, paths, st.just("exists"), st.booleans()),
)  # fmt: skip
windows = st.builds(
    Window,
    st.sampled_from(["UTC", "Europe/Berlin"]),
    st.lists(st.sampled_from(["mon", "tue-thu", "sat-mon"]), max_size=2).map(tuple),
    st.sampled_from(["00:00-24:00", "08:00-18:00", "12:00-13:00", "22:00-06:00", "09:00-09:00"]),
)
spans = st.timedeltas(timedelta(milliseconds=1), timedelta(days=9)).map(
    lambda span: span - timedelta(microseconds=span.microseconds % 1000)
)


@st.composite
def rules(draw: st.DrawFn, effect: str | None = None) -> Rule:
    """Draw a rule of few words, so that rules meet."""
    said = effect or draw(st.sampled_from(["deny", "ask", "allow"]))
    asked = draw(st.lists(predicates, max_size=2, unique_by=lambda one: (one.path, one.operator)))
    return Rule(
        said,  # type: ignore[arg-type]
        draw(globs),
        tuple(asked) if draw(st.booleans()) else (),
        server=draw(st.sampled_from(["*", "a", "b*"])),
        agent=draw(st.sampled_from(["*", "*", "a", "a*", "?"])),
        tenant=draw(st.sampled_from(["*", "*", "a*"])),
        between=draw(st.one_of(st.none(), st.none(), windows)),
        role=draw(st.sampled_from(["", "boss"])) if said == "ask" else "",
        expires_in=draw(st.one_of(st.none(), spans)) if said == "ask" else None,
        reason=draw(st.sampled_from(["", 'so "said" \\ ☃'])),
    )


policies = st.builds(
    Policy,
    st.lists(rules(), max_size=5).map(tuple),
    st.sampled_from(MODES),
    st.dictionaries(
        st.sampled_from(["*", "a", "ab"]), st.lists(globs, max_size=2).map(tuple), max_size=2
    ),
)
arguments = st.dictionaries(
    st.sampled_from(["x", "y"]),
    st.one_of(scalars, st.none(), st.fixed_dictionaries({"z": scalars})),
)
calls = st.builds(
    ToolCall,
    name=names,
    kind=st.sampled_from(["effect", "tool"]),
    arguments=arguments,
    tenant=st.sampled_from(["default", "a", "ab"]),
    agent=st.sampled_from(["", "a", "ab", "b"]),
    server=st.sampled_from(["", "a", "b", "bc"]),
    writes=st.sampled_from([None, True, False]),
    edits=st.booleans(),
    definition=st.sampled_from(["", "pinned", "new", "changed"]),
)
WORDS = ["".join(word) for size in range(6) for word in itertools.product("abc", repeat=size)]
"""With a letter that no glob here names."""


@FEW
@given(glob=globs, text=st.text("abc*", max_size=5))
def test_a_glob_is_one_of_the_shell(glob, text):
    """Of its language, which has no brackets."""
    assert fits(glob, text) == fnmatch.fnmatchcase(text, glob)


@examples(2)
@given(wide=globs, narrow=globs)
def test_containment_of_globs_is_what_their_words_say(wide, narrow):
    """Held against all words of up to five letters, which show every difference of such short globs."""
    assert covers(wide, narrow) == all(fits(wide, one) for one in WORDS if fits(narrow, one))
    assert meets(wide, narrow) == any(fits(wide, one) and fits(narrow, one) for one in WORDS)


CALLS = [
    ToolCall(name=name, agent=agent, tenant=tenant, server=server, arguments=arguments)
    for name, agent, tenant, server, arguments in itertools.product(
        ["a", "b", "ab", "ba", "abc", "cab"], ["", "a", "ab", "b"], ["default", "a"], ["", "a", "b"],
        [{}, {"x": 1, "y": "a"}, {"x": "/a/b", "y": 2}, {"x": {"z": 2}, "y": "2.5"}, {"x": True, "y": {"z": "/a"}}],
    )
]  # fmt: skip


@examples(1)
@given(policy=policies, first=st.integers(0, 16), hour=st.integers(0, 167))
def test_what_is_said_never_to_fire_never_fires(policy, first, hour):
    """No call, at no time, in no mode."""
    dead = {one.rule for one in check(policy) if one.kind not in ("callback", "never_asked")}
    if dead:
        for number, call in enumerate(CALLS[first::17]):
            now = MONDAY + timedelta(hours=hour + 7 * number)
            assert judge(policy, call, now, may_bypass=True).rule not in dead


@FEW
@given(first=rules("deny"))
def test_a_rule_said_twice_is_found(first):
    """The lint is not empty: what stands twice is found, or is dead by itself; so is what a wider deny rule stands before."""
    wide = Rule("deny", "*")
    for rules_ in ((first, first), (wide, first)):
        assert check(Policy(rules_))[-1].rule == "deny 2"


def fails(call: ToolCall) -> Any:
    """Fail as hooks do."""
    raise LookupError("no such user")


def says_yes(call: ToolCall) -> Any:
    """Say what no hook can say."""
    return True


@FEW
@given(policy=policies, call=calls, wrong=st.sampled_from([fails, says_yes]), at=st.integers(0, 2))
def test_any_error_of_a_hook_denies(policy, call, wrong, at):
    """Whatever the policy says; unless something denied before."""
    hooks = [lambda call: None, lambda call: None]
    hooks.insert(at, wrong)
    broken = Policy(policy.rules, policy.mode, policy.agents, tuple(hooks))
    verdict = judge(broken, call, may_bypass=True)
    assert isinstance(verdict, Denied)
    assert verdict.code in ("error", "unlisted")


@FEW
@given(policy=policies, call=calls, wrong=st.sampled_from([fails, says_yes]))
def test_any_error_of_the_callback_denies(policy, call, wrong):
    """Where it is asked, and nothing else has decided."""
    without = judge(policy, call)
    verdict = judge(Policy(policy.rules, policy.mode, policy.agents, callback=wrong), call)
    asked = any(one.stage == "callback" for one in verdict.trace)
    assert verdict.code == "error" if asked else type(verdict) is type(without)


@pytest.mark.parametrize(
    "arguments", [{"x": float("nan")}, {"x": {1}}, {1: 2}, [1], None, {"x": "\ud800"}]
)
def test_arguments_that_are_no_json_are_denied(arguments):
    """Nobody could say what would be called."""
    verdict = judge(Policy(mode="bypass"), ToolCall(name="a", arguments=arguments), may_bypass=True)
    assert (type(verdict), verdict.code) == (Denied, "error")


@FEW
@given(
    policy=policies,
    call=calls,
    rule=rules("deny"),
    callback=st.sampled_from([Allow(), Ask(), None]),
)
def test_a_deny_rule_outranks_everything(policy, call, rule, callback):
    """Mode, other rules and callback: what matches one is denied."""
    whole = Policy(
        (*policy.rules, rule), policy.mode, policy.agents, callback=lambda call: callback
    )
    verdict = judge(whole, call, may_bypass=True)
    assert isinstance(verdict, Denied) or rule.mismatch(call, MONDAY)


@FEW
@given(policy=policies, call=calls, callback=st.sampled_from([Allow(), Ask(), None]))
def test_dont_ask_never_asks(policy, call, callback):
    """It denies."""
    verdict = judge(
        Policy(policy.rules, "dont_ask", policy.agents, callback=lambda call: callback), call
    )
    assert not isinstance(verdict, Asked)


@FEW
@given(policy=policies, call=calls, callback=st.sampled_from([Allow(), Ask(), None]))
def test_plan_lets_nothing_pass_that_writes(policy, call, callback):
    """Also when a person would say yes."""
    whole = Policy(policy.rules, "plan", policy.agents, callback=lambda call: callback)
    verdict = judge(whole, call, may_bypass=True)
    assert isinstance(verdict, Denied) or (call.writes is False and not call.edits)


@FEW
@given(policy=policies, call=calls)
def test_bypass_without_its_permission_is_the_default_mode(policy, call):
    """It allows nothing more, and says so."""
    bypass = judge(Policy(policy.rules, "bypass", policy.agents), call)
    default = judge(Policy(policy.rules, "default", policy.agents), call)
    assert (type(bypass), bypass.code, bypass.mode) == (type(default), default.code, "default")
    reached = any(one.stage == "mode" for one in default.trace)
    assert any("bypass is not honoured" in one.why for one in bypass.trace) == reached


@FEW
@given(policy=policies, call=calls, narrowed=st.lists(arguments, min_size=1, max_size=3))
def test_narrowing_never_adds_names(policy, call, narrowed):
    """What is allowed or asked has names that were there, and is what the last hook said; the call itself stays as it was."""
    hooks = tuple(lambda call, one=one: Narrow(one) for one in narrowed)
    before = replace(call)
    verdict = judge(Policy(policy.rules, "default", policy.agents, hooks), call)
    assert call == before
    if isinstance(verdict, Denied):
        return
    assert verdict.arguments == narrowed[-1]
    allowed = call.arguments.keys()
    for one in narrowed:
        assert one.keys() <= allowed
        allowed = one.keys()


@FEW
@given(policy=policies, call=calls)
def test_an_allow_rule_that_decides_holds_for_certain(policy, call):
    """Each of its predicates holds; none is merely not known to fail."""
    verdict = judge(policy, call)
    if isinstance(verdict, Allowed) and verdict.code == "rule":
        rule = dict(policy.labelled("allow"))[verdict.rule]
        assert all(one.holds(call.arguments) is True for one in rule.when)


@FEW
@given(policy=policies, call=calls, says=st.sampled_from([Allow(), Deny("no"), Ask("boss"), None]))
def test_what_a_model_says_twice_is_judged_twice_alike(policy, call, says):
    """A verdict depends on its policy, call and time alone."""
    whole = Policy(policy.rules, policy.mode, policy.agents, callback=lambda call: says)
    assert judge(whole, call) == judge(whole, call)


@FEW
@given(policy=policies)
def test_a_file_holds_the_same_policy(policy):
    """Written and read again it is equal, and has the same version."""
    again = policy_of(toml_of(policy))
    assert again == policy
    assert again.version == policy.version


@FEW
@given(one=policies, other=policies)
def test_different_policies_have_different_versions(one, other):
    """As far as their text tells them apart."""
    assert (one.version == other.version) == (toml_of(one) == toml_of(other))


@FEW
@given(policy=policies, data=st.data())
def test_classes_may_be_mixed(policy, data):
    """Only the order within a class counts."""
    order = data.draw(st.permutations(["deny", "ask", "allow"]))
    mixed = sorted(policy.rules, key=lambda one: order.index(one.effect))
    assert Policy(tuple(mixed), policy.mode, policy.agents).version == policy.version
