"""Which effects of a run are being found out about, on what those rest that were let through, and what has to be found out again.

Nothing is counted against an effect whose answers came too late for the store: it is asked again for as long as the store says so, each time
after a longer pause, and that is said from the third time on. A grant that runs out meanwhile ends that, and so does a no, or the end of its time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from outlast.errors import OutlastError
from outlast.journal.entry import EffectCleared, EffectIntended, Entry, OperationId
from outlast.replay.command import IntendEffect
from outlast.replay.context import EffectRequest
from outlast.store.change import Permit
from outlast.worker.again import pause_after
from outlast.worker.bridge import Bridge
from outlast.worker.deck import Deck
from outlast.worker.gate import Found
from outlast.worker.log import log_aged
from outlast.worker.look import Looks, noting
from outlast.worker.permit import Finder
from outlast.workflows.definition import Effect

_SAID_FROM = 3
"""So often in a row answers are too old before anybody is told."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """An effect that is not intended yet.

    Args:
        refusals: How often in a row the store has said that its answers do not count.
        aged: How often in a row it has said that they are too old.
    """

    command: IntendEffect
    refusals: int = 0
    aged: int = 0


class Clearance:
    """Of the effects of one run.

    Args:
        finder: Finds out.
    """

    def __init__(self, bridge: Bridge, deck: Deck, finder: Finder) -> None:
        self._bridge = bridge
        self._deck = deck
        self._finder = finder
        self._asking: dict[OperationId, _Asking] = {}
        self._cleared: dict[OperationId, Permit] = {}
        self._looks: dict[OperationId, Looks] = {}
        """What was asked last."""

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        self._finder.note(entry)
        match entry:
            case EffectIntended(operation):
                self._asking.pop(operation, None)
            case EffectCleared(operation):
                self._cleared.pop(operation, None)
            case _:
                pass

    def forget(self, operation: OperationId) -> None:
        """Forget an effect that has its outcome, or that nobody waits for."""
        self._asking.pop(operation, None)
        self._cleared.pop(operation, None)
        self._looks.pop(operation, None)

    # Before the intent

    def quick(
        self, command: IntendEffect, request: EffectRequest, effect: Effect[..., Any]
    ) -> Found | None:
        """Return what is found where nobody has to be asked; None where `find` asks."""
        if command.operation in self._asking:
            return None
        return self._finder.quick(command, request, effect)

    async def find(
        self, command: IntendEffect, request: EffectRequest, effect: Effect[..., Any]
    ) -> Found | OutlastError:
        """Return what is found, or why the effect may not begin."""
        with self._noting(command.operation):
            return await self._finder.find(command, request, effect)

    def _noting(self, operation: OperationId) -> AbstractContextManager[None]:
        looks = self._looks[operation] = Looks(self._bridge.clock.monotonic)
        return noting(looks)

    def pause(self, operation: OperationId) -> float:
        """Return how many seconds to wait before it is asked."""
        asking = self._asking.get(operation)
        return 0.0 if asking is None else pause_after(asking.refusals)

    def proposed(self, command: IntendEffect, permit: Permit | None) -> None:
        """Note that an effect is about to be intended, on what was found."""
        asking = self._asking.get(command.operation) or _Asking(command)
        self._asking[command.operation] = replace(asking, command=command)
        if permit is not None:
            self._cleared[command.operation] = permit

    def refused(self, permit: Permit, reason: str) -> IntendEffect | None:
        """Note that what an effect rests on does not count; return what has to be asked again, None for an effect that is intended.

        Args:
            reason: The store's word.
        """
        if reason != "aged":
            self._deck.controls.outdated(self._bridge.run_key.tenant, permit)
        operation = OperationId(permit.operation)
        self._cleared.pop(operation, None)
        asking = self._asking.get(operation)
        if asking is None:
            return None
        aged = asking.aged + 1 if reason == "aged" else 0
        self._asking[operation] = replace(asking, refusals=asking.refusals + 1, aged=aged)
        self.say_aged(permit, asking.command.name, aged)
        return asking.command

    def say_aged(self, permit: Permit, name: str, times: int, other: str = "the store") -> None:
        """Say that answers were too old, when they were that several times.

        Args:
            name: Of the effect.
            times: How often in a row.
            other: What took its time, if no answer did.
        """
        if times < _SAID_FROM:
            return
        operation = OperationId(permit.operation)
        looks = self._looks.get(operation) or Looks(self._bridge.clock.monotonic)
        slow = looks.slowest(self._bridge.store_now() - permit.checked_at, other)
        log_aged(self._bridge.run_key, name, operation, times, slow, permit.within)

    # Before an attempt

    def cleared(self, operation: OperationId) -> Permit | None:
        """Return on what the intent rests, if the first attempt may begin on that."""
        permit = self._cleared.get(operation)
        if permit is None:
            return None
        age = self._bridge.store_now() - permit.checked_at
        return permit if timedelta(0) <= age <= self._deck.recheck_within else None

    async def again(
        self, intent: EffectIntended, effect: Effect[..., Any]
    ) -> Permit | OutlastError:
        """Return on what another attempt rests, or why it may not be made."""
        with self._noting(intent.operation):
            return await self._finder.again(intent, effect)
