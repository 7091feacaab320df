"""What a store promises of permits: an effect begins only on rows that are as they were read, and on answers that are not too old."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from outlast.store.change import (
    Applied,
    Guard,
    Message,
    MessageKind,
    OperationPut,
    Permit,
    PutControl,
    Refused,
    RunHead,
    digest_of,
)
from outlast.testing.conformance.approval import HOUR, deciding, requested, spending
from outlast.testing.conformance.bench import Bench, following, scenario

WITHIN = timedelta(seconds=5)
TENANT = "default"


def permit(bench: Bench, operation: str = "r:2", **fields: Any) -> Permit:
    """Return a permit of now, which rests on the rows of a tenant that has none."""
    given: dict[str, Any] = {
        "within": WITHIN,
        "authority": (Guard(TENANT, "roles", 0),),
        "stops": (Guard("", "stops", 0), Guard(TENANT, "stops", 0)),
    }
    return Permit(operation, bench.clock.now(), **{**given, **fields})


async def write(bench: Bench, name: str, *, tenant: str = TENANT, version: int = 0) -> None:
    """Change a control row."""
    await bench.apply(PutControl(tenant, name, version, b"{}"))


async def approved(bench: Bench) -> RunHead:
    """Return the head of a run whose request was granted."""
    head = await requested(bench)
    await bench.apply(deciding(head.run))
    return await bench.head(head.run)


class PermitConformance:
    """Permits."""

    @scenario
    async def test_permit_that_holds(self, bench: Bench) -> None:
        """A change is applied while its rows are as they were read, and for as long as its answers count."""
        head = await bench.owned()
        await write(bench, "roles", version=0)
        one = permit(bench, authority=(Guard(TENANT, "roles", 1),))
        bench.clock.advance(WITHIN)
        await bench.apply(following(head, permits=(one,)))
        assert (await bench.head(head.run)).next_seq == head.next_seq + 1

    @scenario
    async def test_each_row_is_guarded(self, bench: Bench) -> None:
        """A row that was written since is named, whether it is of the tenant or of everybody; nothing of the change is written."""
        head = await bench.owned()
        row = OperationPut("r:2", "effect", "pay")
        change = following(head, permits=(permit(bench),), operations=(row,))
        await write(bench, "stops", tenant="other")
        await write(bench, "roles", tenant="other")
        await write(bench, "roles")
        assert await bench.one(change) == Refused("unauthorised", "roles")
        fresh = permit(bench, authority=(Guard(TENANT, "roles", 1),))
        await write(bench, "stops", tenant="")
        change = following(head, permits=(fresh,), operations=(row,))
        assert await bench.one(change) == Refused("stopped", "stops")
        assert await bench.head(head.run) == head
        assert await bench.store.operation(head.run, "r:2") is None
        stops = (Guard("", "stops", 1), Guard(TENANT, "stops", 0))
        change = following(head, permits=(msgspec.structs.replace(fresh, stops=stops),))
        await write(bench, "stops")
        assert await bench.one(change) == Refused("stopped", "stops")

    @scenario
    async def test_answers_age(self, bench: Bench) -> None:
        """Answers count for as long as they say; such as were given later than now do not, since a clock was set back."""
        head = await bench.owned()
        change = following(head, permits=(permit(bench, "r:2"), permit(bench, "r:3")))
        old = following(
            head,
            permits=(permit(bench, "r:2", within=HOUR), permit(bench, "r:3")),
        )
        bench.clock.advance(WITHIN + timedelta(milliseconds=1))
        assert await bench.one(change) == Refused("aged", "r:2")
        assert await bench.one(old) == Refused("aged", "r:3")
        later = permit(bench, "r:4")
        bench.clock.set_wall(bench.clock.now() - timedelta(seconds=1))
        assert await bench.one(following(head, permits=(later,))) == Refused("aged", "r:4")

    @scenario
    async def test_order_of_checks(self, bench: Bench) -> None:
        """What is not so is said in one order: expired, another action, not approved, not authorised, too old, spent, stopped."""
        head = await requested(bench)
        await write(bench, "roles")
        await write(bench, "stops")
        stale = permit(bench)
        right = permit(bench, authority=(Guard(TENANT, "roles", 1),))
        quiet = msgspec.structs.replace(
            right, stops=(Guard("", "stops", 0), Guard(TENANT, "stops", 1))
        )
        bench.clock.advance(2 * WITHIN)
        fresh = msgspec.structs.replace(right, checked_at=bench.clock.now())

        async def said(one: Permit, operation: str = "r:2", match: str = "h1") -> str:
            spend = spending(operation=operation, match=match)
            verdict = await bench.one(following(head, spends=(spend,), permits=(one,)))
            return verdict.reason if isinstance(verdict, Refused) else type(verdict).__name__

        assert await said(stale, match="x") == "mismatch"
        assert await said(stale) == "unapproved"
        await bench.apply(deciding(head.run))
        assert await said(stale) == "unauthorised"
        assert await said(right) == "aged"
        await bench.apply(following(head, spends=(spending(operation="r:9"),)))
        head = await bench.head(head.run)
        assert await said(right) == "aged"
        assert await said(fresh) == "spent"
        assert await said(fresh, operation="r:9") == "stopped"
        whole = msgspec.structs.replace(quiet, checked_at=bench.clock.now())
        assert await said(whole, operation="r:9") == "Applied"
        head = await bench.head(head.run)
        bench.clock.advance(2 * HOUR)
        assert await said(stale, match="x") == "expired"

    @scenario
    async def test_a_refused_permit_spends_nothing(self, bench: Bench) -> None:
        """A grant is not spent by an effect that may not begin, and serves the same one when it may."""
        head = await approved(bench)
        await write(bench, "stops")
        change = following(head, spends=(spending(),), permits=(permit(bench),))
        assert await bench.one(change) == Refused("stopped", "stops")
        image = await bench.store.load(head.run)
        assert image is not None
        assert image.approvals[0].spent == ("", "")
        stops = (Guard("", "stops", 0), Guard(TENANT, "stops", 1))
        again = following(head, spends=(spending(),), permits=(permit(bench, stops=stops),))
        await bench.apply(again)
        assert await bench.one(again) == Applied(bench.clock.now())

    @scenario
    async def test_a_change_that_was_applied_stays_so(self, bench: Bench) -> None:
        """A change that is sent again after it was applied is applied, whatever has become of what it rested on."""
        head = await bench.owned()
        change = following(head, permits=(permit(bench),))
        applied = await bench.apply(change)
        await write(bench, "stops")
        bench.clock.advance(2 * WITHIN)
        assert await bench.one(change) == applied

    @scenario
    async def test_a_bad_permit_takes_no_other_run_down(self, bench: Bench) -> None:
        """Of two changes in one transaction, the one that rests on nothing old is applied; and a row that is written there counts for what follows."""
        first, second = await bench.owned("a", "w1"), await bench.owned("b", "w2")
        stop = PutControl(TENANT, "stops", 0, b"{}")
        bad = following(second, permits=(permit(bench),))
        good = following(first, permits=(permit(bench, stops=()),))
        verdicts = await bench.store.commit([stop, bad, good])
        assert [type(one) for one in verdicts] == [Applied, Refused, Applied]

    @scenario
    async def test_the_digest_knows_permits(self, bench: Bench) -> None:
        """Two changes that rest on different answers are different changes."""
        head = await bench.owned()
        one, other = (following(head, permits=(permit(bench, name),)) for name in ("r:2", "r:3"))
        assert digest_of(one) != digest_of(other)

    @scenario
    async def test_a_message_does_not_age_a_permit(self, bench: Bench) -> None:
        """A decision of somebody else meanwhile changes nothing about what an effect rests on."""
        head = await requested(bench)
        one = permit(bench)
        said = Message("d7", MessageKind.DECISION, "a1", "bob", b"{}")
        await bench.apply(deciding(head.run, message=said))
        await bench.apply(following(await bench.head(head.run), permits=(one,)))
