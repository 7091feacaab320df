"""Says at once that a person is asked for whom there is nobody: the run would wait for nobody."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from outlast.policy.authority import Authority, nobody_else_holds, nobody_holds
from outlast.store.change import RunKey

logger = logging.getLogger("outlast.worker")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who is asked.

    Args:
        barred: Who may not decide, whatever they hold.
    """

    tenant: str
    workflow: str
    role: str
    barred: frozenset[str]


class Holders:
    """What a worker knows of who is asked.

    Args:
        authority: Who is asked who holds a role; None where everybody may do everything.
    """

    def __init__(self, authority: Authority | None) -> None:
        self._authority = authority
        self._told: set[_Asked] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def look(
        self, run: RunKey, workflow: str, role: str, barred: frozenset[str] = frozenset()
    ) -> None:
        """Find out, in a task of its own, whether anybody holds a role who may decide, and say so when nobody does.

        Args:
            barred: Who may not: who started the run, under four eyes, and who has edited what is asked.
        """
        if self._authority is None or not role:
            return
        asked = _Asked(run.tenant, workflow, role, barred)
        task = asyncio.get_running_loop().create_task(
            self._look(self._authority, run, asked), name=f"outlast role {role}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Find out nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _look(self, authority: Authority, run: RunKey, asked: _Asked) -> None:
        why = await _why_nobody(authority, asked)
        if not why:
            self._told.discard(asked)
        elif asked not in self._told:
            self._told.add(asked)
            logger.warning("run %s: somebody is asked as %r, and %s", run, asked.role, why)


async def _why_nobody(authority: Authority, asked: _Asked) -> str:
    """Return why nobody can decide, and what to type; empty where somebody may, or nobody knows."""
    place = asked.tenant, asked.role, asked.workflow
    where = f"for workflow {asked.workflow!r}: `outlast roles grant SUBJECT {asked.role}`"
    if "" in asked.barred:
        return "nobody may decide: under four eyes it must be known who started the run; start it anew with a principal"
    if await nobody_holds(authority, *place):
        return f"nobody holds that role {where}"
    if asked.barred and await nobody_else_holds(authority, *place, asked.barred):
        names = ", ".join(sorted(asked.barred))
        return f"nobody who may decide holds that role (four eyes, or an edit of theirs, keeps {names} from it) {where}"
    return ""
