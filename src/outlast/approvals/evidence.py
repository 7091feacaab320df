"""The journal entries that a receipt is drawn from: where each stands, and a hash that binds it to its place and its run.

The hash is over run, position, time and the entry's bytes. So an entry that was moved from another run or place shows offline, and
all of them can be held against the store later, also those whose bytes are withheld.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from outlast.errors import OutlastError
from outlast.journal.asking import Moment
from outlast.journal.canonical import sha256_of
from outlast.journal.entry import Entry, EntryRow, StampedRow, from_row

_NEVER = frozenset({"started", "forked", "completed", "failed", "cancelled", "continued_as_new"})
"""Kinds whose bytes hold more of the run than the approval is about, its seed among it."""

_OUTCOMES = frozenset({"effect_completed", "effect_failed", "effect_in_doubt", "effect_compensating"})  # fmt: skip
"""Kinds whose bytes hold what an effect returned or raised."""


class Place(Struct, frozen=True):
    """Whose journal it is."""

    tenant: str
    run_id: str
    generation: int


class Evidence(Struct, frozen=True, omit_defaults=True):
    """One entry.

    Args:
        position: In the generation's journal, from 0.
        at: When the store committed it.
        sha256: Over its place, its time and its bytes.
        body: Its bytes, as text; empty where they are withheld.
    """

    position: int
    kind: str
    operation: str
    name: str
    at: Moment
    sha256: str
    body: str = ""


def evidence_of(place: Place, stamped: StampedRow, *, with_results: bool) -> Evidence:
    """Return what a receipt says of an entry.

    Args:
        with_results: What effects returned or raised is not withheld.
    """
    row = stamped.row
    whole = Evidence(
        row.seq, row.kind, row.operation, row.name, stamped.at, "", bytes(row.body).decode()
    )
    is_withheld = row.kind in _NEVER or (row.kind in _OUTCOMES and not with_results)
    return Evidence(
        whole.position,
        whole.kind,
        whole.operation,
        whole.name,
        whole.at,
        hash_of(place, whole),
        "" if is_withheld else whole.body,
    )


def hash_of(place: Place, one: Evidence) -> str:
    """Return the hash of an entry whose bytes are there."""
    return sha256_of(
        {
            "tenant": place.tenant,
            "run_id": place.run_id,
            "generation": place.generation,
            "position": one.position,
            "kind": one.kind,
            "operation": one.operation,
            "name": one.name,
            "at": one.at,
            "body": one.body,
        }
    )


def entry_of(one: Evidence) -> Entry | None:
    """Return the entry; None where it is withheld.

    Raises:
        DecodeError: Its bytes are no entry, or another one than it says.
    """
    if not one.body:
        return None
    return from_row(EntryRow(one.position, 0, one.kind, one.operation, one.name, one.body.encode()))


def first_broken(place: Place, evidence: Sequence[Evidence]) -> str:
    """Return what is wrong with the first entry that is not what its hash says, or does not follow the one before; empty if none is."""
    before: Evidence | None = None
    for one in evidence:
        if before is not None and not (before.position < one.position and before.at <= one.at):
            return f"entry {one.position} does not come after entry {before.position}"
        try:
            entry = entry_of(one)
        except OutlastError as error:
            return f"entry {one.position} cannot be read: {error.message}"
        if entry is not None:
            if getattr(entry, "operation", "") != one.operation:
                return f"entry {one.position} is of another operation than it says"
            if getattr(entry, "name", "") != one.name:
                return f"entry {one.position} has another name than it says"
            if hash_of(place, one) != one.sha256:
                return f"entry {one.position} is not one of this place and time"
        before = one
    return ""
