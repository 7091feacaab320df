"""Requests to people that the code makes, as the machine keeps them: asked, recorded, edited, decided or expired."""

from __future__ import annotations

from typing import Any

from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    OperationId,
    RunName,
)
from outlast.replay.agenda import Agenda
from outlast.replay.asking import approval_id, edited, escalated, not_granted
from outlast.replay.command import Abandon, AwaitDecision, RequestApproval
from outlast.replay.context import ApprovalRequest
from outlast.replay.ledger import EffectLedger, grant_of
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
        """Ask; `future` is of the grant, or of the answer."""
        new_id = approval_id(operation, generation, 0)
        self._ledger.asked(new_id, request.covers, bytes(request.subject), demands=request.demands)
        self._agenda.open(
            ApprovalOperation(operation, request, future, new_id),
            RequestApproval(
                operation=operation,
                approval_id=new_id,
                terms=request.terms,
                subject=request.subject,
                subject_sha256=request.subject_sha256,
                covers=request.covers,
                kind=request.kind,
                preconditions=request.preconditions,
                source="" if request.demands else "purpose",
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
        if not entry.again:
            self._check(entry, request)
        approval.asking.requested(entry)
        approval.approval_id = entry.approval_id
        if entry.again:
            self._ledger.asked(
                entry.approval_id, entry.covers, bytes(entry.subject), demands=request.demands
            )
        self._agenda.asked[entry.approval_id] = entry.operation
        self._agenda.command(
            AwaitDecision(
                operation=entry.operation,
                approval_id=entry.approval_id,
                expires_at=entry.expires_at,
            )
        )

    def edited(self, entry: ApprovalEdited, name: RunName) -> None:
        """Take in that somebody wants something else: that is asked instead."""
        approval = self._agenda.expect(entry.operation, ApprovalOperation)
        former = None if approval is None else approval.asking.edited(entry)
        if approval is None or former is None:
            return
        new_id = approval_id(entry.operation, name.generation, approval.asking.count)
        self._agenda.command(edited(former, entry, approval.request.remake, new_id))

    def decided(self, entry: ApprovalDecided | ApprovalExpired, name: RunName) -> None:
        """Take in the decision, or that there is none.

        Raises:
            NonDeterminismError: The code asks for something else there, or for nothing.
        """
        approval = self._agenda.expect(entry.operation, ApprovalOperation)
        if approval is None:
            return
        requested = approval.asking.current
        if requested is None or requested.approval_id != entry.approval_id:
            raise self._agenda.mismatch(
                "the journal holds a decision on what was never asked",
                recorded=f"decision on {entry.approval_id}",
                asked=self._agenda.describe(),
                operation=entry.operation,
            )
        if isinstance(entry, ApprovalExpired):
            new_id = approval_id(entry.operation, name.generation, approval.asking.count)
            command = escalated(requested, new_id)
            if command is not None:
                self._agenda.command(command)
                return
        self._agenda.close(entry.operation)
        if isinstance(entry, ApprovalDecided) and entry.approved:
            self._grant(approval, entry, requested)
        elif not approval.future.done():
            approval.future.set_exception(not_granted(entry, requested, name.run_id))

    def _grant(
        self, approval: ApprovalOperation, entry: ApprovalDecided, requested: ApprovalRequested
    ) -> None:
        request = approval.request
        approval.asking.granted_by(entry)
        self._ledger.approved(entry.approval_id)
        if approval.future.done():
            return
        if request.decode is not None:
            approval.future.set_result(request.decode(bytes(entry.answer)))
        else:
            grant = grant_of(entry, requested, approval.asking, request.covers)
            approval.future.set_result(grant)

    def _check(self, entry: ApprovalRequested, request: ApprovalRequest) -> None:
        """Return when the code asks what the journal says that it asked."""
        if request.terms.role != entry.role or not request.same_subject(bytes(entry.subject)):
            raise self._agenda.mismatch(
                "the journal holds an approval request for something else",
                recorded=f"role {entry.role}: " + bytes(entry.subject).decode(errors="replace"),
                asked=f"role {request.terms.role}: "
                + bytes(request.subject).decode(errors="replace"),
                operation=entry.operation,
            )
