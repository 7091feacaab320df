"""What a server notes of each write to a run, in the transaction that writes it, and what must hold of that.

Triggers note who has written: each worker process has a name, its connections bear it, and it is part of the ids of its lives. So it is seen
from outside which process has written under which epoch, and not taken from what the library says of itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

_TRIGGERS = """
CREATE TABLE public.audit (
    number bigint GENERATED ALWAYS AS IDENTITY, tenant text, run_id text, status text, written_by text,
    was_owner text, was_epoch bigint, was_version bigint, owner text, epoch bigint, version bigint, lease_left bigint
);
CREATE TABLE public.rewritten (run_id text, seq bigint, act text);
CREATE FUNCTION public.note_run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.audit (tenant, run_id, status, written_by, was_owner, was_epoch, was_version, owner, epoch, version, lease_left)
    SELECT NEW.tenant, NEW.run_id, NEW.status, current_setting('application_name'), OLD.owner, coalesce(OLD.epoch, 0),
        coalesce(OLD.version, 0), NEW.owner, NEW.epoch, NEW.version,
        (SELECT renewed + lease - extract(epoch FROM now()) * 1000000 FROM outlast.worker WHERE worker = OLD.owner);
    RETURN NULL;
END $$;
CREATE FUNCTION public.note_entry() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.rewritten VALUES (OLD.run_id, OLD.seq, TG_OP);
    RETURN NULL;
END $$;
CREATE TRIGGER note_run AFTER INSERT OR UPDATE ON outlast.run FOR EACH ROW EXECUTE FUNCTION public.note_run();
CREATE TRIGGER note_entry AFTER UPDATE OR DELETE ON outlast.entry FOR EACH ROW EXECUTE FUNCTION public.note_entry();
"""


class Written(NamedTuple):
    """One write to a run's row."""

    number: int
    tenant: str
    run_id: str
    status: str
    written_by: str
    was_owner: str | None
    was_epoch: int
    was_version: int
    owner: str | None
    epoch: int
    version: int
    lease_left: int | None


def worker_name(pid: int) -> str:
    """Return the name of a worker process, with which the ids of its lives begin."""
    return f"chaos-{pid}"


def begin_audit(connection: psycopg.Connection[Any]) -> None:
    """Have everything noted from now on."""
    connection.execute(_TRIGGERS.encode())


def check_audit(connection: psycopg.Connection[Any], *, leases: bool) -> None:
    """No entry was ever changed; one worker wrote under each epoch, each version once, and none after the end of its lease.

    Args:
        leases: The server's clock was not set meanwhile, so that it says which leases were over.
    """
    assert connection.execute("SELECT * FROM public.rewritten").fetchall() == []
    holders: dict[tuple[str, int], str] = {}
    rows = connection.execute("SELECT * FROM public.audit ORDER BY number").fetchall()
    for row in map(Written._make, rows):
        _check_numbers(row)
        if row.owner is not None:
            first = holders.setdefault((row.run_id, row.epoch), row.owner)
            assert first == row.owner, f"two workers under one epoch, {first} before: {row}"
        if row.version > row.was_version and row.was_owner is not None:
            _check_author(row, leases=leases)


def _check_numbers(row: Written) -> None:
    assert row.version - row.was_version in (0, 1), f"a version was left out: {row}"
    assert row.epoch - row.was_epoch in (0, 1), f"an epoch was left out: {row}"
    is_taken = row.owner is not None and row.owner != row.was_owner
    assert not is_taken or row.epoch > row.was_epoch, f"taken under an old epoch: {row}"


def _check_author(row: Written, *, leases: bool) -> None:
    if row.status == "terminated":
        return
    assert row.was_owner is not None
    is_his = row.was_owner.startswith(f"{row.written_by}-")
    assert is_his, f"written by another than the owner: {row}"
    if leases:
        assert row.lease_left is not None, f"written by a worker that is no more: {row}"
        assert row.lease_left > 0, f"written after the end of the lease: {row}"
