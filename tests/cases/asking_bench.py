"""People who decide at the store, as any client does, for tests of requests."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Raw

from outlast.approvals.decision import Decision
from outlast.client.view import ApprovalView
from outlast.journal.asking import Edited
from outlast.journal.entry import Entry, from_row
from outlast.store.change import Applied, Decide, Message, MessageKind, RunKey
from outlast.testing import Simulation

RUN = RunKey("default", "r")


async def asked(sim: Simulation) -> ApprovalView:
    """Return the one request that waits, when it is there."""
    while not (views := await sim.client.approvals.list()):
        await asyncio.sleep(0.1)
    (view,) = views
    return view


async def decide(
    sim: Simulation, by: str = "bob", *, no: str = "", edit: str = "", answer: str = "null"
) -> ApprovalView:
    """Say yes, or no with a reason, or what the first covered call should be instead, or answer; return what was decided on."""
    view = await asked(sim)
    edits = (Edited(0, Raw(edit.encode())),) if edit else ()
    decision = Decision(
        view.approval_id,
        "",
        not (no or edit),
        by,
        no or "fine",
        view.subject_sha256,
        edits=edits,
        answer=Raw(answer.encode()),
    )
    message = Message(
        f"said/{view.approval_id}/{by}",
        MessageKind.DECISION,
        "",
        by,
        msgspec.json.encode(decision),
    )
    (verdict,) = await sim.store.commit(
        [
            Decide(
                RUN,
                view.approval_id,
                view.subject_sha256,
                decision.approved,
                by,
                message,
                edit=bool(edit),
            )
        ]
    )
    assert isinstance(verdict, Applied), verdict
    return view


async def entries(sim: Simulation, kind: type[Entry]) -> list[Entry]:
    """Return what the run's journal holds of one kind."""
    found = [from_row(one.row) for one in await sim.store.journal(RUN)]
    return [one for one in found if isinstance(one, kind)]
