"""Who is buried, when somebody sets the server's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from outlast.app import SystemClock
from outlast.store.change import WorkerId, WorkerRow
from outlast.store.postgres.claim import Leasing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.schema import bring_up_to_date
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import read_setting

LEASE = timedelta(seconds=15)
SHIFTED = """
CREATE OR REPLACE FUNCTION outlast.micros() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {} $$
"""


class LaterClock(SystemClock):
    """A clock that can be moved on, with the server's."""

    later = 0.0

    def monotonic(self) -> float:
        """Return the seconds since boot, and those that it was moved on."""
        return super().monotonic() + self.later


@contextmanager
def two_workers(
    url: str, clock: SystemClock | None = None
) -> Iterator[tuple[Session, Leasing, psycopg.Connection]]:
    """Give a session, what leases by it, and another connection; `w1` and `w2` are registered."""
    setting = read_setting(url)
    session = Session(setting)
    bring_up_to_date(session, setting)
    leasing = Leasing(session, StoreClock(clock or SystemClock()))
    for name in ("w1", "w2"):
        leasing.register(WorkerRow(WorkerId(name), "host", 7, "b", ("w",), LEASE))
    try:
        with psycopg.connect(url, autocommit=True) as other:
            yield session, leasing, other
    finally:
        session.close()


def bury(session: Session, leasing: Leasing) -> list[str]:
    """Bury the dead as `w2`; return who they were."""
    with session.pipeline():
        session.send("BEGIN")
        found = leasing.bury(WorkerId("w2"))
        session.send("COMMIT")
    return list(found)


def test_clock_set_since_the_last_look_buries_nobody(postgres_url: str) -> None:
    """Between the look that finds somebody to bury and the burial the clock may be set forward by an hour: who lives is let live."""
    with two_workers(postgres_url) as (session, leasing, other):
        other.execute(SHIFTED.format("3600000000").encode())
        assert bury(session, leasing) == []
        assert other.execute("SELECT count(*) FROM outlast.worker").fetchone() == (2,)


def test_lease_that_is_over_is_buried(postgres_url: str) -> None:
    """Where no clock was set, and the time of a lease has passed since this process has seen the server's, it is."""
    clock = LaterClock()
    with two_workers(postgres_url, clock) as (session, leasing, other):
        other.execute(SHIFTED.format("20000000").encode())
        clock.later = 20.0
        assert bury(session, leasing) == ["w1"]


def test_who_has_just_come_buries_nobody(postgres_url: str) -> None:
    """A lease may seem to be over because somebody has set the clock, which a process that was not there cannot know."""
    with two_workers(postgres_url) as (session, leasing, other):
        other.execute("UPDATE outlast.worker SET renewed = renewed - 20000000 WHERE worker = 'w1'")
        assert bury(session, leasing) == []
