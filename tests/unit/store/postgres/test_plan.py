"""What has ended costs nothing: what looks at open runs, or marks them, does not read the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from outlast.app import SystemClock
from outlast.store.figures import OPEN
from outlast.store.postgres import checkup
from outlast.store.postgres.claim import Leasing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.figures import figures
from outlast.store.postgres.row import RUN
from outlast.store.postgres.schema import bring_up_to_date
from outlast.store.postgres.session import Pending, Session
from outlast.store.postgres.setting import read_setting

ENDED = 20_000
MOST_BLOCKS = 100
"""Of tables and indexes: ended runs fill many hundred."""
RUNS = """
INSERT INTO outlast.run ({columns}) SELECT 'default', 'run-' || number, 1, 'fix', '', status, CASE status WHEN 'blocked' THEN 'in doubt' ELSE '' END,
    NULL, 1, 1, 1, '', NULL, 0, 0, number, number, '', '', 1, '', 0, NULL, NULL, NULL, 0, NULL, 0, '', 0, 0, 0, 0, 0
FROM (SELECT number, CASE WHEN number <= {ended} THEN 'completed' ELSE (ARRAY{statuses})[1 + number % {count}] END AS status
    FROM generate_series(1, {all}) AS number) AS made
"""
LIMITED = """
CREATE FUNCTION outlast.limited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('statement_timeout') <> '0' OR current_setting('lock_timeout') <> '0' THEN
        RAISE EXCEPTION 'it may end too early';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER limited BEFORE UPDATE ON outlast.run FOR EACH ROW EXECUTE FUNCTION outlast.limited();
"""


class RecordingSession(Session):
    """One that remembers what it has sent."""

    sent: list[tuple[str, Sequence[Any]]]

    def send(self, sql: str, values: Sequence[Any] = ()) -> Pending:
        """Send and remember it."""
        self.sent.append((sql, values))
        return super().send(sql, values)


@pytest.fixture(params=[0, 3], ids=["whole", "partitioned"])
def session(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[RecordingSession]:
    """A store of thousands of runs that have ended and two of each open status."""
    setting = read_setting(postgres_url)
    session = RecordingSession(setting)
    session.sent = []
    bring_up_to_date(session, setting, partitions=request.param)
    statuses = [status.value for status in OPEN]
    runs = RUNS.format(
        columns=RUN, ended=ENDED, statuses=statuses, count=len(OPEN), all=ENDED + 2 * len(OPEN)
    )
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(runs.encode())
        connection.execute(b"ANALYZE")
    session.sent.clear()
    yield session
    session.close()


def read_by(session: Session, sql: str, values: Sequence[Any]) -> int:
    """Return how many blocks of runs, and of their indexes, a statement reads; what it does is undone."""
    with session.connection.transaction(force_rollback=True):
        rows = session.connection.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + session.statements(sql), values
        ).fetchall()
    plan = rows[0][0]
    return counted((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])


def counted(node: dict[str, Any]) -> int:
    """Return how many blocks the scans of runs read in a plan."""
    if "Scan" in node["Node Type"] and re.fullmatch(r"run(_\d+)?", node.get("Relation Name", "")):
        return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])
    return sum(map(counted, node.get("Plans", ())))


def are_light(session: RecordingSession) -> None:
    """No statement that was sent reads the runs that have ended."""
    looks = [(sql, values) for sql, values in session.sent if "$s.run" in sql]
    assert looks
    for sql, values in looks:
        assert read_by(session, sql, values) < MOST_BLOCKS, sql


@pytest.mark.parametrize("tenant", ["", "default"])
def test_figures(session: RecordingSession, tenant: str) -> None:
    """Those that each worker reads every ten seconds."""
    found = figures(session, StoreClock(SystemClock()), tenant)
    assert found.runs == {status.value: 2 for status in OPEN}
    assert found.blocked == {"in doubt": 2}
    are_light(session)


def test_doctor(session: RecordingSession) -> None:
    """What it counts."""
    for sql in (checkup._OPEN_RUNS, checkup._MOVABLE, checkup._OLDER):
        session.rows(sql)
    are_light(session)


def test_a_new_timeline(session: RecordingSession) -> None:
    """It marks what is open."""
    assert Leasing(session, StoreClock(SystemClock())).begin_timeline("t", "a test")
    are_light(session)
    ((marked, until),) = session.rows(
        "SELECT count(*), max(restored_until) FROM $s.run WHERE restored_at IS NOT NULL"
    )
    assert (marked, until) == (2 * len(OPEN), ENDED + 2 * len(OPEN))


def test_a_new_timeline_has_no_limit(session: RecordingSession, postgres_url: str) -> None:
    """It is not given up because the store is large, or somebody is in the way, whatever the user's limits are."""
    database = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(LIMITED.encode())
        connection.execute(f"ALTER DATABASE {database} SET statement_timeout = '1h'".encode())
    session.close()
    assert Leasing(session, StoreClock(SystemClock())).begin_timeline("t", "a test")
    ((limit,),) = session.rows("SELECT current_setting('lock_timeout')")
    assert limit == "10s"
