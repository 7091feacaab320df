"""Requests under an idempotency key, as whoever handles them and whoever operates them sees them."""

import asyncio
import hashlib
import logging
import random
from datetime import timedelta

import apsw
import pytest

import outlast
from outlast.client import Client
from outlast.errors import (
    DefinitionError,
    EncodeError,
    RequestStateError,
    StoreCorruptError,
    StoreUnavailableError,
)
from outlast.store.bound import MAX_BODY_BYTES
from outlast.store.memory import MemoryStore
from outlast.store.sqlite.store import open_sqlite
from outlast.testing import Faults, FaultyStore, SeededRandom
from outlast.testing.conformance import ManualClock

HOLD = timedelta(minutes=1)
KEEP = timedelta(days=1)
KEY = "POST /orders ann 4711"
TIMES = {"hold": HOLD, "keep": KEEP}


class Desk:
    """A client on a clock that stands."""

    def __init__(self, store=None, tenant="default"):
        self.clock = ManualClock()
        self.store = store or MemoryStore(self.clock)
        random_source = SeededRandom(1)
        self.client = Client(self.store, random=random_source, tenant=tenant, principal="root")
        self.requests = self.client.requests

    async def begin(self, token="t1", **fields):
        """Begin the request."""
        return await self.requests.begin(
            KEY, **{"fingerprint": "f", "token": token, **TIMES, **fields}
        )

    async def doubt(self):
        """Begin it, and leave it."""
        begun = await self.begin()
        self.clock.advance(HOLD)
        return begun


@pytest.fixture
def on_desk():
    """Run a scenario."""

    def run(test):
        async def main():
            return await test(Desk())

        return asyncio.run(main())

    return run


def test_first_answer_is_every_answer(on_desk):
    """One begins and ends it; whoever comes with the key later is shown the answer, and that it is not his."""

    async def test(desk):
        begun = await desk.begin(note=b"POST /orders")
        assert (begun.state, begun.token, begun.note) == ("running", "t1", b"POST /orders")
        assert (begun.answer, begun.expires_at, begun.now) == (None, None, desk.clock.now())
        assert begun.held_until == desk.clock.now() + HOLD
        other = await desk.begin("t2", fingerprint="g")
        assert other == begun
        done = await desk.requests.end(KEY, "t1", b"201", KEEP)
        assert (done.state, done.answer) == ("done", b"201")
        assert done.expires_at == desk.clock.now() + KEEP
        assert await desk.begin("t2") == done == await desk.requests.get(KEY)
        assert await desk.begin("t1") == done
        desk.clock.advance(KEEP)
        assert await desk.requests.get(KEY) is None
        assert (await desk.begin("t2")).token == "t2"

    on_desk(test)


def test_what_did_not_happen_leaves_nothing(on_desk, caplog):
    """The record goes, another begins, and nobody is warned."""

    async def test(desk):
        await desk.begin()
        assert await desk.requests.end(KEY, "t1", None, KEEP) is None
        assert await desk.requests.get(KEY) is None
        assert (await desk.begin("t2")).token == "t2"

    on_desk(test)
    assert caplog.records == []


def test_holding(on_desk):
    """It is held on by its own token as long as it runs; afterwards it is in doubt, and in nobody else's hands."""

    async def test(desk):
        await desk.begin()
        assert await desk.requests.hold(KEY, "t2", HOLD) is False
        desk.clock.advance(HOLD)
        assert (await desk.requests.get(KEY)).state == "in doubt"
        assert (await desk.begin("t2")).state == "in doubt"
        assert await desk.requests.hold(KEY, "t1", HOLD) is True
        assert (await desk.requests.get(KEY)).state == "running"
        await desk.requests.end(KEY, "t1", b"201", KEEP)
        assert await desk.requests.hold(KEY, "t1", HOLD) is False
        assert await desk.requests.hold("other", "t1", HOLD) is False

    on_desk(test)


def test_key_is_kept_nowhere(tmp_path, caplog):
    """What is stored and logged is a hash over tenant and key; the file does not hold the text."""

    async def main():
        clock = ManualClock()
        store = await open_sqlite(tmp_path / "s.db", clock=clock)
        key = "4711-very-easily-guessed"
        ids = set()
        for tenant in ("default", "acme"):
            requests = Client(store, random=SeededRandom(1), tenant=tenant).requests
            given = {"fingerprint": "f", "token": "t", **TIMES}
            begun = await requests.begin(key, **given)
            await requests.end(key, "u", b"x", KEEP)
            assert begun.request_id == hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()
            ids.add(begun.request_id)
        assert len(ids) == 2
        assert (await requests.begin("\udcff\0", **given)).state == "running"
        await store.close()
        return key.encode()

    key = asyncio.run(main())
    assert all(key not in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert "late" in caplog.text
    assert key.decode() not in caplog.text


def test_one_of_many_begins(tmp_path):
    """However many come with a key at once, through two stores on one file, exactly one has it."""

    async def main():
        clock = ManualClock()
        stores = [await open_sqlite(tmp_path / "s.db", clock=clock) for _ in range(2)]
        clients = [Client(store, random=SeededRandom(1)) for store in stores]

        async def begin(number):
            token = f"t{number}"
            given = {"fingerprint": "f", "token": token, **TIMES}
            return token == (await clients[number % 2].requests.begin(KEY, **given)).token

        won = await asyncio.gather(*(begin(number) for number in range(40)))
        for store in stores:
            await store.close()
        return won

    assert sum(asyncio.run(main())) == 1


@pytest.mark.parametrize("seed", range(6))
def test_lost_answers_change_nothing(seed):
    """Over a store that loses requests and answers, each change has its one effect, and its sender learns of it."""

    async def main():
        clock = ManualClock()
        faults = Faults(lost_request=0.3, lost_answer=0.3)
        store = FaultyStore(MemoryStore(clock), random.Random(seed), faults=faults)
        desk = Desk(store)
        desk.clock = clock
        outcomes = {}
        for number in range(6):
            key, token = f"k{number}", f"t{number}"
            given = {"fingerprint": "f", "token": token, **TIMES}
            assert (await desk.requests.begin(key, **given)).token == token
            answer = (b"201", None)[number % 2]
            if number < 3:
                done = await desk.requests.end(key, token, answer, KEEP)
                assert (done and done.answer) == answer
            outcomes[key] = answer
        clock.advance(HOLD)
        for number in range(3, 6):
            row = await store._inner.request("default", desk.requests._id_of(f"k{number}"))
            await desk.requests.resolve(
                row.request_id, answer=outcomes[f"k{number}"], reason="x", seen_token=row.token
            )
        store.faults = Faults()
        for key, answer in outcomes.items():
            found = await desk.requests.get(key)
            assert (found and found.answer) == answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("outlast.client.client._UNKNOWN_WAIT_SECONDS", 0)
        asyncio.run(main())


def test_operator_s_answer(on_desk, caplog):
    """What an operator says of a request in doubt is answered from then on; a late outcome is a warning, and changes nothing."""

    async def test(desk):
        begun = await desk.doubt()
        await desk.requests.resolve(
            begun.request_id, answer=b"200", reason="in the books", seen_token=begun.token
        )
        done = await desk.begin("t2")
        assert (done.state, done.answer, done.by, done.reason) == (
            "done",
            b"200",
            "root",
            "in the books",
        )
        assert done.resolved_at == desk.clock.now()
        assert done.expires_at == desk.clock.now() + KEEP
        assert caplog.records == []
        assert await desk.requests.end(KEY, "t1", b"201", KEEP) == done
        assert await desk.requests.end(KEY, "t1", None, KEEP) == done

    on_desk(test)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "came late: what root said before stands" in caplog.text


def test_freed_by_an_operator(on_desk, caplog):
    """The key is free; the outcome of the one that was thought not to have happened comes too late, and both are told."""

    async def test(desk):
        begun = await desk.doubt()
        given = {"answer": None, "reason": "not in the books", "seen_token": begun.token}
        await desk.requests.resolve(begun.request_id, **given)
        assert await desk.requests.get(KEY) is None
        freed = await desk.requests.find(begun.request_id)
        assert (freed.state, freed.by, freed.answer) == ("freed", "root", None)
        assert [one.state for one in await desk.requests.list()] == ["freed"]
        again = await desk.begin("t2")
        assert again.token == "t2"
        assert await desk.requests.end(KEY, "t1", b"201", KEEP) == again

    on_desk(test)
    assert "another request has begun under its key since" in caplog.text


def test_happened_after_all(on_desk, caplog):
    """As long as nobody has begun anew, the outcome of a freed request is recorded, so that it is not done again."""

    async def test(desk):
        begun = await desk.doubt()
        given = {"answer": None, "reason": "not in the books", "seen_token": begun.token}
        await desk.requests.resolve(begun.request_id, **given)
        done = await desk.requests.end(KEY, "t1", b"201", KEEP)
        assert (done.state, done.answer, done.reason) == ("done", b"201", "not in the books")
        assert await desk.begin("t2") == done

    on_desk(test)
    assert "root had resolved it before" in caplog.text


def test_late_end_of_what_has_gone(on_desk, caplog):
    """There is nothing to show; that another may do the same again is said."""

    async def test(desk):
        await desk.begin()
        await desk.requests.end(KEY, "t1", None, KEEP)
        assert await desk.requests.end(KEY, "t1", b"201", KEEP) is None

    on_desk(test)
    assert "its record has gone" in caplog.text


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("unknown", "there is no request"),
        ("mismatch", "another request has begun"),
        ("running", "still holds it"),
        ("done", "it is done"),
        ("freed", "did not happen"),
    ],
)
def test_refused_resolutions(on_desk, reason, said):
    """Each says why, and what to do."""

    async def test(desk):
        begun = await desk.begin()
        request_id, token = begun.request_id, begun.token
        resolve = desk.requests.resolve
        if reason != "running":
            desk.clock.advance(HOLD)
        if reason == "unknown":
            request_id = "0" * 64
        if reason == "mismatch":
            token = "t9"
        if reason == "done":
            await desk.requests.end(KEY, "t1", b"201", KEEP)
        if reason == "freed":
            await resolve(request_id, answer=None, reason="a", seen_token=token)
        before = await desk.requests.find(begun.request_id)
        with pytest.raises(RequestStateError, match=said) as caught:
            await resolve(request_id, answer=b"x", reason="b", seen_token=token)
        assert caught.value.reason == reason
        assert caught.value.hint
        assert await desk.requests.find(begun.request_id) == before

    on_desk(test)


def test_lists(on_desk):
    """By state, in pages, newest first, without answers."""

    async def test(desk):
        given = {"fingerprint": "f", **TIMES}
        for number in range(4):
            await desk.requests.begin(f"k{number}", token=f"t{number}", **given)
            desk.clock.advance(timedelta(seconds=1))
        await desk.requests.end("k0", "t0", b"201", timedelta(seconds=1))
        await desk.requests.end("k1", "t1", b"201", KEEP)
        desk.clock.advance(HOLD)

        async def tokens(**wanted):
            return [one.token for one in await desk.requests.list(**wanted)]

        assert await tokens() == ["t3", "t2", "t1"]
        assert await tokens(state="in doubt") == ["t3", "t2"]
        assert await tokens(state="done") == ["t1"]
        assert await tokens(state="expired") == ["t0"]
        (first,) = await desk.requests.list(limit=1)
        assert await tokens(before=first) == ["t2", "t1"]
        assert {one.answer for one in await desk.requests.list()} == {None}
        with pytest.raises(DefinitionError, match="no request has the state 'doubt'"):
            await desk.requests.list(state="doubt")
        with pytest.raises(DefinitionError, match="a page of -1 requests"):
            await desk.requests.list(limit=-1)

    on_desk(test)


def test_purge(on_desk, monkeypatch):
    """All that have expired go, however many, and nothing else."""

    async def test(desk):
        given = {"fingerprint": "f", **TIMES}
        for number in range(7):
            await desk.requests.begin(f"k{number}", token="t", **given)
            await desk.requests.end(f"k{number}", "t", b"", KEEP)
        await desk.begin()
        desk.clock.advance(KEEP)
        assert await desk.requests.purge() == 7
        assert await desk.requests.purge() == 0
        assert [one.state for one in await desk.requests.list()] == ["in doubt"]
        assert await desk.requests.list(state="expired") == []

    monkeypatch.setattr("outlast.client.request._PURGED_AT_ONCE", 3)
    on_desk(test)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hold": 60}, "the hold of a request is 60, and no timedelta"),
        ({"keep": timedelta(0)}, "the keep of a request"),
        ({"hold": timedelta(days=40_000)}, "shorter than a hundred years"),
        ({"token": b"t"}, "the token of a request is b't', and no str"),
        ({"fingerprint": "a\0b"}, "without NUL"),
        ({"note": "text"}, "the note of a request is 'text', and no bytes"),
    ],
)
def test_what_cannot_be_meant(on_desk, fields, said):
    """Bad input is refused before anything is sent, and says what to give."""

    async def test(desk):
        with pytest.raises(DefinitionError, match=said):
            await desk.begin(**fields)
        assert await desk.requests.get(KEY) is None

    on_desk(test)


def test_key_and_id_that_cannot_be(on_desk):
    """A key is text, and an id is a hash."""

    async def test(desk):
        with pytest.raises(DefinitionError, match="is no idempotency key"):
            await desk.requests.get(4711)
        for request_id in ("4711", None, "A" * 64):
            with pytest.raises(DefinitionError, match="the id of no request"):
                await desk.requests.resolve(request_id, answer=None, reason="", seen_token="t")
        large = bytes(MAX_BODY_BYTES + 1)
        await desk.begin()
        with pytest.raises(EncodeError, match="more than 64 MiB"):
            await desk.requests.end(KEY, "t1", large, KEEP)
        assert (await desk.requests.get(KEY)).state == "running"

    on_desk(test)


def test_record_that_cannot_be_read(tmp_path):
    """Whoever comes with the key is told of damage, and does not begin."""

    async def main():
        desk = Desk(await open_sqlite(tmp_path / "s.db", clock=ManualClock()))
        await desk.begin()
        other = apsw.Connection(str(tmp_path / "s.db"))
        other.execute("UPDATE request SET state = 'odd'")
        other.close()
        for ask in (
            desk.begin("t2"),
            desk.requests.end(KEY, "t1", b"", KEEP),
            desk.requests.get(KEY),
        ):
            with pytest.raises(StoreCorruptError):
                await ask
        await desk.store.close()

    asyncio.run(main())


def test_store_that_is_away():
    """Nothing was begun, and that is what is said."""

    async def main():
        clock = ManualClock()
        store = FaultyStore(MemoryStore(clock), random.Random(1), faults=Faults(down=True))
        with pytest.raises(StoreUnavailableError):
            await Desk(store).begin()

    asyncio.run(main())


def test_in_an_app():
    """The worker of an app writes requests with what its runs write."""

    async def main():
        async with outlast.open("memory://") as app:
            given = {"fingerprint": "f", "token": "t", **TIMES}
            assert (await app.requests.begin(KEY, **given)).state == "running"
            assert (await app.requests.end(KEY, "t", b"201", KEEP)).answer == b"201"

    asyncio.run(main())
