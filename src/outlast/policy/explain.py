"""A verdict in words: what it is, by what, and what was looked at before."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.policy.span import span_text
from outlast.policy.verdict import Allowed, Asked, Denied, Verdict


def explain(verdict: Verdict) -> list[str]:
    """Return lines that say what becomes of a call, and why. A rule that did not match says the first thing that does not fit.

    Example:
        ```python
        import asyncio
        from datetime import UTC, datetime
        from outlast.policy import Policy, Rule, ToolCall, decide, explain

        policy = Policy(rules=(Rule("deny", "delete_*"), Rule("ask", "pay", role="treasurer")))
        now = datetime(2026, 3, 2, tzinfo=UTC)
        lines = explain(asyncio.run(decide(policy, ToolCall(name="pay"), stopped=None, now=now)))
        assert lines[0] == "asked of treasurer by ask 1: the policy asks a person (ask pay)"
        ```
    """
    return list(_lines(verdict))


def _lines(verdict: Verdict) -> Iterator[str]:
    yield _headline(verdict)
    yield f"policy {verdict.policy_version}, mode {verdict.mode}"
    for look in verdict.trace:
        name = look.name.removeprefix(f"{look.stage} ")
        what = f"{look.stage} {name}".strip()
        yield f"  {'→' if look.matched else ' '} {what}: {look.why}"


def _headline(verdict: Verdict) -> str:
    by = f" by {verdict.rule}" if verdict.rule else ""
    match verdict:
        case Allowed():
            return f"allowed{by}" if by else f"allowed ({verdict.code})"
        case Denied():
            return f"denied{by} ({verdict.code}): {verdict.reason}"
        case Asked():
            limit = (
                "" if verdict.expires_in is None else f", within {span_text(verdict.expires_in)}"
            )
            return f"asked of {verdict.role or 'anybody'}{limit}{by}: {verdict.reason}"
