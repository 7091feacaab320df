"""What a store promises of permits: an effect begins on answers that are young enough, by rows that are as they were when it was asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from outlast.store.change import (
    Applied,
    ApprovalWithdraw,
    GrantSpend,
    Guard,
    OperationPut,
    Permit,
    PutControl,
    Refused,
    RunChange,
    RunHead,
    TaskPut,
    digest_of,
)
from outlast.testing.conformance.approval import HOUR, deciding, requested, spending, standing
from outlast.testing.conformance.bench import Bench, asking, following, scenario, sending

WITHIN = timedelta(seconds=5)
ROLES = Guard("default", "roles", 0)
STOPS = (Guard("default", "stops", 0), Guard("", "stops", 0))
BROKEN = Guard("default", "roles", 7)
UNSTOPPED = Guard("", "stops", 7)


def permitting(bench: Bench, operation: str = "r:2", **fields: Any) -> Permit:
    """Return a permit of which everything was asked just now, and no row was found."""
    given: dict[str, Any] = {
        "checked_at": bench.clock.now(),
        "within": WITHIN,
        "authority": (ROLES,),
        "stops": STOPS,
    }
    return Permit(operation, **{**given, **fields})


def intending(head: RunHead, *permits: Permit, **fields: Any) -> RunChange:
    """Return a change that rests on permits, and has everything that has to go with it."""
    return following(head, permits=permits, **fields)


def of_second(match: str = "h1") -> GrantSpend:
    """Return the spending of the first cover of `a2`."""
    return GrantSpend("a2", 0, "r:2", match)


async def granted(bench: Bench) -> RunHead:
    """Return the head of a run whose request `a1` is approved."""
    head = await requested(bench)
    await bench.apply(deciding(head.run))
    return head


class PermitConformance:
    """The point at which it is judged whether an effect may begin."""

    @scenario
    async def test_permit_holds(self, bench: Bench) -> None:
        """Nothing of a permit is kept: the same guards hold for as many changes as come in time, with and without entries."""
        head = await granted(bench)
        await bench.apply(intending(head, permitting(bench), spends=(spending(),)))
        after = await bench.head(head.run)
        bench.clock.advance(WITHIN)
        old = permitting(bench, checked_at=bench.clock.now() - WITHIN)
        await bench.apply(intending(after, old, entries=0))
        assert (await bench.head(head.run)).next_seq == after.next_seq
        assert (await standing(bench, head.run)).spent == ("r:2", "")

    @scenario
    async def test_answers_grow_old(self, bench: Bench) -> None:
        """Answers count for as long as they say, to the microsecond; those from a time that is yet to come count for nothing."""
        head = await bench.owned()
        tick = timedelta(microseconds=1)
        for age, holds in ((WITHIN + tick, False), (-tick, False), (-HOUR, False), (WITHIN, True)):
            permit = permitting(bench, checked_at=bench.clock.now() - age)
            verdict = await bench.one(intending(head, permitting(bench, "r:1"), permit))
            assert verdict == (verdict if holds else Refused("aged", "r:2"))
            assert isinstance(verdict, Applied) is holds
        bench.clock.set_wall(bench.clock.now() - HOUR)
        after = await bench.head(head.run)
        young = permitting(bench, checked_at=bench.clock.now() + HOUR)
        assert await bench.one(intending(after, young)) == Refused("aged", "r:2")
        await bench.apply(intending(after, permitting(bench)))

    @scenario
    async def test_rows_that_were_written_since(self, bench: Bench) -> None:
        """A row of the tenant or of all that has come, or changed, breaks what was judged without it; another tenant's does not."""
        head = await bench.owned()
        for tenant, name, word in (
            ("default", "roles", "unauthorised"),
            ("", "roles", "unauthorised"),
            ("default", "stops", "stopped"),
            ("", "stops", "stopped"),
        ):
            await bench.apply(PutControl("other", name, 0 if tenant else 1, b"{}"))
            for version in (0, 1):
                guard = Guard(tenant, name, version)
                is_stop = word == "stopped"
                permit = permitting(
                    bench, authority=() if is_stop else (guard,), stops=(guard,) if is_stop else ()
                )
                await bench.apply(intending(await bench.head(head.run), permit))
                await bench.apply(PutControl(tenant, name, version, b"{}"))
                late = intending(await bench.head(head.run), permit)
                assert await bench.one(late) == Refused(word, name)

    @scenario
    async def test_guard_of_a_row_that_is_not_there(self, bench: Bench) -> None:
        """No row is at 0: what was judged by one that is not there does not hold."""
        head = await bench.owned()
        permit = permitting(bench, authority=(Guard("default", "roles", 1),))
        assert await bench.one(intending(head, permit)) == Refused("unauthorised", "roles")
        permit = permitting(bench, stops=(Guard("", "stops", 1),))
        assert await bench.one(intending(head, permit)) == Refused("stopped", "stops")

    @scenario
    async def test_spends_and_permits_are_checked_in_order(self, bench: Bench) -> None:
        """`expired`, `mismatch`, `unapproved`, `unauthorised`, `aged`, `spent`, `stopped`: in this order, whatever else holds."""
        head = await granted(bench)
        await bench.apply(following(head, spends=(spending(operation="r:9"),)))
        head = await bench.head(head.run)
        await bench.apply(following(head, approvals=(asking(bench.clock, "a2"),)))
        head = await bench.head(head.run)
        old = bench.clock.now() - HOUR
        all_wrong = permitting(bench, checked_at=old, authority=(BROKEN,), stops=(UNSTOPPED,))
        aged = permitting(bench, checked_at=old, stops=(UNSTOPPED,))
        stopped = permitting(bench, stops=(UNSTOPPED,))

        async def told(permit: Permit, spend: GrantSpend, *expected: str) -> None:
            verdict = await bench.one(intending(head, permit, spends=(spend,)))
            assert verdict == Refused(*expected)

        await told(all_wrong, spending(match="x"), "mismatch", "a1")
        await told(all_wrong, spending(-1, "h2"), "mismatch", "a1")
        await told(all_wrong, of_second("x"), "mismatch", "a2")
        await told(all_wrong, of_second(), "unapproved", "a2")
        await told(all_wrong, spending(), "unauthorised", "roles")
        await told(aged, spending(), "aged", "r:2")
        await told(stopped, spending(), "spent", "a1")
        await told(stopped, spending(1, "h2"), "stopped", "stops")
        bench.clock.advance(2 * HOUR)
        await told(all_wrong, spending(match="x"), "expired", "a1")

    @scenario
    async def test_first_word_of_many_permits(self, bench: Bench) -> None:
        """Each word is asked of all permits before the next one is, and the first permit that it fits is named."""
        head = await bench.owned()
        old = bench.clock.now() - HOUR
        stopped = permitting(bench, "r:1", stops=(UNSTOPPED,))
        aged = [permitting(bench, one, checked_at=old) for one in ("r:2", "r:3")]
        other = permitting(bench, "r:4", authority=(Guard("default", "other", 1), BROKEN))
        verdict = await bench.one(intending(head, stopped, *aged, other))
        assert verdict == Refused("unauthorised", "other")
        assert await bench.one(intending(head, stopped, *aged)) == Refused("aged", "r:2")
        fine = permitting(bench, "r:5")
        assert await bench.one(intending(head, fine, stopped)) == Refused("stopped", "stops")

    @scenario
    async def test_refused_permit_leaves_all_as_it_was(self, bench: Bench) -> None:
        """Of a change whose permit does not hold nothing is written: entries, spends, requests, operations, tasks, mail."""
        head = await granted(bench)
        await bench.apply(sending(head.run))
        before = await bench.store.load(head.run)
        wanted: dict[str, Any] = {
            "spends": (spending(),),
            "approvals": (asking(bench.clock, "a2"), ApprovalWithdraw("a1")),
            "operations": (OperationPut("r:2", "effect", "push"),),
            "tasks": (TaskPut("r:3", 1, "gpu", "render", b"{}"),),
            "consumed": ("m1", "d1"),
        }
        for permit in (
            permitting(bench, authority=(BROKEN,)),
            permitting(bench, within=WITHIN, checked_at=bench.clock.now() - HOUR),
            permitting(bench, stops=(UNSTOPPED,)),
        ):
            verdict = await bench.one(intending(head, permit, **wanted))
            assert isinstance(verdict, Refused)
            assert await bench.store.load(head.run) == before
        await bench.apply(intending(head, permitting(bench), **wanted))

    @scenario
    async def test_refused_change_is_applied_once_it_holds(self, bench: Bench) -> None:
        """The same change again is judged anew; once it is written it is recognised, whatever has changed since."""
        head = await bench.owned()
        change = intending(head, permitting(bench, stops=(Guard("default", "stops", 1),)))
        assert await bench.one(change) == Refused("stopped", "stops")
        await bench.apply(PutControl("default", "stops", 0, b"{}"))
        applied = await bench.apply(change)
        await bench.apply(PutControl("default", "stops", 1, b"{}"))
        assert await bench.apply(change) == Applied(applied.at)

    @scenario
    async def test_spends_see_what_the_change_does_before(self, bench: Bench) -> None:
        """What is put or withdrawn in a change is so for its spends; withdrawing what is granted takes nothing back."""
        head = await granted(bench)
        put = following(head, approvals=(asking(bench.clock, "a2"),), entries=0)
        await bench.apply(put)
        head = await bench.head(head.run)
        for acts in ((), (ApprovalWithdraw("a2"),)):
            change = intending(head, permitting(bench), approvals=acts, spends=(of_second(),))
            assert await bench.one(change) == Refused("unapproved", "a2")
        acts = (asking(bench.clock, "a3"),)
        third = GrantSpend("a3", 0, "r:2", "h1")
        change = intending(head, permitting(bench), approvals=acts, spends=(third,))
        assert await bench.one(change) == Refused("unapproved", "a3")
        acts = (ApprovalWithdraw("a1"),)
        await bench.apply(intending(head, permitting(bench), approvals=acts, spends=(spending(),)))

    @scenario
    async def test_control_row_comes_before_intents(self, bench: Bench) -> None:
        """A switch that is thrown in the same commit stops an intent of its tenant, or of any, wherever it stands in the list."""
        head = await bench.owned()
        for version, tenant in enumerate(("default", "")):
            change = intending(await bench.head(head.run), permitting(bench, stops=STOPS[version:]))
            thrown = PutControl(tenant, "stops", 0, b"{}")
            refused, applied = await bench.store.commit([change, thrown])
            assert refused == Refused("stopped", "stops")
            assert isinstance(applied, Applied)

    @scenario
    async def test_refused_permit_takes_no_other_change_down(self, bench: Bench) -> None:
        """Other runs' changes of the same commit are applied."""
        head = await bench.owned()
        assert head.owner is not None
        other = await bench.head(await bench.start("other", worker=head.owner))
        verdicts = await bench.store.commit(
            [
                intending(head, permitting(bench, stops=(UNSTOPPED,))),
                intending(other, permitting(bench)),
            ]
        )
        assert verdicts[0] == Refused("stopped", "stops")
        assert isinstance(verdicts[1], Applied)

    @scenario
    async def test_the_digest_knows_permits(self, bench: Bench) -> None:
        """Two changes that rest on different answers are different changes."""
        head = await bench.owned()
        one, other = (intending(head, permitting(bench, name)) for name in ("r:2", "r:3"))
        assert digest_of(one) != digest_of(other)
