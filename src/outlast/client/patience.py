"""What is said to whoever waits for a run, once that has taken a while: that nobody moves it, or could decide, or that a person has to act."""

from __future__ import annotations

import asyncio
import sys
import warnings

from outlast.client.port import Port
from outlast.client.text import typed
from outlast.client.view import status_of
from outlast.effects.key import DEFAULT_TENANT
from outlast.errors import NobodyHoldsRoleWarning, RunHeldWarning
from outlast.policy.authority import nobody_holds
from outlast.store.change import RunHead, Status
from outlast.store.condition import PENDING

AFTER_SECONDS = 5.0
"""So long nothing is said."""

_HELD = frozenset({Status.PAUSED, Status.BLOCKED})


class Patience:
    """One wait for a run. Each of the things is said once."""

    def __init__(self, client: Port) -> None:
        self._client = client
        self._time = asyncio.get_running_loop().time
        self._began = self._time()
        self._next = AFTER_SECONDS
        self._said: set[bool] = set()

    @property
    def waited(self) -> float:
        """For how many seconds."""
        return self._time() - self._began

    @property
    def is_due(self) -> bool:
        """Whether it is time to look why nothing has come yet: after a while, and then ever more rarely."""
        return self.waited >= self._next

    async def look(self, head: RunHead) -> None:
        """Say why it takes so long, where the run's row tells; whether that is due is for the caller to ask."""
        self._next = 2 * self.waited
        is_held = head.status in _HELD
        if is_held in self._said:
            return
        self._said.add(is_held)
        if is_held:
            warnings.warn(RunHeldWarning(_held_text(head)), stacklevel=callers_level())
        else:
            await self._client.say_when_no_worker(head)
            await say_when_nobody_decides(self._client, head)


async def say_when_nobody_decides(client: Port, head: RunHead) -> None:
    """Warn when a run asks for somebody in a role that nobody holds."""
    if head.status not in {Status.WAITING, Status.RUNNING}:
        return
    rows = await client.store.approvals(head.run.tenant, run=head.run)
    waiting = {row.put.role for row in rows if row.state == PENDING and row.put.role}
    for role in sorted(waiting):
        if await nobody_holds(client.authority, head.run.tenant, role, head.workflow):
            text = (
                f"run {head.run} asks for somebody in the role {role!r}, and nobody holds it for workflow {head.workflow!r}: "
                f"`outlast roles grant SUBJECT {role}`"
            )
            warnings.warn(NobodyHoldsRoleWarning(text), stacklevel=callers_level())


def callers_level() -> int:
    """Return the `stacklevel` of the first caller outside Outlast, for a warning of the function that asks."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage] - a warning belongs to the author's line
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] == "outlast"
    ):
        frame, level = frame.f_back, level + 1
    return level


def _held_text(head: RunHead) -> str:
    run = head.run
    options = [] if run.tenant == DEFAULT_TENANT else ["--tenant", run.tenant]
    why = f" ({status_of(head).reason})" if head.reason else ""
    explain = typed(options, ("runs", "explain", run.run_id))
    return f"run {run} is {head.status}{why}, and stays so until a person acts; `{explain}` says who can do what"
