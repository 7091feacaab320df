"""Requests that came with an idempotency key: the record of each, and every change of one.

A record belongs to a tenant and to the hash of a key. Whoever begins it draws a *token*: the record is his until he ends it, and every
later change of his names it. He *holds* the record for a while at a time; when that while is over and he has not ended it, nobody
knows what became of his request: it is in doubt, and stays so until he ends it after all or an operator says what happened.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Struct

from outlast.journal.entry import PAYLOAD, PLAIN

PURGED_IN_PASSING = 8
"""Expired records of the tenant that go with each one that begins: more than come, so that none stay."""


class RequestState(StrEnum):
    """Where a request stands. Stored are `running`, `done` and `freed`; what follows from the time is said when it is read."""

    RUNNING = "running"
    DONE = "done"
    IN_DOUBT = "in doubt"
    """Running, and nobody holds it any more."""
    FREED = "freed"
    """An operator said that it did not happen: the key is as good as new, and the record tells who said so and why."""
    EXPIRED = "expired"
    """Done or freed, and kept no longer: as good as gone."""


class RequestRow(Struct, frozen=True):
    """The record of a request.

    Args:
        request_id: SHA-256 of tenant and key, in hex: the key itself is kept nowhere.
        fingerprint: Of what was asked, to tell another request under the same key.
        token: Of whoever began it.
        held_until: When it is in doubt unless it was ended or is held on.
        keep: How long it is known once an operator has resolved it; whoever ends it says so himself.
        expires_at: From when on it is as good as gone; None while it has not ended: a request that may have happened is not forgotten.
        note: What whoever began it says of it, for people.
        answer: What was answered; nothing unless it is done.
        by: The operator who resolved it; empty when none did.
        reason: Why, in his words.
        resolved_at: When.
    """

    tenant: Annotated[str, PLAIN]
    request_id: Annotated[str, PLAIN]
    fingerprint: Annotated[str, PLAIN]
    token: Annotated[str, PLAIN]
    state: Annotated[RequestState, PLAIN]
    started_at: Annotated[datetime, PLAIN]
    held_until: Annotated[datetime, PLAIN]
    keep: Annotated[timedelta, PLAIN]
    expires_at: Annotated[datetime | None, PLAIN] = None
    note: Annotated[bytes, PAYLOAD] = b""
    answer: Annotated[bytes, PAYLOAD] = b""
    by: Annotated[str, PLAIN] = ""
    reason: Annotated[str, PLAIN] = ""
    resolved_at: Annotated[datetime | None, PLAIN] = None


class BeginRequest(Struct, frozen=True, tag="begin_request"):
    """Begin a request, unless one stands under its key.

    Applied with the new record when there is none, or one that is freed or expired; with the record that stands, unchanged, when it has
    this token: the same change sent again. Otherwise a conflict that carries the record. Up to `PURGED_IN_PASSING` expired records of
    the tenant go in the same transaction.

    Args:
        hold: How long it is running from now on, unless it is held on.
        keep: How long it is known when an operator resolves it.
    """

    tenant: Annotated[str, PLAIN]
    request_id: Annotated[str, PLAIN]
    fingerprint: Annotated[str, PLAIN]
    token: Annotated[str, PLAIN]
    hold: Annotated[timedelta, PLAIN]
    keep: Annotated[timedelta, PLAIN]
    note: Annotated[bytes, PAYLOAD] = b""


class HoldRequest(Struct, frozen=True, tag="hold_request"):
    """Hold a request on, also one that was in doubt meanwhile. A conflict when it is not running, or has another token."""

    tenant: Annotated[str, PLAIN]
    request_id: Annotated[str, PLAIN]
    token: Annotated[str, PLAIN]
    hold: Annotated[timedelta, PLAIN]


class EndRequest(Struct, frozen=True, tag="end_request"):
    """End a request, whether or not it is still held: a late outcome is an outcome.

    Happened, it is done, and its answer kept; otherwise its record goes, and the key is free. The same change sent again is applied
    without effect, with the record as it stands. One that is freed and that nobody has begun anew is done all the same: what has
    happened is not done again. A conflict that carries what stands when the record has another token, has gone, or was ended
    otherwise.

    Args:
        keep: How long it is known from now on, when it happened.
    """

    tenant: Annotated[str, PLAIN]
    request_id: Annotated[str, PLAIN]
    token: Annotated[str, PLAIN]
    happened: Annotated[bool, PLAIN]
    keep: Annotated[timedelta, PLAIN]
    answer: Annotated[bytes, PAYLOAD] = b""


class ResolveRequest(Struct, frozen=True, tag="resolve_request"):
    """Say what became of a request in doubt: that it happened, with this answer, or that it did not; then it is freed.

    With `corrects`, another answer takes the place of the one that an operator gave at that time. A record that nobody has resolved keeps
    its answer.

    Refused, in this order, with `unknown` (there is none), `mismatch` (the record has another token than the operator saw), `done` or
    `freed` (it was ended or resolved meanwhile) and `running` (it is held). The same change sent again is applied without effect.

    Args:
        token: That the operator saw.
        corrects: The `resolved_at` that the operator saw, of the answer that is replaced; None for a request in doubt.
    """

    tenant: Annotated[str, PLAIN]
    request_id: Annotated[str, PLAIN]
    token: Annotated[str, PLAIN]
    happened: Annotated[bool, PLAIN]
    by: Annotated[str, PLAIN]
    reason: Annotated[str, PLAIN]
    answer: Annotated[bytes, PAYLOAD] = b""
    corrects: Annotated[datetime | None, PLAIN] = None


class PurgeRequests(Struct, frozen=True, tag="purge_requests"):
    """Remove up to `limit` expired records of a tenant, oldest first; the verdict says how many (`Applied.removed`)."""

    tenant: Annotated[str, PLAIN]
    limit: Annotated[int, PLAIN]


RequestChange: TypeAlias = BeginRequest | HoldRequest | EndRequest | ResolveRequest | PurgeRequests
