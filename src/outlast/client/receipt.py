"""Receipts of approvals, drawn from the store: the journal of the generation that asked, read between two commits."""

from __future__ import annotations

from outlast.approvals.drawing import receipt_of, requests_in, unknown
from outlast.approvals.evidence import Place
from outlast.approvals.receipt import Receipt
from outlast.client.port import Port
from outlast.effects.key import check_run_id
from outlast.errors import ReceiptError
from outlast.journal.entry import StampedRow
from outlast.store.change import RunKey
from outlast.store.condition import WITHDRAWN

_GENERATIONS = 1_000
"""So many of them are searched, the present one first."""


async def draw_receipt(
    client: Port, run_id: str, approval_id: str = "", *, with_results: bool = False
) -> Receipt:
    """Return the receipt of a request of a run.

    Args:
        approval_id: May be left out when the run's present generation has asked one thing only.

    Raises:
        ReceiptError: There is no such request, or it is not clear which.
        RunNotFoundError: There is no such run.
    """
    run = RunKey(client.tenant, check_run_id(run_id))
    head = await client.head(run)
    generation, journal = head.generation, await client.store.journal(run)
    if not approval_id:
        approval_id = _only(run_id, requests_in(journal))
    elif approval_id not in requests_in(journal, every=True):
        generation, journal = await _where(client, run, approval_id)
    return receipt_of(
        journal,
        Place(run.tenant, run.run_id, generation),
        approval_id,
        is_withdrawn=await _is_withdrawn(client, run, approval_id),
        with_results=with_results,
    )


def _only(run_id: str, found: list[str]) -> str:
    if len(found) == 1:
        return found[0]
    if not found:
        raise ReceiptError(
            "the run has asked nobody",
            reason="unknown",
            run=run_id,
            hint=f"of an earlier generation name the request: `outlast approvals list --all --run {run_id}`",
        )
    raise ReceiptError(
        f"the run has asked {len(found)} things: {', '.join(found)}",
        reason="ambiguous",
        run=run_id,
        hint="name one of them",
    )


async def _where(client: Port, run: RunKey, approval_id: str) -> tuple[int, tuple[StampedRow, ...]]:
    """Return the generation that made a request, and its journal."""
    for one in (await client.store.generations(run, limit=_GENERATIONS))[1:]:
        journal = await client.store.journal(run, generation=one.generation)
        if approval_id in requests_in(journal, every=True):
            return one.generation, journal
    raise unknown(run.run_id, approval_id)


async def _is_withdrawn(client: Port, run: RunKey, approval_id: str) -> bool:
    rows = await client.store.approvals(run.tenant, pending=False, run=run)
    return any(row.put.approval_id == approval_id and row.state == WITHDRAWN for row in rows)
