"""What is known of runs without reading them: never more than the server is asked about, and never of another connection."""

from __future__ import annotations

import asyncio

import psycopg

from outlast.app import SystemClock
from outlast.errors import StoreUnavailableError
from outlast.store.change import Applied, Change, HeadUpdate, RunKey, Status, Verdict
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import PostgresStore, open_postgres
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import following, sending

RUN = RunKey("default", "run")
OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


async def written(store: PostgresStore, change: Change) -> Verdict:
    """Send a change until the store says what became of it."""
    for _ in range(100):
        try:
            (verdict,) = await store.commit([change])
        except StoreUnavailableError:
            continue
        if type(verdict).__name__ != "Unknown":
            return verdict
    raise AssertionError("the store is away for good")


def test_rows_that_are_known_of_another_connection_count_no_more(postgres_url: str) -> None:
    """A server that lost commits may count its writes up to the same number: what was known is not written over what is there."""

    async def main() -> None:
        store = await open_postgres(read_setting(postgres_url), clock=SystemClock())
        bench = Bench(store, ManualClock())
        head = await bench.owned()
        await bench.apply(following(head))
        other_run = await bench.start("other", worker=head.owner)
        await bench.apply(following(await bench.head(other_run)))
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("UPDATE outlast.run SET version = 0, fingerprint = 'lost'")
            other.execute(OTHERS.encode())
        # The connection is found to be lost by a commit of one run; the other is known as it was before.
        for run in (RUN, other_run):
            assert isinstance(await written(store, sending(run)), Applied)
        head = await bench.head(other_run)
        assert (head.version, head.fingerprint) == (0, "lost")
        await store.close()

    asyncio.run(main())


def test_a_message_that_was_consumed_is_known_where_its_like_is_refused(postgres_url: str) -> None:
    """Sent again to a run that takes no more messages it is the same message, and was delivered."""

    async def main() -> None:
        store = await open_postgres(read_setting(postgres_url), clock=SystemClock())
        bench = Bench(store, ManualClock())
        head = await bench.owned()
        first = await bench.apply(sending(RUN))
        ending = HeadUpdate(status=Status.RUNNING, ending=True)
        await bench.apply(following(head, consumed=("m1",), head=ending))
        assert await bench.one(sending(RUN)) == first
        assert not isinstance(await bench.one(sending(RUN, "m2")), Applied)
        await store.close()

    asyncio.run(main())
