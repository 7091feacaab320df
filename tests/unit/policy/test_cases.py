"""Faults that users of comparable systems met in their permission engines, each named after its number among the known faults."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from outlast.errors import PolicyError
from outlast.policy import (
    Allow,
    Allowed,
    Asked,
    Denied,
    Deny,
    Policy,
    Predicate,
    Rule,
    ToolCall,
    check,
    decide,
    strict,
)

from .conftest import MONDAY, judge


def jail(call: ToolCall) -> Allow | Deny:
    """Let files be read in one folder alone."""
    inside = Predicate("path", "inside", "/srv/project").holds(call.arguments)
    return Allow() if inside else Deny("outside the project")


def jail_hook(call: ToolCall) -> Deny | None:
    """The same, where nothing answers before it."""
    return said if isinstance(said := jail(call), Deny) else None


def test_case_061_nothing_is_asked_again_for_a_decided_call() -> None:
    """One judgement asks hook and callback once, and its verdict holds all that is needed later: keeping it is enough."""
    asked: list[str] = []

    def counting(call: ToolCall) -> None:
        asked.append(call.name)

    rule = Rule("ask", "pay", role="boss", expires_in=timedelta(hours=1))
    verdict = judge(Policy((rule,), hooks=(counting,), callback=counting), "pay", {"amount": 5})
    assert asked == ["pay"]
    kept = msgspec.json.decode(msgspec.json.encode(verdict), type=Asked)
    assert (kept.arguments, kept.role, kept.expires_in) == (
        {"amount": 5},
        "boss",
        timedelta(hours=1),
    )
    assert kept.policy_version == verdict.policy_version
    assert asked == ["pay"]


def test_case_070_a_callback_may_take_its_time() -> None:
    """There is no limit after which a call goes ahead: it waits for as long as the callback does."""

    async def work() -> None:
        answered = asyncio.Event()

        async def slow(call: ToolCall) -> Deny:
            await answered.wait()
            return Deny("no, after all")

        pending = asyncio.ensure_future(
            decide(Policy(callback=slow), ToolCall(name="t"), stopped=None, now=MONDAY)
        )
        for _ in range(50):
            await asyncio.sleep(0)
        assert not pending.done()
        answered.set()
        assert isinstance(await pending, Denied)

    asyncio.run(work())


def test_case_070_a_hook_that_fails_denies() -> None:
    """Nothing passes because somebody who should have looked could not."""

    async def broken(call: ToolCall) -> None:
        raise TimeoutError

    for policy in (
        Policy(hooks=(broken,)),
        Policy(callback=broken),
        Policy(mode="bypass", hooks=(broken,)),
    ):
        verdict = judge(policy, "Read", may_bypass=True)
        assert isinstance(verdict, Denied)
        assert (verdict.code, verdict.rule.rpartition(".")[2]) == ("error", "broken")


def test_case_071_a_callback_that_an_allow_rule_shadows_is_reported() -> None:
    """An allow rule 'Read' beside a jail: check() says that the jail is not asked, and strict() does not start with it."""
    policy = Policy((Rule("allow", "Read"),), callback=jail)
    outside = {"path": "/etc/passwd"}
    assert isinstance(judge(policy, "Read", outside), Allowed)
    (finding,) = check(policy)
    assert (finding.kind, finding.rule) == ("callback", "allow 1")
    with pytest.raises(PolicyError, match="never asked"):
        strict(policy)


@pytest.mark.parametrize("mode", ["default", "accept_edits", "dont_ask", "bypass"])
def test_case_071_a_hook_and_a_deny_rule_come_before_every_permissive_answer(mode: str) -> None:
    """Where the jail stands there, nothing is read outside of it, and nothing is reported."""
    rule = Rule("deny", "Read", (Predicate("path", "outside", "/srv/project"),))
    for policy in (
        Policy((Rule("allow", "Read"),), mode, hooks=(jail_hook,)),  # type: ignore[arg-type]
        Policy((rule, Rule("allow", "Read")), mode),  # type: ignore[arg-type]
    ):
        for path in ("/etc/passwd", "/srv/project/../x", "x", "~/x", "/srv/project\\..\\x"):
            assert isinstance(
                judge(policy, "Read", {"path": path}, edits=True, may_bypass=True), Denied
            )
        assert isinstance(
            judge(policy, "Read", {"path": "/srv/project/x"}, may_bypass=True), Allowed
        )
        assert check(policy) == []


def test_case_074_arguments_count() -> None:
    """What was asked of one call says nothing of another: each has a verdict of its own, which holds its arguments."""
    policy = Policy((Rule("ask", "rm"),))
    first, second = judge(policy, "rm", {"path": "a"}), judge(policy, "rm", {"path": "b"})
    assert isinstance(first, Asked)
    assert isinstance(second, Asked)
    assert first.arguments != second.arguments
