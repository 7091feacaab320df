"""Replays what was recorded against the code of today: the quickest proof that a workflow is deterministic."""

from __future__ import annotations

from outlast.clock import Clock
from outlast.errors import RunNotFoundError
from outlast.journal.entry import from_row
from outlast.replay.machine import Machine, Outcome
from outlast.store.change import RunKey
from outlast.store.protocol import StoreReader
from outlast.worker.delivery import Delivery
from outlast.workflows.registry import Registry


async def replay_run(
    store: StoreReader, registry: Registry, clock: Clock, run: RunKey
) -> Outcome | None:
    """Deliver a run's whole journal to a fresh machine, and return the recorded end, if there is one.

    Nothing is carried out and nothing is written.

    Raises:
        NonDeterminismError: The code does not ask for what the journal answers.
        DecodeError: A recorded value does not fit the type that the code names.
        RunNotFoundError: There is no such run.
    """
    head = await store.head(run)
    if head is None:
        raise RunNotFoundError(
            "there is no such run", run=run.run_id, hint="check its id and tenant"
        )
    machine = Machine(
        registry.workflows[head.workflow],
        tenant=run.tenant,
        run_id=run.run_id,
        generation=head.generation,
    )
    delivery = Delivery(machine, clock)
    rows = await store.journal(run)
    try:
        await delivery.deliver([(from_row(one.row), one) for one in rows])
        return machine.closed
    finally:
        await delivery.evict()
