"""Where an effect asks for leave: the one place that knows keys, grants and (later) rules.

It runs immediately before the intent is committed, and what it found rides in that change.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Raw

from outlast.effects.key import idempotency_key
from outlast.errors import (
    ApprovalError,
    ApprovalExpiredError,
    ApprovalMismatchError,
    ApprovalSpentError,
)
from outlast.journal.entry import EffectIntended, EffectRefused
from outlast.journal.failure import capture
from outlast.replay.command import IntendEffect
from outlast.store.change import GrantSpend


@dataclass(frozen=True, slots=True)
class Leave:
    """The effect may be intended.

    Args:
        spend: The cover that the same change must spend.
    """

    intent: EffectIntended
    spend: GrantSpend | None


class Gate:
    """Lets effects through.

    Args:
        namespace: The `workflow_id` of the run's keys.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def ask(self, command: IntendEffect, epoch: int) -> Leave:
        """Return the intent to record, with its key and the cover that it spends."""
        intent = EffectIntended(
            operation=command.operation,
            name=command.name,
            key=idempotency_key(
                self._namespace, command.name, command.payload_sha256, number=command.number
            ),
            requested=Raw(command.arguments),
            effective=Raw(command.arguments),
            action_sha256=command.action_sha256,
            number=command.number,
            grant=command.grant,
            epoch=epoch,
        )
        if command.grant is None:
            return Leave(intent, None)
        spend = GrantSpend(
            approval_id=command.grant.approval_id,
            cover=command.grant.cover,
            operation=command.operation,
            match_sha256=command.match_sha256,
        )
        return Leave(intent, spend)

    def refusal(self, intent: EffectIntended, reason: str, run_id: str) -> EffectRefused:
        """Return the entry that tells the workflow why the store did not let the intent through.

        Args:
            reason: The store's word: `expired`, `mismatch`, `unapproved` or `spent`.
        """
        error = _refused(reason)
        error.run, error.operation, error.step = run_id, intent.operation, intent.name
        return EffectRefused(intent.operation, intent.name, capture(error))


def _refused(reason: str) -> ApprovalError:
    match reason:
        case "expired":
            return ApprovalExpiredError(
                "the approval's time to begin is over",
                stage="use",
                hint="ask again, or give a longer use_within",
            )
        case "spent":
            return ApprovalSpentError(
                "the approval was spent by another operation", hint="ask again for another one"
            )
        case _:
            return ApprovalMismatchError(
                "the approval does not cover this action as it is now",
                hint="ask for an approval that covers it",
            )
