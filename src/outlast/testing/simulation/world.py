"""The outside of a simulation: receivers that know nothing of Outlast, and what they have done.

A request has a fate, drawn from the seed: it is answered, declined, lost on its way, carried out with its answer lost, slow, or
carried out late, when nobody waits for it any more. Once it was sent it is on the wire: neither the end of the process nor the
cancellation of the attempt calls it back. Under assumption A nothing is carried out later than the attempt's timeout plus
`settle` after its start; `Fates.patience` above 1 breaks the assumption on purpose.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.workflows.attempt import current_attempt, idempotency_key

TIMEOUT = timedelta(seconds=2)
SETTLE = timedelta(seconds=1)
_LIMIT_SECONDS = (TIMEOUT + SETTLE).total_seconds()
_NEVER_SECONDS = 1e6

Declared = Literal["idempotent", "probed", "never"]


class DeclinedError(Exception):
    """The receiver said no, which proves that nothing happened."""


class Fates(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How receivers answer. Chances are between 0 and 1; what is left is answered at once.

    Args:
        declined: Refused, with a proof.
        lost: Never arrived; the caller sees a broken connection.
        dropped: Carried out; the caller sees a broken connection.
        slow: Carried out, and answered within the timeout.
        late: Carried out some time after the caller was sent away.
        unsure: A probe cannot say, or breaks.
        patience: How many times timeout plus settle a late request may take; more than 1 breaks assumption A.
    """

    declined: float = 0.0
    lost: float = 0.0
    dropped: float = 0.0
    slow: float = 0.0
    late: float = 0.0
    unsure: float = 0.0
    patience: float = 1.0


class Done(NamedTuple):
    """Something that was asked for, or done.

    Args:
        key: Under which key.
        run_id: By which run.
    """

    key: str
    run_id: str

    @classmethod
    def now(cls) -> Done:
        """Return what the present attempt asks for."""
        return cls(idempotency_key(), current_attempt.get().run_id)


class Handed(NamedTuple):
    """A step that was handed out.

    Args:
        value: What it stands for.
        done: How far it had come, where it is to be heard of meanwhile.
    """

    token: str
    value: int
    done: int | None = None


class Forks(Protocol):
    """Knows who may do what another run does too."""

    def is_apart(self, run_id: str) -> bool:
        """Whether a run has keys of its own for what another one may do under other keys."""
        ...

    def may_do_too(self, run_id: str, key: str) -> bool:
        """Whether a run may do under this key what its origin does by itself."""
        ...


class World:
    """All receivers of one simulation.

    Args:
        source: Where fates come from.
        violated: Called with invariant and words when something happens once too often.
        forks: Knows who may do what another run does too.
    """

    def __init__(
        self,
        fates: Fates,
        source: random.Random,
        violated: Callable[[int, str], None],
        forks: Forks,
    ) -> None:
        self.fates = fates
        self.changes: dict[str, list[Done]] = {}
        """For each purpose, how it was carried out. One that ends in a star is to be carried out twice."""
        self.tokens: list[Handed] = []
        """What steps have handed out."""
        self.keep_thread: Callable[[float], None] = lambda _seconds: None
        """Keeps the thread that calls it for so many seconds."""
        self._source = source
        self._violated = violated
        self._forks = forks

    async def request(self, declared: Declared, purpose: str) -> str:
        """Have something done, as an asynchronous client does."""
        asked = Done.now()
        match self._fate():
            case "slow":
                seconds = self._source.uniform(0, TIMEOUT.total_seconds() * 0.9)
                self._on_the_wire(self._source.uniform(0, seconds), declared, purpose, asked)
                await asyncio.sleep(seconds)
            case "late":
                longest = _LIMIT_SECONDS * self.fates.patience
                self._on_the_wire(self._source.uniform(0, longest), declared, purpose, asked)
                await asyncio.sleep(_NEVER_SECONDS)
            case fate:
                self._at_once(fate, declared, purpose, asked)
        return answer(purpose)

    def request_blocking(self, declared: Declared, purpose: str) -> str:
        """Have something done, as a client in a thread does; what is slow keeps the thread."""
        asked = Done.now()
        match self._fate():
            case "slow" | "late" as fate:
                longest = TIMEOUT.total_seconds() * 0.9
                if fate == "late":
                    # No later than assumption A has it; but the thread may be kept for longer than anybody waits.
                    longest = _LIMIT_SECONDS * self.fates.patience
                seconds = self._source.uniform(0, longest)
                self._on_the_wire(seconds, declared, purpose, asked)
                self.keep_thread(seconds + self._source.uniform(0, longest))
            case fate:
                self._at_once(fate, declared, purpose, asked)
        return answer(purpose)

    def find(self, purpose: str) -> Applied[str] | NotApplied | Unknown:
        """Answer a probe: truthfully, or not at all."""
        if self._source.random() < self.fates.unsure:
            if self._source.random() < 0.5:
                raise ConnectionError("the receiver cannot be asked")
            return Unknown("the receiver is busy")
        return Applied(answer(purpose)) if self.was_done(purpose, Done.now()) else NotApplied()

    def was_done(self, purpose: str, asked: Done) -> bool:
        """Whether it was; of what repeats, and for a fork with keys of its own, whether it was under this key."""
        done = self.changes.get(purpose, [])
        if purpose.endswith("*") or self._forks.is_apart(asked.run_id):
            return any(one.key == asked.key for one in done)
        return any(not self._forks.is_apart(one.run_id) for one in done)

    def _fate(self) -> str:
        chance = self._source.random()
        for name in ("declined", "lost", "dropped", "slow", "late"):
            chance -= getattr(self.fates, name)
            if chance < 0:
                return name
        return "answered"

    def _at_once(self, fate: str, declared: Declared, purpose: str, asked: Done) -> None:
        if fate == "declined":
            raise DeclinedError(purpose)
        if fate == "lost":
            raise ConnectionError("the request was lost")
        self._act(declared, purpose, asked)
        if fate == "dropped":
            raise ConnectionError("the answer was lost")

    def _on_the_wire(self, seconds: float, *request: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._act, *request, context=contextvars.Context())

    def _act(self, declared: Declared, purpose: str, asked: Done) -> None:
        done = self.changes.setdefault(purpose, [])
        if declared == "idempotent" and any(one.key == asked.key for one in done):
            return
        done.append(asked)
        if not self._is_right(declared, purpose, done):
            invariant = 4 if declared == "never" else 3
            said = ", ".join(f"{one.key} by {one.run_id}" for one in done)
            self._violated(invariant, f"{purpose} was carried out {len(done)} times: {said}")

    def _is_right(self, declared: Declared, purpose: str, done: list[Done]) -> bool:
        """Each run has done it once, all that share their keys together too if its receiver knows these, and a fork only what it may."""
        repeats = purpose.endswith("*")
        most = 2 if repeats else 1
        shared = [one for one in done if not self._forks.is_apart(one.run_id)]
        if len(set(done)) < len(done) or (declared == "idempotent" and len(shared) > most):
            return False
        if any(times > most for times in Counter(one.run_id for one in done).values()):
            return False
        return all(
            self._forks.may_do_too(one.run_id, one.key)
            for one in done
            for other in done
            if other.run_id != one.run_id and (not repeats or other.key == one.key)
        )


def answer(purpose: str) -> str:
    """Return what a receiver answers."""
    return f"did {purpose}"
