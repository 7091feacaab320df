"""The SQLite store passes the suite, and finds by an index whatever the suite asks it for."""

import asyncio
import re
from contextlib import asynccontextmanager

import apsw
import pytest

from outlast.store.sqlite import figures
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import Bench, ManualClock, StoreConformance

TABLES = (
    "run",
    "entry",
    "operation",
    "message",
    "outbox",
    "approval",
    "task",
    "watch",
    "request",
    "notice",
)
"""Tables that grow with what is stored."""

EXPLAINED = re.compile(r"\s*(SELECT|UPDATE|DELETE|WITH|INSERT|REPLACE)\b")
STEP = re.compile(r"(SCAN|SEARCH) (\w+)")
OF_ONE_RUN = re.compile(r"\brun_id = \?")

LISTS = (
    "FROM outbox WHERE (at <= ? OR at > ?)",
    "FROM outbox WHERE tenant = ? AND run_id = ? AND (at <= ? OR at > ?)",
    "FROM approval WHERE tenant = ? AND run_id = ? ",
    "FROM run WHERE owner = ? ORDER BY",
    "SELECT tenant, run_id FROM run WHERE owner = ? AND mail = 1",
    "UPDATE run SET released = 0, restored_at",
)
"""Statements that may go through all of what they list, or sort it: in the order of an index up to their limit, or few rows."""

COUNTS = {
    " ".join(sql.split())
    for name, sql in vars(figures).items()
    if isinstance(sql, str) and "SELECT" in sql
}
"""Statements that count: they may group what they find, and go through an index in which only what is open stands."""

OPEN_ONLY = (
    "run_lapsed",
    "run_owner",
    "operation_doubt",
    "approval_pending",
    "notice_due",
    "outbox_age",
    "task_due",
)
"""Partial indexes: rows of runs that have ended are in none of them."""


def faults_of(sql, plan):
    """Return what is wrong with how a statement is carried out: a table that is read as a whole, a sort, a run's rows found by another key."""
    is_list = any(one in sql for one in LISTS)
    is_count = "count(*)" in sql and sql in COUNTS
    names = {alias: table for table, alias in re.findall(r"\b(\w+) AS (\w+)", sql)}
    for line in plan:
        found = STEP.match(line)
        table = names.get(found[2], found[2]) if found else ""
        if found and table in TABLES:
            if found[1] == "SCAN":
                if not (
                    is_list or (is_count and any(f" INDEX {one}" in line for one in OPEN_ONLY))
                ):
                    yield line
            elif OF_ONE_RUN.search(sql) and "run_id=?" not in line:
                yield f"{line}: not by the run"
        elif "TEMP B-TREE" in line and not (is_list or is_count):
            yield line


class Plans:
    """Explains each statement once, with the values that it was first run with."""

    def __init__(self):
        self.known = {}

    def trace(self, _cursor, sql, bindings):
        """Note a statement before it runs."""
        if EXPLAINED.match(sql):
            self.known.setdefault(sql, bindings)
        return True

    def faults(self, path):
        """Return what is wrong with those that are new."""
        database = apsw.Connection(str(path))
        try:
            for sql, bindings in self.known.items():
                text = " ".join(sql.split())
                if bindings is EXPLAINED:
                    continue
                self.known[sql] = EXPLAINED
                plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
                for fault in faults_of(text, plan):
                    yield f"{fault}: {text}"
        finally:
            database.close()


PLANS = Plans()


class TestSQLite(StoreConformance):
    """Every promise, kept in a file."""

    @pytest.fixture
    def open_store(self, tmp_path):
        """Open a store on a clock that stands."""

        @asynccontextmanager
        async def opened():
            clock = ManualClock()
            path = tmp_path / "store.db"
            store = await open_sqlite(path, clock=clock)
            for database in (*store._open_writers, *store._open_readers):
                database._connection.exec_trace = PLANS.trace
            try:
                yield Bench(store, clock)
                assert list(PLANS.faults(path)) == []
            finally:
                await store.abandon()

        return opened


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT body FROM message WHERE body = ?", "SCAN message"),
        ("SELECT seq FROM entry AS one WHERE one.kind = ? ORDER BY at", "SCAN one"),
        ("UPDATE run SET note = ? WHERE status = 'failed'", "SCAN run"),
        (
            "SELECT body FROM approval INDEXED BY approval_pending WHERE tenant = ? AND run_id = ?2 AND state = 'pending'",
            "not by the run",
        ),
        (
            "SELECT at FROM message WHERE tenant = ? AND run_id = ?2 ORDER BY at",
            "TEMP B-TREE",
        ),
        ("SELECT at FROM message WHERE tenant = ? AND run_id = ?2 ORDER BY number", ""),
    ],
)
def test_bad_plans_are_found(tmp_path, sql, said):
    """The law can fail: a table read as a whole, a sort, and a way to a run's rows past its key are each told."""
    path = tmp_path / "store.db"

    async def make():
        await (await open_sqlite(path, clock=ManualClock())).close()

    asyncio.run(make())
    plans = Plans()
    plans.trace(None, sql, ("a", "b")[: sql.count("?")])
    found = " ".join(plans.faults(path))
    assert said in found if said else found == ""
