"""The approvals of a tenant: list, look, decide. A decision carries the hash of what was shown."""

from __future__ import annotations

import msgspec

from outlast.approvals.decision import REFUSALS, Decision
from outlast.approvals.receipt import Receipt
from outlast.client.port import Port
from outlast.client.receipt import draw_receipt
from outlast.client.view import (
    ApprovalView,
    view_of,
)
from outlast.effects.key import check_run_id
from outlast.errors import (
    DecisionRefusedError,
    StoreCorruptError,
)
from outlast.store.change import (
    Decide,
    Message,
    MessageKind,
    Refused,
    RunKey,
)


class Approvals:
    """The approvals of a tenant."""

    def __init__(self, client: Port) -> None:
        self._client = client

    async def list(self, *, pending: bool = True, run_id: str = "") -> list[ApprovalView]:
        """Return approvals, oldest first.

        Raises:
            DefinitionError: No run can have that id.
        """
        run = RunKey(self._client.tenant, check_run_id(run_id)) if run_id else None
        rows = await self._client.store.approvals(self._client.tenant, pending=pending, run=run)
        return [view_of(row) for row in rows]

    async def get(self, run_id: str, approval_id: str = "") -> ApprovalView:
        """Return one approval of a run.

        Args:
            approval_id: May be left out when exactly one is pending.

        Raises:
            DecisionRefusedError: There is none, or it is not clear which.
            StoreCorruptError: What is stored does not have the hash under which it is asked.
        """
        found = await self.list(pending=not approval_id, run_id=run_id)
        if approval_id:
            found = [one for one in found if one.approval_id == approval_id]
        if len(found) == 1:
            if not found[0].genuine:
                raise StoreCorruptError(
                    f"request {found[0].approval_id} shows something else than what its hash says",
                    run=run_id,
                    hint="decide nothing; the store was changed by hand or is damaged: `outlast doctor`",
                )
            return found[0]
        if not found:
            raise await self._nothing_found(run_id, approval_id)
        ids = ", ".join(one.approval_id for one in found)
        raise DecisionRefusedError(
            f"{len(found)} requests of this run wait: {ids}",
            reason="ambiguous",
            run=run_id,
            hint="name one of them",
        )

    async def _nothing_found(self, run_id: str, approval_id: str) -> DecisionRefusedError:
        """Return why there is nothing to look at: no such run, no such request, or none that still waits."""
        await self._client.head(RunKey(self._client.tenant, run_id))
        if approval_id:
            return DecisionRefusedError(
                f"there is no such request: {approval_id}",
                reason="unknown",
                run=run_id,
                hint=f"see `outlast approvals list --all --run {run_id}`",
            )
        decided = await self.list(pending=False, run_id=run_id)
        text = "no request of this run waits"
        if decided:
            last = decided[-1]
            text += f"; the last one, {last.approval_id}, is {last.state}"
            text += f" (by {last.by})" if last.by else ""
        return DecisionRefusedError(
            text,
            reason="unknown",
            run=run_id,
            hint="see `outlast approvals list`, or with `--all` those that were decided",
        )

    async def approve(
        self, run_id: str, approval_id: str, *, seen_sha256: str, reason: str = ""
    ) -> None:
        """Say yes to exactly what was shown.

        Args:
            seen_sha256: The hash of what the approver saw.

        Raises:
            DecisionRefusedError: Late, decided already, for another hash, or for no request.
        """
        await self._decide(run_id, approval_id, seen_sha256, reason, approved=True)

    async def deny(
        self, run_id: str, approval_id: str, *, seen_sha256: str, reason: str = ""
    ) -> None:
        """Say no. See `approve`."""
        await self._decide(run_id, approval_id, seen_sha256, reason, approved=False)

    async def receipt(
        self, run_id: str, approval_id: str = "", *, with_results: bool = False
    ) -> Receipt:
        """Return who approved what, when, against which hash, and what the agent then did. See `outlast.approvals.receipt`.

        Args:
            approval_id: May be left out when the run's present generation has asked one thing only.
            with_results: What effects returned or raised stands in it too, and not only its hash.

        Raises:
            ReceiptError: There is no such request, or it is not clear which.
            RunNotFoundError: There is no such run.
        """
        return await draw_receipt(self._client, run_id, approval_id, with_results=with_results)

    async def _decide(
        self, run_id: str, approval_id: str, seen_sha256: str, reason: str, *, approved: bool
    ) -> None:
        by = self._client.principal
        view = await self.get(run_id, approval_id)
        decision = Decision(
            approval_id=approval_id,
            operation=approval_id.partition("~")[2],
            approved=approved,
            by=by,
            reason=reason,
            subject_sha256=seen_sha256,
        )
        word = "approve" if approved else "deny"
        change = Decide(
            run=RunKey(self._client.tenant, view.run_id),
            approval_id=approval_id,
            seen_sha256=seen_sha256,
            approved=approved,
            by=by,
            message=Message(
                f"{word}/{approval_id}/{by}",
                MessageKind.DECISION,
                approval_id,
                by,
                msgspec.json.encode(decision),
            ),
        )
        verdict = await self._client.commit(change)
        if isinstance(verdict, Refused):
            raise DecisionRefusedError(
                f"the decision was not accepted: {REFUSALS.get(verdict.reason, verdict.reason)}",
                reason=verdict.reason,
                run=run_id,
                hint="look at the request as it is now: `outlast approvals show`",
            )
