"""Says at once that a person is asked for in a role that nobody holds: the run would wait for nobody."""

from __future__ import annotations

import asyncio
import logging

from outlast.policy.authority import Authority, nobody_holds
from outlast.store.change import RunKey

logger = logging.getLogger("outlast.worker")


class Holders:
    """What a worker knows of who is asked.

    Args:
        authority: Who is asked who holds a role; None where everybody may do everything.
    """

    def __init__(self, authority: Authority | None) -> None:
        self._authority = authority
        self._told: set[tuple[str, str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def look(self, run: RunKey, workflow: str, role: str) -> None:
        """Find out, in a task of its own, whether anybody holds a role, and say so when nobody does."""
        if self._authority is None or not role:
            return
        task = asyncio.get_running_loop().create_task(
            self._look(self._authority, run, workflow, role), name=f"outlast role {role}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Find out nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _look(self, authority: Authority, run: RunKey, workflow: str, role: str) -> None:
        place = (run.tenant, workflow, role)
        if not await nobody_holds(authority, run.tenant, role, workflow):
            self._told.discard(place)
        elif place not in self._told:
            self._told.add(place)
            logger.warning(
                "run %s: somebody is asked as %r, and nobody holds that role for workflow %r: `outlast roles grant SUBJECT %s`",
                run,
                role,
                workflow,
                role,
            )
