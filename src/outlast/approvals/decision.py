"""What a person answers: a decision bound to the hash that they saw."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from outlast.journal.asking import Edited


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an inbox item of kind `decision`.

    What came of it stands in `Message.result`, which the store writes.

    Args:
        operation: Of the request, as far as whoever decides knows it; the request's id says it too.
        subject_sha256: What the approver was shown.
        role: In which it was decided; empty where no role was asked.
        behalf: Whose delegate the approver is.
        edits: What the covered calls should be instead.
        answer: JSON of the answer to a question.
    """

    approval_id: str
    operation: str
    approved: bool
    by: str
    reason: str
    subject_sha256: str
    role: str = ""
    behalf: str = ""
    edits: tuple[Edited, ...] = ()
    answer: Raw = Raw(b"null")


REFUSALS = {
    "unknown": "there is no such request",
    "decided": "somebody decided before",
    "edited": "somebody wants something else instead, which is asked in another request",
    "withdrawn": "nobody waits for it any more",
    "expired": "its time to decide is over",
    "mismatch": "what was shown is not what is asked now",
    "role": "another role is asked now",
    "self": "whoever started the run, or has edited what is asked, may not say yes to it",
    "voted": "this person has said yes already, and more have to",
    "uneditable": "it may be approved or denied, and not edited",
    "sticky": "it may not stick, or not as far as that",
    "stale": "who may decide was changed at this very moment",
}
"""Why a store refuses a decision, in words."""
