"""What a person answers: a decision bound to the hash that they saw."""

from __future__ import annotations

import msgspec


class Decision(msgspec.Struct, frozen=True):
    """The body of an inbox item of kind `decision`.

    Args:
        subject_sha256: What the approver was shown.
    """

    approval_id: str
    operation: str
    approved: bool
    by: str
    reason: str
    subject_sha256: str


REFUSALS = {
    "unknown": "there is no such request",
    "decided": "somebody decided before",
    "withdrawn": "nobody waits for it any more",
    "expired": "its time to decide is over",
    "mismatch": "what was shown is not what is asked now",
}
"""Why a store refuses a decision, in words."""
