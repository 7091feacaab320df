"""What becomes of the effects of a fork: the words and the rules, for the gate; and the words for children and messages (`kin`).

| of an effect, the origin | `refuse` | `same_key` | `new_key` |
| --- | --- | --- | --- |
| knows the outcome | that outcome | that outcome | that outcome |
| intended it, and does not know the end | refused | goes on under the intent's key | refused |
| made it, and has undone it | refused | refused | made, with a new key |
| did not come to it | refused | made, with the key that the origin would have used | made, with a new key |

Going on means: an idempotent effect is asked for again; of one with a probe what the probe finds is recorded; all else is in doubt.
For nobody can say when the origin makes its last attempt. It may be open; and a run that was ended from outside has workers that learn
of that late.
"""

from __future__ import annotations

from outlast.errors import ApprovalMismatchError, ForkedEffectError
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    Forked,
    KnownChild,
    KnownEffect,
    KnownMessage,
    Started,
)
from outlast.replay.command import IntendEffect, SendMessage

_LEAVE = (
    "if it may happen, retry this run, or fork again, with effects='same_key' (the keys that the origin would have used) or 'new_key' "
    "(keys of its own)"
)


def known_outcome(known: KnownEffect, command: IntendEffect) -> EffectCompleted | EffectFailed:
    """Return the outcome to record of an effect that the origin settled."""
    reason = f"settled as {known.operation} of run {known.run_id}"
    if known.failure is not None:
        return EffectFailed(
            command.operation, command.name, known.failure, source="fork", reason=reason
        )
    return EffectCompleted(
        command.operation, command.name, known.value, source="fork", reason=reason
    )


def why_not(
    started: Started, forked: Forked | None, known: KnownEffect | None, name: str
) -> ForkedEffectError | None:
    """Return why an effect whose outcome is not known is not made; None when it may be.

    Args:
        known: What is known of the call all the same: that it was intended.
    """
    if not started.effects:
        return None
    if known is not None:
        return None if started.effects == "same_key" else _unknown(known, name)
    if started.effects == "new_key" or (started.effects == "same_key" and started.keys):
        return None
    if started.effects == "same_key":
        return ForkedEffectError(
            f"the run is {_whose(started, forked)}; its origin may go on too, which key that would use for {name} nobody knows, and it "
            "is not made",
            hint="if it may happen, retry this run, or fork again, with effects='new_key' (keys of its own)",
        )
    origin = forked.origin.run_id if forked is not None else ""
    return ForkedEffectError(
        f"the run is {_whose(started, forked)}, which did not come to this call of {name}, and its effects are refused",
        origin=origin,
        hint=_LEAVE,
    )


def undone_refused(started: Started, known: KnownEffect, name: str) -> ForkedEffectError | None:
    """Return why an effect is not made that the origin has made, and undone; None when it may be, under a key of the fork's own."""
    if started.effects == "new_key":
        return None
    return ForkedEffectError(
        f"the origin has made this call of {name}, as {known.operation}, and has undone it; its key is used up",
        origin=known.run_id,
        hint="to do it again, fork with effects='new_key' (keys of its own), or start the workflow anew",
    )


def start_refused(known: KnownChild, name: str) -> ForkedEffectError:
    """Return why a fork does not start a child."""
    return ForkedEffectError(
        f"the origin asked for {name} as run {known.run_id}, which has not ended as far as anybody knows; it is not started again",
        origin=known.parent.run_id,
        hint=f"fork again when run {known.run_id} has ended; or with effects='same_key', to wait for that very run, or 'new_key', to "
        "start another one",
    )


def message_refused(
    started: Started, forked: Forked | None, known: KnownMessage | None, command: SendMessage
) -> ForkedEffectError | None:
    """Return why a message to another run, of which it is not known whether it was taken, is not sent; None when it may be.

    Args:
        known: What is known of it all the same: that it was sent.
    """
    if started.effects in ("", "same_key") or (known is None and started.effects == "new_key"):
        return None
    what = f"the {command.kind} {command.name}".rstrip() + f" to run {command.run_id}"
    if known is None:
        return ForkedEffectError(
            f"the run is {_whose(started, forked)}, which did not send {what}, and it is refused what others would see",
            origin=forked.origin.run_id if forked is not None else "",
            hint=_LEAVE,
        )
    return ForkedEffectError(
        f"the origin sent {what} as {known.operation}, and nobody knows whether that run took it; it is not sent again",
        origin=forked.origin.run_id if forked is not None else "",
        hint=f"see `outlast runs journal {command.run_id}`; with effects='same_key' it is sent under the id that it had, so that it is "
        "taken once",
    )


def _whose(started: Started, forked: Forked | None) -> str:
    if forked is not None:
        return f"a fork of run {forked.origin.run_id}"
    return "a later generation of a fork" if "~" in started.namespace else "a child of a fork"


def _unknown(known: KnownEffect, name: str) -> ForkedEffectError:
    where = f"{known.operation} of run {known.run_id}"
    return ForkedEffectError(
        f"{name} was intended as {where}, and nobody knows what became of it; it is not made again",
        origin=known.run_id,
        hint=f"find out, and say so there if that run is open: `outlast runs resolve {known.run_id} --operation {known.operation}` "
        "with --applied JSON, --not-applied or --failed TEXT; then fork again. Or go on with effects='same_key', and say so in the fork where it asks",
    )


def inherited_no_approval(forked: Forked) -> ApprovalMismatchError:
    """Return why an approval that was given to the origin does not permit what its fork does."""
    return ApprovalMismatchError(
        f"the approval was given to run {forked.origin.run_id}, of which this is a fork, and a fork inherits none",
        hint="fork from before the request, so that it is asked again",
    )
