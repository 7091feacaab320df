"""A damaged row is its own run's trouble: nobody else's write is refused, nobody else's claim is stopped."""

import asyncio
import logging
from datetime import timedelta

import apsw
import pytest
from msgspec.structs import replace

from outlast.client import Client
from outlast.errors import DecisionRefusedError, StoreCorruptError, StoreUnavailableError
from outlast.policy.authority import StoreAuthority
from outlast.policy.binding import Bindings, RoleBinding, first_bindings
from outlast.store.beat import silent_at
from outlast.store.change import (
    Applied,
    BeatOperation,
    ClearOutbox,
    Decide,
    Message,
    MessageKind,
    OperationDrop,
    OperationPut,
    OutboxItem,
    OutboxKind,
    PutControl,
    Refused,
    RevokeSticky,
    RunKey,
    Status,
    Terminate,
    WorkerId,
)
from outlast.store.sqlite import damage, transaction
from outlast.store.sqlite.checkup import examine
from outlast.store.sqlite.store import open_sqlite
from outlast.store.sticky_condition import StickyFilter, vote_of
from outlast.testing import SeededRandom
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.approval import deciding as saying
from outlast.testing.conformance.bench import LEASE, asking, following, parking, sending, starting
from outlast.testing.conformance.request import EVERY, beginning, ending_of
from outlast.testing.conformance.sticky import answers, asked, found, sticking, stuck


@pytest.fixture
def with_bench(tmp_path):
    """Run a scenario on a new file, with a way to damage it behind the store's back."""

    def run(test):
        async def main():
            clock = ManualClock()
            path = tmp_path / "s.db"
            store = await open_sqlite(path, clock=clock)

            def damage(statement):
                other = apsw.Connection(str(path))
                other.execute(statement)
                assert other.changes() == 1
                other.close()

            try:
                return await test(Bench(store, clock), damage)
            finally:
                await store.abandon()

        damage._say_once.cache_clear()
        return asyncio.run(main())

    return run


def deciding(run):
    """Return a decision on the request `a1`."""
    message = Message("d1", MessageKind.DECISION, "a1", "bob", b"{}")
    return Decide(run, "a1", "s", True, "bob", message)


@pytest.mark.parametrize("column", ["spent", "covers", "terms", "persons", "votes"])
def test_damaged_approval_refuses_its_own_change_alone(with_bench, column):
    """The change that meets it is refused as corrupt and writes nothing; those in the same commit are applied."""

    async def test(bench, damage):
        head = await bench.owned("victim")
        await bench.apply(following(head, approvals=(asking(bench.clock),)))
        innocent = await bench.head(await bench.start("innocent", worker=WorkerId("w1")))
        damage(f"UPDATE approval SET {column} = 'no json'")
        changes = [following(innocent), deciding(head.run), starting("other")]
        verdicts = await bench.store.commit(changes)
        assert [type(verdict) for verdict in verdicts] == [Applied, Refused, Applied]
        assert verdicts[1] == Refused("corrupt", "DecodeError")
        assert await bench.store.mail(head.run) == ()
        assert (await bench.head(innocent.run)).version == 1
        # The lock was let go, and the run itself goes on where the row is not needed.
        await bench.apply(following(await bench.head(head.run)))

    with_bench(test)


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("x"), AssertionError(), RecursionError()]
)
def test_any_error_of_one_change_is_its_own(with_bench, monkeypatch, error):
    """Whatever one change raises, its neighbours are applied and nothing of it is written."""
    apply = transaction._apply

    def failing(writing, change):
        verdict = apply(writing, change)
        if change.run.run_id == "bad":
            raise error
        return verdict

    async def test(bench, damage):
        monkeypatch.setattr(transaction, "_apply", failing)
        names = ("a", "bad", "c")
        verdicts = await bench.store.commit([starting(name) for name in names])
        assert [type(verdict) for verdict in verdicts] == [Applied, Refused, Applied]
        assert verdicts[1] == Refused("corrupt", type(error).__name__)
        found = await bench.store.heads("default")
        assert {head.run.run_id for head in found} == {"a", "c"}

    with_bench(test)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (apsw.FullError("x"), StoreUnavailableError),
        (apsw.IOError("x"), StoreUnavailableError),
        (apsw.BusyError("x"), StoreUnavailableError),
        (apsw.CorruptError("x"), StoreCorruptError),
        (apsw.NotADBError("x"), StoreCorruptError),
        (MemoryError(), MemoryError),
    ],
)
def test_error_of_the_file_is_nobodys_verdict(with_bench, monkeypatch, error, told):
    """What the disk or the file's pages raise goes up, and nothing of the commit is written."""
    apply = transaction._apply

    def failing(writing, change):
        if change.run.run_id == "b":
            raise error
        return apply(writing, change)

    async def test(bench, damage):
        with monkeypatch.context() as patched:
            patched.setattr(transaction, "_apply", failing)
            with pytest.raises(told):
                await bench.store.commit([starting("a"), starting("b")])
        assert await bench.store.heads("default") == []
        await bench.start("a")

    with_bench(test)


def test_damaged_worker_stops_no_claim(with_bench):
    """A worker's row whose names cannot be read neither stops others nor hides; it is buried when it lapses."""

    async def test(bench, damage):
        head = await bench.owned("run", "w1")
        second = await bench.worker("w2", lease=timedelta(hours=1))
        await bench.start("other")
        damage("UPDATE worker SET workflows = 'no json' WHERE worker = 'w1'")
        assert (await bench.claim_one(second)).run.run_id == "other"
        listed = {
            one.row.worker: (one.live, one.row.workflows) for one in await bench.store.workers()
        }
        assert listed == {"w1": (True, ()), "w2": (True, ("fix",))}
        await bench.apply(following(head))
        assert bench.store.renew(WorkerId("w1")) is True
        bench.clock.advance(LEASE)
        assert (await bench.claim_one(second)).run == head.run

    with_bench(test)


@pytest.mark.parametrize(
    "damaging",
    [
        "status = 'dancing'",
        "status = 'completed'",
        f"created_at = {1 << 62}",
        f"wake_at = {1 << 62}",
    ],
)
def test_damaged_run_is_skipped(with_bench, caplog, damaging):
    """A run whose row makes no sense is left as it is, said once; those behind it are claimed, also one by one."""

    async def test(bench, damage):
        worker = await bench.worker()
        for name in ("a", "b", "c"):
            await bench.start(name)
        damage(f"UPDATE run SET {damaging} WHERE run_id = 'a'")
        taken = [(await bench.claim(worker, 1)).runs for _ in range(3)]
        names = [[one.head.run.run_id for one in runs] for runs in taken]
        assert names == [["b"], ["c"], []]

    with caplog.at_level(logging.WARNING, "outlast.store"):
        with_bench(test)
    (record,) = caplog.records
    assert "run a is never claimed" in record.getMessage()


def test_absurd_alarm_does_not_stop_claims(with_bench):
    """A time beyond the calendar is no time to come."""

    async def test(bench, damage):
        head = await bench.owned()
        await bench.apply(parking(head, wake_at=bench.clock.now() + timedelta(hours=1)))
        damage(f"UPDATE run SET due = {1 << 62}")
        assert (await bench.claim(WorkerId("w1"))).next_due is None

    with_bench(test)


@pytest.mark.parametrize("at", [-(1 << 63), -9_000_000_000_000_000_000, 1 << 62, (1 << 63) - 1])
def test_absurd_time_of_an_outbox_item_stops_nobody(with_bench, at):
    """What was claimed is told, at each look; the item is anybody's, and goes once the relay has seen to it."""

    async def test(bench, damage):
        head = await bench.owned("sender")
        await bench.apply(following(head, outbox=(OutboxItem(head.run, OutboxKind.CANCEL),)))
        damage(f"UPDATE outbox SET at = {at}")
        for name in ("a", "b"):
            await bench.start(name)
            claim = await bench.claim(WorkerId("w1"))
            assert [one.head.run.run_id for one in claim.runs] == [name]
            assert claim.next_relay is not None
            assert claim.next_relay <= claim.now
        listed = await bench.store.outbox(10, age=timedelta(seconds=2))
        assert [(run, item.number) for run, item in listed] == [(head.run, 1)]
        await bench.apply(ClearOutbox(head.run, (1,)))
        assert (await bench.claim(WorkerId("w1"))).next_relay is None

    with_bench(test)


@pytest.mark.parametrize(
    "damaging",
    [
        f"{column} = {value}"
        for column in ("changed_at", "created_at", "epoch", "version", "lapses", "outbox_number")
        for value in (-(1 << 63), (1 << 63) - 1)
    ],
)
def test_damaged_run_can_be_terminated(with_bench, damaging):
    """Whatever number of its row makes no sense, it can be ended, and its owner writes nothing more."""

    async def test(bench, damage):
        head = await bench.owned()
        damage(f"UPDATE run SET {damaging}")
        await bench.apply(Terminate(head.run, "alice", "enough"))
        with apsw.Connection(bench.store.describe()) as other:
            found = other.execute("SELECT status, owner FROM run").fetchall()
        other.close()
        assert found == [("terminated", None)]
        assert not isinstance(await bench.one(following(head)), Applied)

    with_bench(test)


@pytest.mark.parametrize("column", ["changed_at", "next_seq", "version"])
def test_change_that_meets_a_damaged_number_is_corrupt(with_bench, column):
    """The word says that the row is damaged, and not that the change cannot be kept."""

    async def test(bench, damage):
        head = await bench.owned()
        damage(f"UPDATE run SET {column} = {(1 << 63) - 1}")
        damaged = replace(head, **{column: (1 << 63) - 1}) if column != "changed_at" else head
        verdict = await bench.one(following(damaged))
        assert isinstance(verdict, Refused)
        assert verdict.reason == "corrupt"

    with_bench(test)


def test_unknown_message_kind_concerns_its_run_alone(with_bench):
    """A message that makes no sense does not keep its run, or another, from being claimed."""

    async def test(bench, damage):
        worker = await bench.worker()
        run = await bench.start("a")
        await bench.start("b")
        await bench.apply(sending(run))
        damage("UPDATE message SET kind = 'poem'")
        assert len((await bench.claim(worker)).runs) == 2

    with_bench(test)


def test_unknown_status_is_told_to_readers(with_bench):
    """Who looks at such a run learns what is wrong with which run."""

    async def test(bench, damage):
        await bench.start("a")
        damage("UPDATE run SET status = 'dancing'")
        with pytest.raises(StoreCorruptError, match="dancing") as caught:
            await bench.store.head(RunKey("default", "a"))
        assert caught.value.run == "a"

    with_bench(test)


def test_damaged_list_of_builds_refuses_its_own_change_alone(with_bench):
    """What is no list of builds keeps nobody from claiming others."""

    async def test(bench, damage):
        head = await bench.owned("a")
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1"))
        damage("UPDATE run SET unfit_builds = 'nonsense'")
        await bench.start("b")
        taken = (await bench.claim(WorkerId("w1"))).runs
        assert {one.head.run.run_id for one in taken} == {"a", "b"}

    with_bench(test)


NO_TEXT = "CAST(x'ff' AS TEXT)"
"""Text that is not UTF-8."""
FARTHEST = (1 << 63) - 1


def warned(caplog):
    """Return what was said."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("damaging", "key"),
    [
        *(
            (f"{column} = {NO_TEXT}", "a")
            for column in ("reason", "fingerprint", "status", "owner", "stopped_boot")
        ),
        (f"tenant = {NO_TEXT}", "\\xff/a"),
        (f"run_id = {NO_TEXT}", "\\xff"),
        (f"epoch = {FARTHEST}", "a"),
    ],
)
@pytest.mark.parametrize("limit", [1, 10])
def test_unreadable_due_run_is_skipped(with_bench, caplog, damaging, key, limit):
    """It is never claimed and said once, with its key; whoever stands behind it is claimed."""

    async def test(bench, damage):
        worker = await bench.worker()
        for name in ("a", "b", "c"):
            await bench.start(name)
        damage(f"UPDATE run SET {damaging} WHERE run_id = 'a'")
        taken = [(await bench.claim(worker, limit)).runs for _ in range(3)]
        assert [one.head.run.run_id for runs in taken for one in runs] == ["b", "c"]

    with caplog.at_level(logging.WARNING, "outlast.store"):
        with_bench(test)
    (said,) = warned(caplog)
    assert said.startswith(f"run {key} is never claimed: its row cannot be read")


@pytest.mark.parametrize("limit", [1, 10])
def test_run_that_cannot_be_taken_gives_its_place_to_another(with_bench, caplog, limit):
    """A statement that a row refuses is undone and said once; the claim goes on with the others."""

    async def test(bench, damage):
        worker = await bench.worker()
        for name in ("a", "b", "c"):
            await bench.start(name)
        other = apsw.Connection(bench.store.describe())
        other.execute(
            "CREATE TRIGGER t BEFORE UPDATE ON run WHEN old.run_id = 'a'"
            " BEGIN SELECT raise(ABORT, 'no'); END"
        )
        other.close()
        taken = [(await bench.claim(worker, limit)).runs for _ in range(3)]
        assert [one.head.run.run_id for runs in taken for one in runs] == ["b", "c"]
        assert (await bench.head(RunKey("default", "a"))).owner is None

    with caplog.at_level(logging.WARNING, "outlast.store"):
        with_bench(test)
    (said,) = warned(caplog)
    assert "run a is never claimed" in said


@pytest.mark.parametrize(
    "damaging",
    [
        *(
            f"{column} = {NO_TEXT}"
            for column in ("worker", "host", "build", "workflows", "queues", "boot")
        ),
        *(f"lease = {number}" for number in (FARTHEST, -FARTHEST - 1, -1)),
        *(f"renewed = {number}" for number in (FARTHEST, -FARTHEST - 1)),
        f"lease = {FARTHEST}, renewed = {FARTHEST}",
        f"lease = {-FARTHEST - 1}, renewed = {-FARTHEST - 1}",
    ],
)
def test_unreadable_worker_stops_nobody(with_bench, damaging):
    """Others claim on, and commit, and see who is there, whatever stands in its row; what it holds is not lost twice."""

    async def test(bench, damage):
        await bench.owned("held", "w1")
        second = await bench.worker("w2", lease=timedelta(hours=1))
        await bench.start("other")
        damage(f"UPDATE worker SET {damaging} WHERE worker = 'w1'")
        for _ in range(3):
            claim = await bench.claim(second)
            if claim.runs:
                break
        assert "other" in {one.head.run.run_id for one in claim.runs}
        assert "w2" in {one.row.worker for one in await bench.store.workers()}
        innocent = await bench.head(RunKey("default", "other"))
        await bench.apply(following(innocent))

    with_bench(test)


@pytest.mark.parametrize("column", ["build", "boot"])
def test_worker_whose_own_row_is_unreadable_learns_no_more_than_that(with_bench, column):
    """Its claims and renewals end with an answer: what cannot be read never raises."""

    async def test(bench, damage):
        worker = await bench.worker()
        await bench.start("a")
        damage(f"UPDATE worker SET {column} = {NO_TEXT}")
        claim = await bench.claim(worker)
        renewed = bench.store.renew(worker)
        assert (len(claim.runs), renewed) == ((1, True) if column == "build" else (0, False))

    with_bench(test)


def test_dead_worker_gives_back_beside_a_run_at_the_end_of_counting(with_bench):
    """A count of lapses that cannot grow keeps no other run of the same worker from being given back."""

    async def test(bench, damage):
        await bench.owned("a")
        await bench.start("b", worker=WorkerId("w1"))
        damage(f"UPDATE run SET lapses = {FARTHEST} WHERE run_id = 'a'")
        second = await bench.worker("w2", lease=timedelta(hours=9))
        bench.clock.advance(LEASE)
        assert "b" in {one.head.run.run_id for one in (await bench.claim(second)).runs}

    with_bench(test)


def test_burial_that_fails_is_undone_alone(with_bench, caplog):
    """A dead worker whose runs cannot be given back stays, said once; others are buried, and claims go on."""

    async def test(bench, damage):
        await bench.owned("a", "w1")
        await bench.owned("b", "w2")
        other = apsw.Connection(bench.store.describe())
        other.execute(
            "CREATE TRIGGER t BEFORE DELETE ON worker WHEN old.worker = 'w1'"
            " BEGIN SELECT raise(ABORT, 'no'); END"
        )
        other.close()
        bench.clock.advance(LEASE)
        third = await bench.worker("w3", lease=timedelta(hours=9))
        claims = [await bench.claim(third) for _ in range(2)]
        assert [one.head.run.run_id for claim in claims for one in claim.runs] == ["b"]
        assert (await bench.head(RunKey("default", "a"))).owner == "w1"

    with caplog.at_level(logging.WARNING, "outlast.store"):
        with_bench(test)
    (said,) = warned(caplog)
    assert "worker w1 is never buried" in said


HEAD_DAMAGE = [
    *(f"{column} = {NO_TEXT}" for column in ("reason", "fingerprint", "status", "workflow")),
    "status = 'dancing'",
    *(f"{column} = {FARTHEST}" for column in ("created_at", "changed_at", "wake_at")),
]


@pytest.mark.parametrize("damaging", [*HEAD_DAMAGE, f"run_id = {NO_TEXT}"])
def test_unreadable_run_is_left_out_of_lists(with_bench, caplog, damaging):
    """A page is as long as it would be without it; it is said once; and nobody else's list is lost."""

    async def test(bench, damage):
        for name in ("a", "b", "c", "d"):
            await bench.start(name)
        damage(f"UPDATE run SET {damaging} WHERE run_id = 'c'")
        for _ in range(2):
            page = await bench.store.heads("default", limit=2)
            assert [head.run.run_id for head in page] == ["d", "b"]
        everybody = await bench.store.heads("default", statuses=frozenset(Status))
        assert [head.run.run_id for head in everybody] == ["d", "b", "a"]

    with caplog.at_level(logging.WARNING, "outlast.store"):
        with_bench(test)
    (said,) = warned(caplog)
    assert "is left out of lists" in said


@pytest.mark.parametrize("damaging", HEAD_DAMAGE)
def test_unreadable_run_is_told_to_whoever_looks_at_it(with_bench, damaging):
    """Its own row raises the typed error that names it; what is wrong is said in one line."""

    async def test(bench, damage):
        run = await bench.start("a")
        damage(f"UPDATE run SET {damaging}")
        for look in (bench.store.head, bench.store.load, bench.store.journal):
            with pytest.raises(StoreCorruptError) as caught:
                await look(run)
            assert caught.value.run == "a"
            assert "\n" not in caught.value.message

    with_bench(test)


@pytest.mark.parametrize(
    "damaging",
    [
        f"UPDATE entry SET name = {NO_TEXT}",
        f"UPDATE entry SET at = {FARTHEST}",
        "UPDATE message SET kind = 'poem'",
        f"UPDATE message SET sender = {NO_TEXT}",
        f"UPDATE message SET at = {FARTHEST}",
        f"UPDATE operation SET due_at = {FARTHEST}",
        f"UPDATE operation SET heard_at = {FARTHEST}",
        f"UPDATE operation SET name = {NO_TEXT}",
        "UPDATE approval SET covers = 'no json'",
        f"UPDATE approval SET use_by = {FARTHEST}",
    ],
)
def test_unreadable_part_of_a_run_is_told_with_its_name(with_bench, damaging):
    """Whatever part cannot be read, the error is typed and names the run."""

    async def test(bench, damage):
        head = await bench.owned("a")
        put = OperationPut("r:1", "step", "s", 1, bench.clock.now(), b"")
        change = following(head, operations=(put,), approvals=(asking(bench.clock),))
        await bench.apply(change)
        await bench.apply(sending(head.run))
        other = apsw.Connection(bench.store.describe())
        other.execute(damaging)
        assert other.changes() > 0
        other.close()
        with pytest.raises(StoreCorruptError) as caught:
            await bench.store.load(head.run)
        assert caught.value.run == "a"

    with_bench(test)


@pytest.mark.parametrize(
    "damaging",
    [
        *(f"{column} = {NO_TEXT}" for column in ("role", "covers", "spent", "operation")),
        *(f"{column} = 'no json'" for column in ("covers", "spent", "terms", "persons", "votes")),
        *(f"{column} = '{{}}'" for column in ("covers", "spent", "terms", "persons", "votes")),
        *(f"{column} = {NO_TEXT}" for column in ("terms", "kind", "persons", "votes")),
        "kind = 'vote by show of hands'",
        """votes = '[{"by":"me","at":"2026-01-01T00:00:00"}]'""",
        """persons = '[["me"]]'""",
        *(f"{column} = {FARTHEST}" for column in ("requested_at", "expires_at", "use_by")),
        "covers = replace(hex(zeroblob(200000)), '00', '[')",
    ],
)
def test_unreadable_approval_is_left_out_of_lists(with_bench, damaging):
    """The others are listed; who asks for that run's is told by an error that names it."""

    async def test(bench, damage):
        for name in ("a", "b"):
            head = await bench.owned(name)
            await bench.apply(following(head, approvals=(asking(bench.clock),)))
        damage(f"UPDATE approval SET {damaging} WHERE run_id = 'a'")
        listed = await bench.store.approvals("default")
        assert [row.run.run_id for row in listed] == ["b"]
        with pytest.raises(StoreCorruptError) as caught:
            await bench.store.approvals("default", run=RunKey("default", "a"))
        assert caught.value.run == "a"

    with_bench(test)


@pytest.mark.parametrize(("column", "word"), [("state", "granted"), ("kind", "poll")])
def test_request_of_another_version_is_not_decided(with_bench, column, word):
    """A state or kind that nobody knows is not taken for one that a yes may close; it is named, and no other run is troubled."""

    async def test(bench, damage):
        head = await bench.owned("a")
        await bench.apply(following(head, approvals=(asking(bench.clock),)))
        other = await bench.owned("b", "w2")
        await bench.apply(following(other, approvals=(asking(bench.clock),)))
        damage(f"UPDATE approval SET {column} = '{word}' WHERE run_id = 'a'")
        changes = [deciding(head.run), deciding(other.run)]
        refused, applied = await bench.store.commit(changes)
        assert refused == Refused("corrupt", "StoreCorruptError")
        assert isinstance(applied, Applied)
        with pytest.raises(StoreCorruptError, match=f"a1 has the {column} '{word}'") as caught:
            await bench.store.load(head.run)
        assert caught.value.run == "a"
        listed = await bench.store.approvals("default", pending=False)
        assert [row.run.run_id for row in listed] == ["b"]

    with_bench(test)


def test_pages_are_full_beside_unreadable_approvals(with_bench, caplog):
    """What cannot be read takes no place on a page, and is told."""

    async def test(bench, damage):
        for name in ("a", "b", "c", "d"):
            head = await bench.owned(name)
            await bench.apply(following(head, approvals=(asking(bench.clock),)))
        damage("UPDATE approval SET votes = 'no json' WHERE run_id = 'b'")
        page = await bench.store.approvals("default", limit=2)
        assert [row.run.run_id for row in page] == ["a", "c"]
        assert "an approval of run b is left out of lists" in caplog.text

    with_bench(test)


@pytest.mark.parametrize(
    ("stored", "read"), [(-FARTHEST - 1, 0), (-1, 0), (7, 7), (FARTHEST, (1 << 31) - 1)]
)
def test_absurd_count_of_failures_is_clamped(with_bench, stored, read):
    """No number that is computed with is negative or beyond what attempts could reach."""

    async def test(bench, damage):
        head = await bench.owned()
        put = OperationPut("r:1", "step", "s", 1, None, b"")
        await bench.apply(following(head, operations=(put,)))
        damage(f"UPDATE operation SET failures = {stored}")
        image = await bench.store.load(head.run)
        assert [one.failures for one in image.operations] == [read]

    with_bench(test)


@pytest.mark.parametrize("stored", [-FARTHEST - 1, -1, FARTHEST])
def test_absurd_count_of_beats_and_silence_do_no_harm(with_bench, stored):
    """The row is read, a beat changes it, and its owner, who knows of that number, ends it; nobody else's write is touched."""

    async def test(bench, damage):
        head = await bench.owned()
        put = OperationPut("r:1", "step", "s", awaits=True, heard_at=bench.clock.now())
        await bench.apply(following(head, operations=(put,)))
        damage(f"UPDATE operation SET beats = {stored}, silence = {stored}")
        before = await bench.store.operation(head.run, "r:1")
        assert before.beats == stored
        beat, other = BeatOperation(head.run, 1, "r:1", b"1"), starting("other")
        verdicts = await bench.store.commit([beat, other])
        assert [type(verdict) for verdict in verdicts] == [Applied, Applied]
        row = await bench.store.operation(head.run, "r:1")
        assert (row.beats != stored, row.progress) == (True, b"1")
        assert silent_at(row) is None or silent_at(row) > row.heard_at or stored < 0
        drop = OperationDrop("r:1", row.beats)
        await bench.apply(following(await bench.head(head.run), operations=(drop,)))

    with_bench(test)


@pytest.mark.parametrize(
    "damaged", ["state = 'lost'", f"token = {NO_TEXT}", f"started_at = {FARTHEST}"]
)
def test_damaged_request_refuses_its_own_change_alone(with_bench, damaged):
    """Nobody begins it anew, it is told where it is asked for, and lists and neighbours go on without it."""

    async def test(bench, damage):
        await bench.store.commit([beginning("a"), beginning("bad"), beginning("c")])
        damage(f"UPDATE request SET {damaged} WHERE request_id = 'bad'")
        changes = [ending_of(beginning("a")), beginning("bad"), beginning("d")]
        verdicts = await bench.store.commit(changes)
        assert [type(verdict) for verdict in verdicts] == [Applied, Refused, Applied]
        assert verdicts[1].reason == "corrupt"
        with pytest.raises(StoreCorruptError):
            await bench.store.request("default", "bad")
        rows = await bench.store.requests("default", states=EVERY, limit=3)
        assert {row.request_id for row in rows} == {"a", "c", "d"}

    with_bench(test)


def test_doctor_tells_of_rows_that_cannot_be_read(with_bench):
    """A look that meets one is a finding, and the others are made."""

    async def test(bench, damage):
        await bench.start("a")
        damage(f"UPDATE run SET workflow = {NO_TEXT}, changed_at = {FARTHEST}")
        found = {one.check: one.verdict for one in examine(bench.store.describe(), bench.clock)}
        assert found["rows"] == "fail"
        assert found["blocked"] == "ok"

    with_bench(test)


@pytest.mark.parametrize(
    "damaging",
    [
        "reach = 'for ever'",
        f"reach = {NO_TEXT}",
        f"made_at = {FARTHEST}",
        f"expires_at = {FARTHEST}",
        f"decided_by = {NO_TEXT}",
    ],
)
def test_a_decision_that_cannot_be_read_is_told_to_whoever_it_may_forbid_something(
    with_bench, damaging
):
    """Lists leave it out and the others are there; the run that asks about its effect is told, answers nothing by it, and the doctor finds it."""

    async def test(bench, damage):
        head = await stuck(bench, sticking("s1"))
        await bench.apply(following(head, approvals=(asked(bench, "a2"),)))
        message = Message("d2", MessageKind.DECISION, "a2", "bob", b"{}")
        other = saying(head.run, approval_id="a2", message=message, sticky=sticking("s2"))
        await bench.apply(other)
        vote = vote_of(await found(bench, "s1"))
        damage(f"UPDATE sticky SET {damaging} WHERE sticky_id = 's1'")
        listed = await bench.store.sticky("default", StickyFilter())
        assert [one.sticky_id for one in listed] == ["s2"]
        asks = StickyFilter(run=head.run, effect="pay")
        with pytest.raises(StoreCorruptError, match="the decision s1 that sticks") as told:
            await bench.store.sticky("default", asks)
        assert "approvals revoke s1" in told.value.hint
        verdict = await answers(bench, await bench.head(head.run), vote)
        assert isinstance(verdict, Refused)
        findings = {one.check: one.verdict for one in examine(bench.store.describe(), bench.clock)}
        assert findings["rows"] == "fail"
        assert "decisions" not in findings
        revoking = RevokeSticky("default", "s1", "ann")
        await bench.apply(revoking)
        assert await bench.one(revoking) == Refused("revoked", "s1")
        assert [one.sticky_id for one in await bench.store.sticky("default", asks)] == ["s2"]

    with_bench(test)


@pytest.mark.parametrize("ending", ["uses = 0", "expires_at = 5"])
@pytest.mark.parametrize("reach", ["run", "workflow"])
def test_a_decision_that_is_over_denies_nothing_where_it_cannot_be_read(with_bench, ending, reach):
    """It is not read any more, used up or past its end."""

    async def test(bench, damage):
        head = await stuck(bench, sticking("s1", reach))
        asks = StickyFilter(run=head.run, effect="pay")
        damage(f"UPDATE sticky SET decided_by = {NO_TEXT}")
        with pytest.raises(StoreCorruptError):
            await bench.store.sticky("default", asks)
        damage(f"UPDATE sticky SET {ending}")
        assert await bench.store.sticky("default", asks) == []

    with_bench(test)


def test_a_decision_on_a_former_run_of_the_id_denies_nothing_where_it_cannot_be_read(with_bench):
    """It is not read any more."""

    async def test(bench, damage):
        head = await stuck(bench, sticking("s1"))
        damage(f"UPDATE sticky SET decided_by = {NO_TEXT}, incarnation = incarnation - 1")
        assert await bench.store.sticky("default", StickyFilter(run=head.run, effect="pay")) == []

    with_bench(test)


def test_a_decision_that_cannot_be_read_is_taken_back_by_an_admin(with_bench):
    """Nobody can say in which role it was made; to others there is none, and of another id there is none for an admin."""

    async def test(bench, damage):
        await stuck(bench, sticking("s1"))
        first = first_bindings("root")
        binding = RoleBinding(subject="ann", role="maintainer", by="root")
        body = Bindings((*first.bindings, binding), first.guarded).encode()
        await bench.apply(PutControl("default", "roles", 0, body))
        damage(f"UPDATE sticky SET role = {NO_TEXT}")

        async def revoke(who, sticky_id):
            store, random = bench.store, SeededRandom(who)
            authority = StoreAuthority(store, None)
            client = Client(store, random=random, principal=who, authority=authority)
            await client.approvals.revoke(sticky_id, "it forbids everything")

        for who, sticky_id in (("ann", "s1"), ("root", "s2")):
            with pytest.raises(DecisionRefusedError, match="there is no decision") as refused:
                await revoke(who, sticky_id)
            assert refused.value.reason == "unknown"
        await revoke("root", "s1")
        assert await bench.one(RevokeSticky("default", "s1", "ann")) == Refused("revoked", "s1")

    with_bench(test)


LATER = (
    *(("run", name) for name in ("released", "restored_at", "restored_until")),
    *(("store", name) for name in ("mark", "backed_up_at")),
    ("worker", "paused"),
)
"""Columns that came after decisions stuck."""


def test_a_file_of_before_decisions_stuck_is_brought_up_to_date(tmp_path):
    """What was asked there is decided as before, and may stick from then on."""

    async def test():
        clock, path = ManualClock(), tmp_path / "s.db"
        store = await open_sqlite(path, clock=clock)
        bench = Bench(store, clock)
        head = await bench.owned()
        await bench.apply(following(head, approvals=(asked(bench),)))
        await store.close()
        file = apsw.Connection(str(path))
        file.execute("DROP TABLE sticky; DELETE FROM migration WHERE number > 15")
        file.execute("DROP INDEX run_lapsed; ALTER TABLE worker DROP COLUMN report")
        file.execute("DROP INDEX run_released_due; DROP INDEX run_released_due_set")
        for table, column in LATER:
            file.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        file.close()
        findings = {one.check: one for one in examine(str(path), clock)}
        assert findings["schema"].verdict == "warn"
        assert "decisions" not in findings
        store = await open_sqlite(path, clock=clock)
        bench = Bench(store, clock)
        await bench.apply(saying(head.run, sticky=sticking()))
        assert (await found(bench)).by == "bob"
        findings = {one.check: one for one in examine(str(path), clock)}
        assert findings["decisions"].text == "decisions that were made to stick: 1"
        await store.close()

    asyncio.run(test())
