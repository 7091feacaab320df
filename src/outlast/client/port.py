"""What handles and views ask of a client, so that they need not know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlast.client.replica import Replicas
from outlast.policy.authority import Authority, Principal
from outlast.store.change import (
    Change,
    RunHead,
    RunKey,
    Verdict,
)
from outlast.store.protocol import Store
from outlast.workflows.registry import Registry


class Port(Protocol):
    """A client, as its handles and views see it."""

    tenant: str
    principal: str
    actor: Principal
    authority: Authority
    registry: Registry | None
    replicas: Replicas

    @property
    def store(self) -> Store:
        """The store, for the event loop of the client and nobody else."""
        ...

    async def head(self, run: RunKey) -> RunHead:
        """Return the run's row."""
        ...

    async def commit(self, change: Change) -> Verdict:
        """Write one unowned change."""
        ...

    async def commit_all(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write several unowned changes in one transaction; each has a verdict of its own."""
        ...

    async def wait_closed(self, run: RunKey, incarnation: int) -> RunHead:
        """Wait until the run that this generation began has ended, and return the row of its id: of a later run, where one has it."""
        ...

    def new_id(self) -> str:
        """Return a random id."""
        ...

    async def say_when_no_worker(self, head: RunHead) -> None:
        """Warn when no worker lives that could move the run."""
        ...
