"""Judging a call, in one line."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from outlast.policy import Policy, ToolCall, decide
from outlast.policy.verdict import Verdict

MONDAY = datetime(2026, 3, 2, 12, tzinfo=UTC)


def judge(
    policy: Policy, name: str, arguments: dict[str, Any] | None = None, **fields: Any
) -> Verdict:
    """Judge a call of `name`.

    Args:
        fields: Of the call; and `stopped`, `now` and `may_bypass` of the judgement.
    """
    options = {key: fields.pop(key) for key in ("stopped", "now", "may_bypass") if key in fields}
    call = ToolCall(name=name, arguments=arguments or {}, **fields)
    return asyncio.run(decide(policy, call, **{"stopped": None, "now": MONDAY, **options}))
