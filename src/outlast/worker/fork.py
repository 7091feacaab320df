"""What becomes of the effects of a fork: the words and the rules, for the gate.

| of an effect, the origin | `refuse` | `same_key` | `new_key` |
| --- | --- | --- | --- |
| knows the outcome | that outcome | that outcome | that outcome |
| intended it, and does not know the end | refused | goes on under the intent's key | refused |
| did not come to it | refused | made, with the key that the origin would have used | made, with a new key |

Going on means: an idempotent effect is asked for again; of one with a probe what the probe finds is recorded; all else is in doubt.
For nobody can say when the origin makes its last attempt. It may be open; and a run that was ended from outside has workers that learn
of that late.
"""

from __future__ import annotations

from outlast.errors import ApprovalMismatchError, ForkedEffectError
from outlast.journal.entry import EffectCompleted, EffectFailed, Forked, KnownEffect, Started
from outlast.replay.command import IntendEffect


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
    origin = forked.origin.run_id if forked is not None else ""
    whose = f"a fork of run {origin}" if origin else "a child of a fork"
    return ForkedEffectError(
        f"the run is {whose}, which did not come to this call of {name}, and its effects are refused",
        origin=origin,
        hint="if it may happen, retry this run, or fork again, with effects='same_key' (the keys that the origin would have used) "
        "or 'new_key' (keys of its own)",
    )


def _unknown(known: KnownEffect, name: str) -> ForkedEffectError:
    where = f"{known.operation} of run {known.run_id}"
    return ForkedEffectError(
        f"{name} was intended as {where}, and nobody knows what became of it; it is not made again",
        origin=known.run_id,
        hint=f"find out, and say so there if that run is open: `outlast runs resolve {known.run_id} --operation {known.operation}`; "
        "then fork again. Or go on with effects='same_key', and say so in the fork where it asks",
    )


def inherited_no_approval(forked: Forked) -> ApprovalMismatchError:
    """Return why an approval that was given to the origin does not permit what its fork does."""
    return ApprovalMismatchError(
        f"the approval was given to run {forked.origin.run_id}, of which this is a fork, and a fork inherits none",
        hint="fork from before the request, so that it is asked again",
    )
