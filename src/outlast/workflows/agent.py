"""In whose name a workflow acts: what effects are called by which agent, for policies and for the kill switch.

The name is kept in a context variable, so a task has that of the code that began it, and each replay sets it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

from outlast.effects.key import check_name

current_agent: ContextVar[str] = ContextVar("outlast_agent", default="")


@contextlib.contextmanager
def agent(name: str) -> Generator[None]:
    """Let every effect that is called inside be called by this agent; tasks that are begun inside take it along.

    Inside another one, the inner one acts.

    Args:
        name: As the policy and the kill switch name it.

    Raises:
        DefinitionError: It is no name.

    Example:
        ```python
        import outlast
        from outlast.policy import Policy

        @outlast.effect(idempotent=True)
        async def buy(item: str) -> str:
            return f"bought {item}"

        @outlast.workflow
        async def shop() -> str:
            with outlast.agent("researcher"):
                try:
                    return await buy("a chair")
                except outlast.PermissionDeniedError as no:
                    return no.reason

        async with outlast.open("memory://", policy=Policy(agents={"researcher": ("search",)})) as app:
            assert await app.run(shop(), id="s") == "unlisted"
        ```
    """
    given: Any = name
    token = current_agent.set(check_name(given, what="agent"))
    try:
        yield
    finally:
        # A run that leaves memory is closed elsewhere, where nobody has the name.
        with contextlib.suppress(ValueError):
            current_agent.reset(token)
