"""What a store promises of changes: the fence, verdicts of their own, all or nothing, generations."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from msgspec.structs import replace

from outlast.store.bound import MAX_BODY_BYTES
from outlast.store.change import (
    SAGA,
    Applied,
    ApprovalExpire,
    ApprovalWithdraw,
    Conflict,
    Fenced,
    HeadUpdate,
    OperationDrop,
    OperationPut,
    OutboxItem,
    OutboxKind,
    PutControl,
    Refused,
    RunKey,
    Status,
    Terminate,
    WorkerId,
)
from outlast.testing.conformance.bench import (
    LEASE,
    Bench,
    asking,
    ending,
    following,
    parking,
    row,
    scenario,
    sending,
    starting,
)

SECOND = timedelta(seconds=1)


class ChangeConformance:
    """Changes and their verdicts."""

    @scenario
    async def test_start_makes_a_ready_run(self, bench: Bench) -> None:
        """A started run is ready, unowned, with its entries stamped by the store's time."""
        run = await bench.start(entries=(row(0), row(1)))
        image = await bench.store.load(run)
        assert image is not None
        assert (image.head.status, image.head.owner, image.head.epoch) == (Status.READY, None, 0)
        assert (image.head.generation, image.head.version, image.head.next_seq) == (1, 0, 2)
        assert [(stamped.row, stamped.at) for stamped in image.rows] == [
            (row(0), bench.clock.now()),
            (row(1), bench.clock.now()),
        ]

    @scenario
    async def test_start_born_claimed(self, bench: Bench) -> None:
        """A run that is born claimed belongs to its worker at epoch 1."""
        worker = await bench.worker()
        applied = await bench.apply(starting(worker=worker))
        head = await bench.head(RunKey("default", "run"))
        assert (applied.epoch, head.epoch, head.owner, head.status) == (
            1,
            1,
            worker,
            Status.RUNNING,
        )
        assert isinstance(await bench.one(starting("other", worker=WorkerId("nobody"))), Fenced)
        assert await bench.store.head(RunKey("default", "other")) is None

    @scenario
    async def test_start_twice_is_a_conflict(self, bench: Bench) -> None:
        """A second start is told of the run that has the id, and changes nothing."""
        run = await bench.start()
        verdict = await bench.one(starting(fingerprint="other"))
        assert verdict == Conflict(head=await bench.head(run))
        assert (await bench.head(run)).fingerprint == "f"
        assert isinstance(await bench.one(starting("new", generation=2)), Conflict)

    @scenario
    async def test_start_keeps_the_times_that_it_brings(self, bench: Bench) -> None:
        """The first entries have the times that come with them, the others and the head that of the commit; nothing goes back later."""
        now = bench.clock.now()
        times = (now - 2 * SECOND, now - SECOND, now - SECOND)
        change = replace(starting(entries=(row(0), row(1), row(2), row(3))), times=times)
        assert (await bench.apply(change)).at == now
        journal = await bench.store.journal(change.run)
        assert [stamped.at for stamped in journal] == [*times, now]
        head = await bench.head(change.run)
        assert (head.created_at, head.changed_at) == (now, now)
        bench.clock.set_wall(now - SECOND)
        claimed = await bench.claim_one(await bench.worker())
        assert (await bench.apply(following(claimed))).at == now

    @scenario
    async def test_start_with_times_that_do_not_hold(self, bench: Bench) -> None:
        """Times that go back, that have not come yet, of more entries than there are, or without a zone, are refused alone."""
        now = bench.clock.now()
        two = starting("bad", entries=(row(0), row(1)))
        verdicts = await bench.store.commit(
            [
                replace(two, times=(now, now - SECOND)),
                replace(two, times=(now - SECOND, now + SECOND)),
                replace(two, times=(now, now, now)),
                replace(two, times=(now, now.replace(tzinfo=None))),
                replace(two, run=RunKey("default", "good"), times=(now,)),
            ]
        )
        times, naive = Refused("times"), Refused("unstorable", "times[1]")
        assert verdicts == [times, times, times, naive, Applied(now)]
        assert await bench.store.head(two.run) is None

    @scenario
    async def test_start_without_entries_is_refused(self, bench: Bench) -> None:
        """A journal has a beginning: whoever asks for its last entry finds one."""
        assert await bench.one(starting(entries=())) == Refused("seq")
        assert await bench.one(starting(entries=(row(1),))) == Refused("seq")
        assert await bench.store.generations(RunKey("default", "run")) == ()

    @scenario
    async def test_start_next_generation(self, bench: Bench) -> None:
        """A closed run can begin again, one generation on, its epoch never going back; an open one cannot."""
        head = await bench.owned()
        assert isinstance(await bench.one(starting(generation=2)), Conflict)
        await bench.apply(ending(head))
        assert isinstance(await bench.one(starting(generation=3)), Conflict)
        assert isinstance(await bench.one(starting(generation=1)), Conflict)
        await bench.apply(starting(generation=2, fingerprint="g"))
        again = await bench.head(head.run)
        assert (again.generation, again.version, again.next_seq, again.epoch) == (
            2,
            0,
            1,
            head.epoch,
        )
        assert (again.fingerprint, again.status) == ("g", Status.READY)
        assert len(await bench.store.journal(head.run)) == 1
        assert len(await bench.store.journal(head.run, generation=1)) == 2
        claimed = await bench.claim_one(await bench.worker("w2"))
        assert claimed.epoch == head.epoch + 1

    @scenario
    async def test_owned_change_appends(self, bench: Bench) -> None:
        """An owned change appends its entries and moves version and next position."""
        head = await bench.owned()
        bench.clock.advance(SECOND)
        applied = await bench.apply(following(head, entries=2))
        after = await bench.head(head.run)
        assert (after.version, after.next_seq, after.changed_at) == (1, 3, bench.clock.now())
        assert applied.at == bench.clock.now()
        assert [stamped.row.seq for stamped in await bench.store.journal(head.run)] == [0, 1, 2]

    @scenario
    async def test_owned_change_keeps_the_times_that_it_brings(self, bench: Bench) -> None:
        """The journal holds the times that the run has seen; when every entry has one, the last is that of the commit, sent again too."""
        head = await bench.owned()
        began = bench.clock.now()
        bench.clock.advance(10 * SECOND)
        times = (began, began + SECOND, began + SECOND)
        change = following(head, entries=3, times=times)
        assert (await bench.apply(change)).at == times[-1]
        assert (await bench.apply(change)).at == times[-1]
        head = await bench.head(head.run)
        assert head.changed_at == times[-1]
        seen = began + 2 * SECOND
        assert (await bench.apply(following(head, entries=2, times=(seen,)))).at == began + (
            10 * SECOND
        )
        journal = await bench.store.journal(head.run)
        assert [one.at for one in journal] == [began, *times, seen, began + 10 * SECOND]

    @scenario
    async def test_owned_change_with_times_gives_the_run_back_now(self, bench: Bench) -> None:
        """A change that also changes the head has the time of the commit, whatever times its entries bring."""
        head = await bench.owned()
        seen = bench.clock.now() + SECOND
        bench.clock.advance(5 * SECOND)
        back = HeadUpdate(status=Status.WAITING, release=True)
        applied = await bench.apply(following(head, times=(seen,), head=back))
        head = await bench.head(head.run)
        assert (applied.at, head.changed_at) == (bench.clock.now(), bench.clock.now())
        assert (await bench.store.journal(head.run))[-1].at == seen

    @scenario
    async def test_times_hold_when_the_clock_is_set_back(self, bench: Bench) -> None:
        """Times that the run has seen are kept though the wall clock is behind them by now, and nothing goes below them later."""
        head = await bench.owned()
        seen = bench.clock.now() + 3 * SECOND
        bench.clock.set_wall(bench.clock.now() - timedelta(hours=1))
        change = following(head, entries=2, times=(seen,))
        assert (await bench.apply(change)).at == seen
        head = await bench.head(head.run)
        assert (await bench.apply(following(head))).at == seen
        journal = await bench.store.journal(head.run)
        assert [one.at for one in journal[1:]] == [seen, seen, seen]

    @scenario
    async def test_owned_change_with_times_that_do_not_hold(self, bench: Bench) -> None:
        """Times that go back, go behind the last change, are more than the entries, or have no zone, are refused; nothing is written."""
        head = await bench.owned()
        now = head.changed_at
        late = now + SECOND
        verdicts = await bench.store.commit(
            [
                following(head, entries=2, times=(late, now)),
                following(head, entries=2, times=(now - SECOND,)),
                following(head, entries=1, times=(now, now)),
                following(head, entries=0, times=(now,)),
                following(head, entries=2, times=(now, now.replace(tzinfo=None))),
            ]
        )
        times, naive = Refused("times"), Refused("unstorable", "times[1]")
        assert verdicts == [times, times, times, times, naive]
        assert await bench.head(head.run) == head
        assert len(await bench.store.journal(head.run)) == 1

    @scenario
    async def test_time_beyond_the_calendar_refuses_its_own_change(self, bench: Bench) -> None:
        """An aware time that is no time in UTC is named and not kept; others in the same commit are, and the run can be read."""
        head = await bench.owned("b")
        zones = [timezone(timedelta(hours=hours)) for hours in (-5, 5)]
        far, early = (
            datetime.max.replace(tzinfo=zones[0]),
            datetime.min.replace(tzinfo=zones[1]),
        )
        alarms = [HeadUpdate(Status.WAITING, wake_at=at, release=True) for at in (far, early)]
        changes = [following(head, head=alarm) for alarm in alarms]
        verdicts = await bench.store.commit([starting("a"), *changes, starting("c")])
        refused = Refused("unstorable", "head.wake_at")
        assert [type(one) for one in verdicts] == [Applied, Refused, Refused, Applied]
        assert verdicts[1] == verdicts[2] == refused
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.head == head

    @scenario
    async def test_acts_that_look_alike_are_two(self, bench: Bench) -> None:
        """An expiry is not recognised as the withdrawal of the same request that was applied before it."""
        head = await bench.owned()
        await bench.apply(following(head, approvals=(asking(bench.clock),)))
        head = await bench.head(head.run)
        await bench.apply(following(head, entries=0, approvals=(ApprovalWithdraw("a1"),)))
        verdict = await bench.one(following(head, entries=0, approvals=(ApprovalExpire("a1"),)))
        assert isinstance(verdict, Conflict)

    @scenario
    async def test_change_sent_again_is_applied_once(self, bench: Bench) -> None:
        """The last change sent again is recognised by its digest, also after it gave the run back."""
        head = await bench.owned()
        change = parking(head, entries=1)
        first = await bench.apply(change)
        bench.clock.advance(SECOND)
        assert (await bench.apply(change)).at == first.at
        assert (await bench.head(head.run)).version == 1
        assert len(await bench.store.journal(head.run)) == 2

    @scenario
    async def test_other_version_is_a_conflict(self, bench: Bench) -> None:
        """A change that follows another version than the head's is a conflict and changes nothing."""
        head = await bench.owned()
        await bench.apply(following(head))
        verdict = await bench.one(following(head, entries=2))
        assert isinstance(verdict, Conflict)
        assert verdict.version == 1
        assert (await bench.head(head.run)).next_seq == 2

    @scenario
    async def test_old_epoch_is_fenced(self, bench: Bench) -> None:
        """After a takeover the former owner is fenced; so is who never owned the run."""
        head = await bench.owned()
        bench.clock.advance(LEASE)
        second = await bench.worker("w2")
        taken = await bench.claim_one(second)
        assert isinstance(await bench.one(following(head)), Fenced)
        assert isinstance(await bench.one(following(replace(head, owner=second))), Fenced)
        assert isinstance(
            await bench.one(following(replace(taken, run=RunKey("default", "no")))), Fenced
        )
        await bench.apply(following(taken))

    @scenario
    async def test_lapsed_worker_is_fenced_though_nobody_took_over(self, bench: Bench) -> None:
        """A lease that is over is over, whoever holds the run."""
        head = await bench.owned()
        bench.clock.advance(LEASE - SECOND)
        await bench.apply(following(head))
        bench.clock.advance(LEASE)
        assert isinstance(await bench.one(following(await bench.head(head.run))), Fenced)
        assert bench.store.renew(WorkerId("w1")) is False

    @scenario
    async def test_commit_renews(self, bench: Bench) -> None:
        """Every applied owned change renews its worker's lease; a refused one does not."""
        head = await bench.owned()
        bench.clock.advance(LEASE - SECOND)
        await bench.apply(following(head))
        bench.clock.advance(LEASE - SECOND)
        assert isinstance(
            await bench.one(following(await bench.head(head.run), consumed=("no",))), Refused
        )
        bench.clock.advance(SECOND)
        assert bench.store.renew(WorkerId("w1")) is False

    @scenario
    async def test_entries_must_follow(self, bench: Bench) -> None:
        """Entries with a gap are refused."""
        head = await bench.owned()
        assert await bench.one(replace(following(head), entries=(row(2),))) == Refused("seq")
        assert (await bench.head(head.run)).version == 0

    @scenario
    async def test_an_operation_keeps_its_progress_and_whether_it_awaits(
        self, bench: Bench
    ) -> None:
        """All comes back as it was put, and a row that is put anew has what that one says, and nothing of the former."""
        head = await bench.owned()
        beaten = OperationPut(
            "r:1", "effect", "crawl", 1, None, b"{}", b'{"page":7}', unapplied=True
        )
        awaited = OperationPut("r:2", "step", "render", due_at=bench.clock.now(), awaits=True)
        await bench.apply(following(head, operations=(beaten, awaited)))
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.operations == (beaten, awaited)
        plain = OperationPut("r:2", "step", "render", 1)
        await bench.apply(following(image.head, operations=(plain,)))
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.operations == (beaten, plain)

    @scenario
    async def test_progress_that_is_too_large_is_refused(self, bench: Bench) -> None:
        """As every other payload is."""
        head = await bench.owned()
        large = OperationPut("r:1", "step", "crawl", progress=bytes(MAX_BODY_BYTES + 1))
        verdict = await bench.one(following(head, operations=(large,)))
        assert verdict == Refused("unstorable", "operations[0].progress")

    @scenario
    async def test_one_bad_change_takes_none_down(self, bench: Bench) -> None:
        """Text with NUL or half a surrogate pair, a naive time and a giant body are refused alone."""
        head = await bench.owned()
        good, bad = starting("good"), starting("bad")
        naive = bench.clock.now().replace(tzinfo=None)
        verdicts = await bench.store.commit(
            [
                replace(bad, workflow="a\0b"),
                replace(bad, fingerprint="\ud800"),
                replace(bad, entries=(row(0, bytes(MAX_BODY_BYTES + 1)),)),
                replace(following(head), head=HeadUpdate(Status.WAITING, wake_at=naive)),
                replace(following(head), operations=(OperationPut("r:1", "step", "n\0", 1),)),
                good,
                following(head),
            ]
        )
        assert [type(verdict) for verdict in verdicts] == [Refused] * 5 + [Applied] * 2
        assert {verdict.reason for verdict in verdicts if isinstance(verdict, Refused)} == {
            "unstorable"
        }
        assert [verdict.part for verdict in verdicts if isinstance(verdict, Refused)] == [
            "workflow",
            "fingerprint",
            "entries[0].body",
            "head.wake_at",
            "operations[0].name",
        ]
        assert await bench.store.head(bad.run) is None
        assert (await bench.head(good.run)).status is Status.READY

    @scenario
    async def test_refused_change_writes_nothing(self, bench: Bench) -> None:
        """A condition that fails at the end of a change undoes its beginning."""
        head = await bench.owned()
        change = following(
            head,
            operations=(OperationPut("r:1", "step", "plan", 1),),
            outbox=(OutboxItem(RunKey("default", "x"), OutboxKind.SIGNAL),),
            consumed=("missing",),
        )
        before = await bench.store.load(head.run)
        assert await bench.one(change) == Refused("message", "missing")
        assert await bench.store.load(head.run) == before
        assert await bench.store.outbox(10) == []

    @scenario
    async def test_order_within_a_run(self, bench: Bench) -> None:
        """Changes of one run in one commit are applied in the order given, verdicts in the order asked."""
        worker = await bench.worker()
        run = RunKey("default", "b")
        first = starting("b", worker=worker)
        second = following(
            replace(await bench.head(await bench.start("a", worker=worker)), run=run)
        )
        verdicts = await bench.store.commit([sending(run, "early"), first, second, starting("a")])
        assert [type(verdict) for verdict in verdicts] == [Refused, Applied, Applied, Conflict]

    @scenario
    async def test_operations_are_put_and_dropped(self, bench: Bench) -> None:
        """The row of an open operation is replaced, and goes when it is dropped or the run ends."""
        head = await bench.owned()
        due = bench.clock.now() + SECOND
        put = OperationPut("r:1", "effect", "push", 2, due, b"{}")
        other = OperationPut("r:2", "step", "plan")
        await bench.apply(
            following(head, operations=(OperationPut("r:1", "effect", "push"), put, other))
        )
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.operations == (put, other)
        await bench.apply(
            following(image.head, operations=(OperationDrop("r:1"), OperationDrop("r:9")))
        )
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.operations == (other,)
        await bench.apply(ending(image.head))
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.operations == ()

    @scenario
    async def test_closing_clears(self, bench: Bench) -> None:
        """A closed run has no owner and no alarm, whatever the update says."""
        head = await bench.owned()
        update = HeadUpdate(Status.FAILED, reason="why", wake_at=bench.clock.now(), note=b"n")
        await bench.apply(following(head, head=update))
        after = await bench.head(head.run)
        assert (after.status, after.reason, after.owner, after.wake_at, after.note) == (
            Status.FAILED,
            "why",
            None,
            None,
            b"n",
        )
        assert (await bench.claim(await bench.worker("w2"))).runs == ()

    @scenario
    async def test_terminate(self, bench: Bench) -> None:
        """A terminated run is closed at a new epoch, and its owner is fenced."""
        head = await bench.owned()
        await bench.apply(Terminate(head.run, "root", "enough"))
        after = await bench.head(head.run)
        assert (after.status, after.reason, after.owner, after.epoch) == (
            Status.TERMINATED,
            "enough",
            None,
            head.epoch + 1,
        )
        assert after.ended_by == "root"
        assert isinstance(await bench.one(following(head)), Fenced)
        assert await bench.one(Terminate(head.run, "root", "again")) == Refused("closed")
        assert await bench.one(Terminate(RunKey("default", "no"), "root", "")) == Refused(
            "not_found"
        )
        await bench.start(generation=2)
        assert (await bench.head(head.run)).ended_by == ""

    @scenario
    async def test_a_run_inside_a_saga_is_ended_only_when_that_is_meant(self, bench: Bench) -> None:
        """What a saga has done would stay: the end is refused while its row is there, and nothing of it is written."""
        head = await bench.owned()
        await bench.apply(following(head, operations=(OperationPut("r:1", SAGA, ""),)))
        head = await bench.head(head.run)
        assert await bench.one(Terminate(head.run, "root", "enough")) == Refused(SAGA)
        assert await bench.head(head.run) == head
        await bench.apply(Terminate(head.run, "root", "enough", abandon=True))
        assert (await bench.head(head.run)).status is Status.TERMINATED

    @scenario
    async def test_a_saga_that_has_ended_keeps_nobody_from_ending_the_run(
        self, bench: Bench
    ) -> None:
        """Its row goes with its end; a row of another kind is none."""
        head = await bench.owned()
        rows = (OperationPut("r:1", SAGA, ""), OperationPut("r:2", "effect", SAGA))
        await bench.apply(following(head, operations=rows))
        head = await bench.head(head.run)
        await bench.apply(following(head, operations=(OperationDrop("r:1"),)))
        await bench.apply(Terminate(head.run, "root", "enough"))

    @scenario
    async def test_entry_times_never_go_back(self, bench: Bench) -> None:
        """A wall clock that is set back does not set the run's times back."""
        head = await bench.owned()
        bench.clock.set_wall(bench.clock.now() - timedelta(hours=1))
        applied = await bench.apply(following(head))
        assert applied.at == head.changed_at
        assert (await bench.store.journal(head.run))[-1].at == head.changed_at

    @scenario
    async def test_control_rows(self, bench: Bench) -> None:
        """A control row is compared and set."""
        assert await bench.store.control("t", "kill") is None
        await bench.apply(PutControl("t", "kill", 0, b"a"))
        assert await bench.one(PutControl("t", "kill", 0, b"b")) == Conflict(version=1)
        await bench.apply(PutControl("t", "kill", 1, b"c"))
        assert await bench.store.control("t", "kill") == (2, b"c")
        assert await bench.store.control("u", "kill") is None

    @scenario
    async def test_empty_commit(self, bench: Bench) -> None:
        """No change, no verdict."""
        assert await bench.store.commit([]) == []
