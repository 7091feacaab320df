# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What SQLite calls the columns of a run's head and of a lease."""

from __future__ import annotations

from datetime import timedelta

from outlast.store.moment import Instant
from outlast.store.row import Row

INCARNATION = "CASE incarnation WHEN 0 THEN generation ELSE incarnation END"
"""The generation that the last start of a run began; `message.generation` holds it."""

HEAD = (
    "tenant, run_id, generation, workflow, fingerprint, status, reason, owner, epoch, version,"
    " next_seq, digest, wake_at, mail, lapses, created_at, changed_at, note, origin,"
    f" {INCARNATION}, ended_by, released, restored_at, restored_until"
)
FIND_HEAD = f"SELECT {HEAD} FROM run WHERE tenant = ? AND run_id = ?"
LEASE = "CAST(boot AS BLOB), renewed, lease"
"""The boot as bytes: a row whose text is damaged is one of another boot, and not one that cannot be judged."""
FIND_LEASE = f"SELECT {LEASE} FROM worker WHERE worker = ?"


def lease_of(row: Row) -> tuple[Instant, timedelta]:
    """Return the last renewal and the length of the lease in the columns `LEASE`: all that a judgement of life needs."""
    boot, renewed, lease = row
    return Instant(boot.decode(errors="replace"), renewed), timedelta(microseconds=lease)
