"""Requests to people, as the machine keeps them: asked by the code, recorded, decided or expired."""

from __future__ import annotations

from typing import Any

from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    OperationId,
    RunName,
)
from outlast.replay.agenda import Agenda
from outlast.replay.command import Abandon, AwaitDecision, RequestApproval
from outlast.replay.context import ApprovalRequest
from outlast.replay.ledger import EffectLedger, grant_of, not_granted
from outlast.replay.operation import ApprovalOperation
from outlast.replay.task import WorkflowFuture


class Approvals:
    """The requests of one run.

    Args:
        agenda: Where they are kept while they are open.
        ledger: Told what is asked, and what is approved.
    """

    def __init__(self, agenda: Agenda, ledger: EffectLedger) -> None:
        self._agenda = agenda
        self._ledger = ledger

    def begin(
        self,
        operation: OperationId,
        request: ApprovalRequest,
        future: WorkflowFuture[Any],
        generation: int,
    ) -> None:
        """Ask; `future` is of the grant."""
        approval_id = f"{generation}~{operation}"
        self._ledger.asked(
            approval_id, request.covers, bytes(request.subject), demands=request.demands
        )
        self._agenda.open(
            ApprovalOperation(operation, request, future, approval_id),
            RequestApproval(
                operation=operation,
                approval_id=approval_id,
                terms=request.terms,
                subject=request.subject,
                subject_sha256=request.subject_sha256,
                covers=request.covers,
                kind=request.kind,
                preconditions=request.preconditions,
            ),
        )

    def requested(self, entry: ApprovalRequested) -> None:
        """Take in that the person was asked.

        Raises:
            NonDeterminismError: The code asks for something else there.
        """
        approval = self._agenda.expect(entry.operation, ApprovalOperation)
        if approval is None:
            # Cancelled in an earlier turn of the same commit: nobody waits, so nobody should be asked.
            self._agenda.command(Abandon(operation=entry.operation, approval_id=entry.approval_id))
            return
        request = approval.request
        if request.terms.role != entry.role or not request.same_subject(bytes(entry.subject)):
            raise self._agenda.mismatch(
                "the journal holds an approval request for something else",
                recorded=f"role {entry.role}: " + bytes(entry.subject).decode(errors="replace"),
                asked=f"role {request.terms.role}: "
                + bytes(request.subject).decode(errors="replace"),
                operation=entry.operation,
            )
        approval.requested = entry
        self._agenda.command(
            AwaitDecision(
                operation=entry.operation,
                approval_id=entry.approval_id,
                expires_at=entry.expires_at,
            )
        )

    def decided(self, entry: ApprovalDecided | ApprovalExpired, name: RunName) -> None:
        """Take in the decision, or that there is none.

        Raises:
            NonDeterminismError: The code asks for something else there, or for nothing.
        """
        approval = self._agenda.expect(entry.operation, ApprovalOperation)
        if approval is None:
            return
        requested = approval.requested
        if requested is None:
            raise self._agenda.mismatch(
                "the journal holds a decision on what was never asked",
                recorded=f"decision on {entry.approval_id}",
                asked=self._agenda.describe(),
                operation=entry.operation,
            )
        self._agenda.close(entry.operation)
        if isinstance(entry, ApprovalDecided) and entry.approved:
            self._ledger.approved(entry.approval_id)
            if not approval.future.done():
                approval.future.set_result(grant_of(entry, requested))
        elif not approval.future.done():
            approval.future.set_exception(not_granted(entry, requested, name.run_id))
