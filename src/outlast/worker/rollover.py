"""How a generation gives way to the next one: what the new journal begins with.

Invariant: what was sent to the run and has not been handled is for the new generation, once and in order: what was delivered and
nobody took stands in its journal again, before what is still unread in the inbox, which does not move.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import UNSET

from outlast.effects.key import namespace
from outlast.journal.entry import (
    NO_OPERATION,
    CancelRequested,
    ContinuedAsNew,
    Entry,
    MessageReceived,
    PauseRequested,
    Published,
    ResumeRequested,
    RunTimedOut,
    Started,
    UpdateReceived,
)
from outlast.replay.machine import Machine
from outlast.store.change import HeadUpdate, RunKey, Status
from outlast.worker.proposal import Proposal, Rank, rows_of

_SEED_BYTES = 16
_FOR_THE_NEXT = (
    MessageReceived,
    UpdateReceived,
    CancelRequested,
    PauseRequested,
    ResumeRequested,
    RunTimedOut,
)
"""What the end of a generation does not take in: it stays unread, for the next one."""


@dataclass(frozen=True, slots=True)
class Began:
    """How a generation began.

    Args:
        at: When, by the store's clock then.
    """

    started: Started
    at: datetime
    generation: int


def rolling_over(
    machine: Machine,
    outcome: ContinuedAsNew,
    began: Began,
    run: RunKey,
    paused: PauseRequested | None,
    elsewhere: frozenset[str],
) -> Proposal:
    """Return the end of a generation, which is the beginning of the next one.

    Args:
        machine: Whose body has come to this outcome; everything that was committed was delivered to it.
        began: The present generation. What is not said anew goes on: principal, deadline, and what else a start says. The keys of a
            fork's origin do not: two generations that ask for the same would share one key. Where the origin had ended, its next
            generation never was, and this one is bound by nothing.
        paused: The pause that holds the run.
        elsewhere: Ids of updates that another run answers.
    """
    started, generation = began.started, began.generation
    is_free = started.effects == "same_key" and started.is_last
    first = msgspec.structs.replace(
        started,
        name=outcome.name,
        arguments=outcome.arguments,
        seed=_next_seed(started.seed, generation),
        namespace=namespace(run.tenant, run.run_id, generation + 1),
        ends_at=started.deadline(began.at),
        known_as=None,
        parent=machine.parent or UNSET,
        effects="" if is_free else started.effects,
        is_last=False,
        keys="",
    )
    entries = [
        Proposal(Rank.ARRIVAL, entry) for entry in (first, *carried(machine, paused, elsewhere))
    ]
    return Proposal(
        Rank.END,
        outcome,
        head=HeadUpdate(status=Status.READY, release=True),
        next=rows_of(entries, seq=0, turn=0),
    )


def carried(
    machine: Machine, paused: PauseRequested | None, elsewhere: frozenset[str]
) -> list[Entry]:
    """Return what the next generation finds in its journal, after how it was started."""
    published = [Published(NO_OPERATION, *pair) for pair in machine.published.items()]
    unhandled = [
        one
        for one in machine.unhandled()
        if not (isinstance(one, UpdateReceived) and one.message_id in elsewhere)
    ]
    return [*published, *unhandled, *([paused] if paused else [])]


def is_for_the_next(proposal: Proposal) -> bool:
    """Whether a part of the change that ends a generation is not for it, or was made for an earlier try of that change."""
    return bool(proposal.next) or isinstance(proposal.entry, _FOR_THE_NEXT)


def _next_seed(seed: bytes, generation: int) -> bytes:
    """Return the seed of the next generation: it follows from the present one, so that a change made twice is one change."""
    return hashlib.sha256(b"%d:" % (generation + 1) + seed).digest()[:_SEED_BYTES]
