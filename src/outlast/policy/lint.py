"""What a policy says in vain: rules that can never fire, and a callback that is not asked.

Invariant: what is reported is so. Not everything that is so is reported: rules are compared two by two, and predicates by what they say, not
by what it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from outlast.errors import PolicyError
from outlast.policy.glob import ToolGlob, covers, is_name
from outlast.policy.mode import Mode
from outlast.policy.policy import EVERY_OTHER, Policy
from outlast.policy.rule import GLOBS, Rule
from outlast.policy.window import DAY_MINUTES, DAYS, Window

Kind = Literal["shadowed", "duplicate", "unlisted", "empty_hours", "never_asked", "callback"]

_BEFORE_CALLBACK: dict[Mode, str] = {
    "plan": "in mode plan everything that writes, or is not known to only read, is denied before the callback is asked",
    "accept_edits": "in mode accept_edits everything that only edits passes before the callback is asked",
    "bypass": "where the mode bypass is honoured everything undecided passes before the callback is asked",
}


class Finding(msgspec.Struct, frozen=True):
    """One thing that a policy says in vain.

    Args:
        kind: `shadowed` (another rule answers before it), `duplicate`, `unlisted` (its tool exists for none of its agents), `empty_hours`,
            `never_asked` (an ask rule where nobody is asked), or `callback` (something answers before it).
        rule: The rule, as verdicts name it; empty where it is about none.
        text: What is so, and what to do.

    Example:
        ```python
        from outlast.policy import Policy, Rule, check

        policy = Policy(rules=(Rule("deny", "delete_*"), Rule("ask", "delete_user", role="boss")))
        (finding,) = check(policy)
        assert (finding.kind, finding.rule) == ("shadowed", "ask 1")
        ```
    """

    kind: Kind
    rule: str
    text: str


def check(policy: Policy) -> list[Finding]:
    """Return what a policy says in vain, rules in the order in which they are asked.

    Example:
        ```python
        from outlast.policy import Allow, Deny, Policy, Rule, check

        def jail(call):
            return Allow() if call.arguments["path"].startswith("/srv/") else Deny("outside")

        (finding,) = check(Policy(rules=(Rule("allow", "Read"),), callback=jail))
        assert finding.kind == "callback"  # the rule answers first: the jail is never asked
        ```
    """
    return [*_rule_findings(policy), *_callback_findings(policy)]


def strict(policy: Policy) -> Policy:
    """Return the policy itself, if it says nothing in vain: to start with no other.

    Raises:
        PolicyError: It does; the message tells the findings.

    Example:
        ```python
        from outlast.errors import PolicyError
        from outlast.policy import Policy, Rule, strict

        policy = strict(Policy(rules=(Rule("deny", "delete_*"),)))
        try:
            strict(Policy(rules=(Rule("deny", "*"), Rule("allow", "read"))))
        except PolicyError as error:
            assert "allow 1" in error.message
        ```
    """
    found = check(policy)
    if found:
        told = "; ".join(one.text for one in found)
        raise PolicyError(
            f"the policy says something in vain: {told}",
            hint="take it out, or put it before what answers first",
        )
    return policy


def _rule_findings(policy: Policy) -> Iterator[Finding]:
    earlier: list[tuple[str, Rule]] = []
    for name, rule in policy.labelled("deny", "ask", "allow"):
        yield from _findings_of(policy, name, rule, earlier)
        earlier.append((name, rule))


def _findings_of(
    policy: Policy, name: str, rule: Rule, earlier: list[tuple[str, Rule]]
) -> Iterator[Finding]:
    if rule.between is not None and not rule.between.minutes():
        yield Finding(
            "empty_hours", name, f"{name} ({rule}) can never fire: it holds at no time of the week"
        )
    elif not _is_listed(policy, rule):
        text = f"{name} ({rule}) can never fire: none of its agents has such a tool"
        yield Finding("unlisted", name, text)
    elif (first := next((one for one in earlier if rule_covers(one[1], rule)), None)) is not None:
        same = first[1].effect == rule.effect and rule_covers(rule, first[1])
        how = "says the same" if same else f"({first[1]}) answers before it"
        kind: Kind = "duplicate" if same else "shadowed"
        yield Finding(kind, name, f"{name} ({rule}) can never fire: {first[0]} {how}")
    elif rule.effect == "ask" and policy.mode == "dont_ask":
        text = f"{name} ({rule}) asks nobody: in mode dont_ask it denies; write a deny rule"
        yield Finding("never_asked", name, text)


def rule_covers(wide: Rule, narrow: Rule) -> bool:
    """Say whether every call that `narrow` matches is matched by `wide`, whose class is the same or asked before; False also where it is not seen.

    What cannot be told of a predicate is a match in all classes but the last, so a predicate of `wide` that `narrow` has, too, leaves no call out.
    """
    return (
        wide.tools.covers(narrow.tools)
        and all(covers(getattr(wide, field), getattr(narrow, field)) for field in GLOBS)
        and set(map(str, wide.when)) <= set(map(str, narrow.when))
        and _window_covers(wide.between, narrow.between)
    )


def _window_covers(wide: Window | None, narrow: Window | None) -> bool:
    if wide is None or len(wide.minutes()) == len(DAYS) * DAY_MINUTES:
        return True
    if narrow is None:
        return False
    return wide.zone == narrow.zone and wide.minutes() >= narrow.minutes()


def _is_listed(policy: Policy, rule: Rule) -> bool:
    """Say whether some agent of a rule may have a tool of it; what runs without an agent has all."""
    agents = [name for name in policy.agents if name != EVERY_OTHER]
    lists: list[tuple[ToolGlob, ...] | None] = [
        policy.tools_of(name) for name in agents if covers(rule.agent, name)
    ]
    if is_name(rule.agent):
        lists = [policy.tools_of(rule.agent)]
    elif covers(rule.agent, ""):
        return True
    else:  # infinitely many names, of which the table has some
        lists.append(policy.tools_of("\0"))
    return any(found is None or any(one.meets(rule.tools) for one in found) for found in lists)


def _callback_findings(policy: Policy) -> Iterator[Finding]:
    if policy.callback is None:
        return
    advice = "what must always be looked at belongs into a hook or a deny rule"
    if policy.mode in _BEFORE_CALLBACK:
        yield Finding("callback", "", f"{_BEFORE_CALLBACK[policy.mode]}; {advice}")
    for name, rule in policy.labelled("allow"):
        asked = [one for one in policy.callback_globs() if one.meets(rule.tools)]
        if rule.when or not asked:
            continue
        what = "anything" if _covers_all(policy, rule) else f"what it allows: {rule}"
        text = f"{name} answers before the callback, which is never asked about {what}; {advice}, or leave the tool out of callback_tools"
        yield Finding("callback", name, text)


def _covers_all(policy: Policy, rule: Rule) -> bool:
    """Say whether a rule answers for every tool of which the callback is asked."""
    asked = (Rule("allow", one.tool, server=one.server) for one in policy.callback_globs())
    return all(rule_covers(rule, one) for one in asked)
