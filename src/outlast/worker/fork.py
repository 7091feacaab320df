"""What becomes of the effects of a fork: the words and the rules, for the gate.

| of an effect, the origin | `refuse` | `same_key` | `new_key` |
| --- | --- | --- | --- |
| knows the outcome | that outcome | that outcome | that outcome |
| intended it, and does not know the end | refused | goes on under the intent's key, as after a lost attempt | refused |
| did not come to it | refused | made, with the key that the origin would have used | made, with a new key |

While the origin is open it may make an attempt of its own at any moment. Only an idempotent effect bears that.
"""

from __future__ import annotations

from outlast.effects.intent import Repeat
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
    started: Started, forked: Forked | None, known: KnownEffect | None, name: str, repeat: Repeat
) -> ForkedEffectError | None:
    """Return why an effect whose outcome is not known is not made; None when it may be.

    Args:
        known: What is known of the call all the same: that it was intended.
    """
    if not started.effects:
        return None
    if known is not None:
        return _why_not_again(started, known, name, repeat)
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


def _why_not_again(
    started: Started, known: KnownEffect, name: str, repeat: Repeat
) -> ForkedEffectError | None:
    where = f"{known.operation} of run {known.run_id}"
    if started.effects != "same_key":
        return ForkedEffectError(
            f"{name} was intended as {where}, and nobody knows what became of it; it is not made again",
            origin=known.run_id,
            hint=f"find out, and say so there if that run is open: `outlast runs resolve {known.run_id} --operation "
            f"{known.operation}`; then fork again. effects='same_key' goes on as after a lost attempt",
        )
    if known.is_open and repeat is not Repeat.IDEMPOTENT:
        return ForkedEffectError(
            f"{name} was intended as {where}, which has not ended and may make it at any moment",
            origin=known.run_id,
            hint="end that run first (`outlast runs cancel` or `terminate`), then fork again; only effects that are declared "
            "idempotent can be asked for by both",
        )
    return None


def inherited_no_approval(forked: Forked) -> ApprovalMismatchError:
    """Return why an approval that was given to the origin does not permit what its fork does."""
    return ApprovalMismatchError(
        f"the approval was given to run {forked.origin.run_id}, of which this is a fork, and a fork inherits none",
        hint="fork from before the request, so that it is asked again",
    )
