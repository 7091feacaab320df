# ruff: noqa: S105, S106, S107 - the token of a record is no password
"""What a store promises of requests that came with an idempotency key: one begins, and what became of it is forgotten by nobody's death."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from outlast.store.bound import MAX_BODY_BYTES
from outlast.store.change import Applied, Conflict, Refused
from outlast.store.request import (
    PURGED_IN_PASSING,
    BeginRequest,
    EndRequest,
    HoldRequest,
    PurgeRequests,
    RequestRow,
    RequestState,
    ResolveRequest,
)
from outlast.testing.conformance.bench import Bench, scenario

HOLD = timedelta(minutes=1)
KEEP = timedelta(hours=24)
EVERY = frozenset(RequestState)
LEAST = timedelta(microseconds=1)


def beginning(request_id: str = "k1", token: str = "t1", **fields: Any) -> BeginRequest:
    """Return the beginning of a request."""
    given: dict[str, Any] = {
        "tenant": "default",
        "fingerprint": "f",
        "hold": HOLD,
        "keep": KEEP,
        "note": b"POST /orders",
    }
    return BeginRequest(request_id=request_id, token=token, **{**given, **fields})


def ending_of(begun: BeginRequest, answer: bytes | None = b"201") -> EndRequest:
    """Return the end of a request; None as its answer: it did not happen."""
    return EndRequest(
        begun.tenant, begun.request_id, begun.token, answer is not None, KEEP, answer or b""
    )


def holding(begun: BeginRequest) -> HoldRequest:
    """Return the holding on of a request."""
    return HoldRequest(begun.tenant, begun.request_id, begun.token, HOLD)


def resolving(begun: BeginRequest, answer: bytes | None = b"200", **fields: Any) -> ResolveRequest:
    """Return what an operator says of a request."""
    given: dict[str, Any] = {
        "tenant": begun.tenant,
        "request_id": begun.request_id,
        "token": begun.token,
        "by": "root",
        "reason": "looked it up",
    }
    return ResolveRequest(happened=answer is not None, answer=answer or b"", **{**given, **fields})


async def row_of(bench: Bench, begun: BeginRequest) -> RequestRow:
    """Return the record of a request that stands."""
    row = await bench.store.request(begun.tenant, begun.request_id)
    assert row is not None
    return row


async def in_doubt(bench: Bench, begun: BeginRequest) -> RequestRow:
    """Begin a request that nobody ends."""
    await bench.apply(begun)
    bench.clock.advance(HOLD)
    row = await row_of(bench, begun)
    assert row.state is RequestState.IN_DOUBT
    return row


class RequestConformance:
    """Begin, hold, end, resolve, purge."""

    @scenario
    async def test_one_begins(self, bench: Bench) -> None:
        """The first has the record; another gets it shown, unchanged; the first again is known."""
        begun = beginning()
        first = await bench.apply(begun)
        row = await row_of(bench, begun)
        assert first == Applied(bench.clock.now(), request=row)
        assert (row.state, row.token, row.fingerprint) == (RequestState.RUNNING, "t1", "f")
        assert (row.started_at, row.held_until) == (bench.clock.now(), bench.clock.now() + HOLD)
        assert (row.expires_at, row.note, row.answer, row.keep) == (
            None,
            b"POST /orders",
            b"",
            KEEP,
        )
        bench.clock.advance(HOLD / 2)
        other = beginning(token="t2", fingerprint="g", note=b"other")
        assert await bench.one(other) == Conflict(request=row)
        assert await bench.apply(begun) == first
        assert await row_of(bench, begun) == row

    @scenario
    async def test_one_of_many_begins(self, bench: Bench) -> None:
        """Of those that are written together the first one counts, as of those that come one by one."""
        many = [beginning(token=f"t{number}") for number in range(5)]
        verdicts = await bench.store.commit(many)
        assert [type(verdict) for verdict in verdicts] == [Applied, *[Conflict] * 4]
        assert {verdict.request for verdict in verdicts} == {await row_of(bench, many[0])}  # type: ignore[union-attr]

    @scenario
    async def test_end_keeps_the_answer(self, bench: Bench) -> None:
        """An answer is what everybody gets from then on; sent again it is known, and another one changes nothing."""
        begun = beginning()
        await bench.apply(begun)
        answer = bytes(range(256))
        first = await bench.apply(ending_of(begun, answer))
        row = await row_of(bench, begun)
        assert first.request == row
        assert (row.state, row.answer) == (RequestState.DONE, answer)
        assert row.expires_at == bench.clock.now() + KEEP
        bench.clock.advance(HOLD)
        assert (await bench.apply(ending_of(begun, answer))).request == row
        assert await bench.one(ending_of(begun, None)) == Conflict(request=row)
        assert await bench.one(beginning(token="t2")) == Conflict(request=row)
        assert await bench.one(holding(begun)) == Conflict(request=row)
        assert await bench.one(resolving(begun)) == Refused("done", "k1")
        assert await row_of(bench, begun) == row

    @scenario
    async def test_end_of_what_did_not_happen(self, bench: Bench) -> None:
        """Its record goes; sent again it is gone already, also when another has begun since, whose record stays."""
        begun, other = beginning(), beginning(token="t2")
        await bench.apply(begun)
        nothing = ending_of(begun, None)
        assert (await bench.apply(nothing)).request is None
        assert await bench.store.request("default", "k1") is None
        assert (await bench.apply(nothing)).request is None
        assert await bench.one(ending_of(begun)) == Conflict()
        await bench.apply(other)
        assert (await bench.apply(nothing)).request is None
        assert (await row_of(bench, begun)).token == "t2"

    @scenario
    async def test_only_its_own_token_moves_a_request(self, bench: Bench) -> None:
        """Whoever has another token neither holds nor ends it, and is shown what stands."""
        begun, stranger = beginning(), beginning(token="t2")
        await bench.apply(begun)
        row = await row_of(bench, begun)
        for change in (holding(stranger), ending_of(stranger), ending_of(beginning("k2"))):
            shown = row if change.request_id == "k1" else None
            assert await bench.one(change) == Conflict(request=shown)
        await bench.apply(ending_of(stranger, None))
        assert await row_of(bench, begun) == row
        assert await bench.one(holding(beginning("k2"))) == Conflict()

    @scenario
    async def test_hold_is_by_the_store_s_clock(self, bench: Bench) -> None:
        """Until its time is over it is running; then it is in doubt, and no time ends that; whoever began it may take it up again."""
        begun = beginning()
        await bench.apply(begun)
        bench.clock.advance(HOLD - LEAST)
        assert (await row_of(bench, begun)).state is RequestState.RUNNING
        held = await bench.apply(holding(begun))
        assert held.request == await row_of(bench, begun)
        bench.clock.advance(HOLD - LEAST)
        assert (await row_of(bench, begun)).state is RequestState.RUNNING
        bench.clock.advance(LEAST)
        doubt = await row_of(bench, begun)
        assert doubt.state is RequestState.IN_DOUBT
        assert await bench.one(beginning(token="t2")) == Conflict(request=doubt)
        bench.clock.advance(KEEP * 400)
        assert (await bench.apply(PurgeRequests("default", 100))).removed == 0
        assert await bench.one(beginning(token="t2")) == Conflict(request=doubt)
        await bench.apply(holding(begun))
        assert (await row_of(bench, begun)).state is RequestState.RUNNING

    @scenario
    async def test_late_end_counts(self, bench: Bench) -> None:
        """As long as nobody has said anything, the outcome is the outcome."""
        begun = beginning()
        await in_doubt(bench, begun)
        bench.clock.advance(KEEP)
        await bench.apply(ending_of(begun))
        row = await row_of(bench, begun)
        assert (row.state, row.answer) == (RequestState.DONE, b"201")
        assert row.expires_at == bench.clock.now() + KEEP

    @scenario
    async def test_done_expires_by_the_store_s_clock(self, bench: Bench) -> None:
        """Until its time is over it answers; then it is as good as gone."""
        begun, other = beginning(), beginning(token="t2")
        await bench.apply(begun)
        await bench.apply(ending_of(begun))
        bench.clock.advance(KEEP - LEAST)
        assert isinstance(await bench.one(other), Conflict)
        bench.clock.advance(LEAST)
        assert (await row_of(bench, begun)).state is RequestState.EXPIRED
        assert (await bench.apply(other)).request == await row_of(bench, other)
        row = await row_of(bench, other)
        assert (row.token, row.state, row.answer) == ("t2", RequestState.RUNNING, b"")

    @scenario
    async def test_resolved_as_happened(self, bench: Bench) -> None:
        """An operator's answer is the answer; who said so and why is kept; said again it is said."""
        begun = beginning(keep=HOLD)
        await in_doubt(bench, begun)
        first = await bench.apply(resolving(begun))
        row = await row_of(bench, begun)
        assert first == Applied(bench.clock.now(), request=row)
        assert (row.state, row.answer, row.token) == (RequestState.DONE, b"200", "t1")
        assert (row.by, row.reason, row.resolved_at) == ("root", "looked it up", bench.clock.now())
        assert row.expires_at == bench.clock.now() + HOLD
        bench.clock.advance(HOLD / 2)
        assert await bench.apply(resolving(begun)) == first
        assert await bench.one(resolving(begun, by="eve")) == Refused("done", "k1")
        assert await bench.one(resolving(begun, None)) == Refused("done", "k1")
        # What comes late and says something else changes nothing.
        for late in (ending_of(begun), ending_of(begun, None), holding(begun)):
            assert await bench.one(late) == Conflict(request=row)
        assert (await bench.apply(ending_of(begun, b"200"))).request == row
        assert await row_of(bench, begun) == row

    @scenario
    async def test_an_operator_s_answer_is_corrected(self, bench: Bench) -> None:
        """Exactly the one that was seen, and by another answer; what no operator has resolved stands."""
        begun = beginning()
        await in_doubt(bench, begun)
        await bench.apply(resolving(begun, b"odd"))
        seen = bench.clock.now()
        bench.clock.advance(HOLD)
        mended = resolving(begun, b"200", corrects=seen, by="eve", reason="it was no JSON")
        assert await bench.one(replace(mended, corrects=seen + LEAST)) == Refused("done", "k1")
        assert await bench.one(replace(mended, happened=False)) == Refused("done", "k1")
        assert await bench.one(replace(mended, token="t2")) == Refused("mismatch", "k1")
        first = await bench.apply(mended)
        row = await row_of(bench, begun)
        assert first.request == row
        assert (row.state, row.answer, row.by) == (RequestState.DONE, b"200", "eve")
        assert row.expires_at == bench.clock.now() + KEEP
        assert await bench.apply(mended) == first
        other = beginning("k2")
        await bench.apply(other)
        await bench.apply(ending_of(other, b"odd"))
        assert await bench.one(resolving(other, corrects=seen)) == Refused("done", "k2")

    @scenario
    async def test_resolved_as_not_happened(self, bench: Bench) -> None:
        """The key is free for another; until then the record says who freed it and why; said again it is said."""
        begun = beginning()
        await in_doubt(bench, begun)
        first = await bench.apply(resolving(begun, None))
        row = await row_of(bench, begun)
        assert first.request == row
        assert (row.state, row.answer, row.by) == (RequestState.FREED, b"", "root")
        assert await bench.apply(resolving(begun, None)) == first
        assert await bench.one(resolving(begun)) == Refused("freed", "k1")
        assert await bench.one(holding(begun)) == Conflict(request=row)
        assert (await bench.apply(ending_of(begun, None))).request is None
        assert await row_of(bench, begun) == row
        await bench.apply(beginning(token="t2"))
        again = await row_of(bench, begun)
        assert (again.token, again.by, again.state) == ("t2", "", RequestState.RUNNING)
        assert await bench.one(ending_of(begun)) == Conflict(request=again)
        assert await bench.one(resolving(begun, None)) == Refused("mismatch", "k1")

    @scenario
    async def test_freed_request_begins_anew_for_its_own_token_too(self, bench: Bench) -> None:
        """Nobody who is told that a record is his works without one that keeps others out."""
        begun = beginning()
        await in_doubt(bench, begun)
        await bench.apply(resolving(begun, None))
        again = await bench.apply(begun)
        assert again.request == await row_of(bench, begun)
        assert (await row_of(bench, begun)).state is RequestState.RUNNING
        assert isinstance(await bench.one(beginning(token="t2")), Conflict)

    @scenario
    async def test_what_happened_after_all_is_not_done_again(self, bench: Bench) -> None:
        """The outcome of a freed request that nobody has begun anew is recorded, beside what the operator said."""
        begun = beginning()
        await in_doubt(bench, begun)
        await bench.apply(resolving(begun, None))
        late = await bench.apply(ending_of(begun))
        row = await row_of(bench, begun)
        assert late.request == row
        assert (row.state, row.answer, row.by) == (RequestState.DONE, b"201", "root")
        assert (await bench.apply(ending_of(begun))).request == row
        assert await bench.one(beginning(token="t2")) == Conflict(request=row)

    @scenario
    async def test_resolution_must_fit(self, bench: Bench) -> None:
        """Unknown, seen otherwise, and held ones are refused, each with its word; nothing changes."""
        begun = beginning()
        assert await bench.one(resolving(begun)) == Refused("unknown", "k1")
        await bench.apply(begun)
        row = await row_of(bench, begun)
        assert await bench.one(resolving(begun)) == Refused("running", "k1")
        assert await bench.one(resolving(begun, token="t9")) == Refused("mismatch", "k1")
        bench.clock.advance(HOLD)
        assert await bench.one(resolving(begun, None, token="t9")) == Refused("mismatch", "k1")
        assert await row_of(bench, begun) == replace(row, state=RequestState.IN_DOUBT)
        await bench.apply(ending_of(begun))
        bench.clock.advance(KEEP)
        assert await bench.one(resolving(begun)) == Refused("unknown", "k1")

    @scenario
    async def test_tenants_are_apart(self, bench: Bench) -> None:
        """A key of one tenant is none of another's, in every change and every look."""
        mine, theirs = beginning(), beginning(tenant="other")
        await bench.apply(mine)
        assert await bench.store.request("other", "k1") is None
        assert await bench.one(resolving(theirs)) == Refused("unknown", "k1")
        for change in (holding(theirs), ending_of(theirs)):
            assert await bench.one(change) == Conflict()
        await bench.apply(theirs)
        await bench.apply(ending_of(theirs))
        assert (await row_of(bench, mine)).state is RequestState.RUNNING
        (listed,) = await bench.store.requests("default", states=EVERY)
        assert listed == await row_of(bench, mine)
        bench.clock.advance(KEEP)
        assert (await bench.apply(PurgeRequests("default", 10))).removed == 0
        await bench.apply(beginning("k2", token="t2"))
        assert (await row_of(bench, theirs)).state is RequestState.EXPIRED
        assert (await bench.apply(PurgeRequests("other", 10))).removed == 1
        assert await bench.store.request("other", "k1") is None

    @scenario
    async def test_list_by_state(self, bench: Bench) -> None:
        """Each state is told by the store's clock; pages follow each other newest first, without answers."""
        names = ["freed", "done", "doubt", "old", "older"]
        for name in names:
            await bench.apply(beginning(name))
        for name in ("old", "older"):
            await bench.apply(replace(ending_of(beginning(name)), keep=LEAST))
        await bench.apply(ending_of(beginning("done")))
        bench.clock.advance(HOLD)
        await bench.apply(resolving(beginning("freed"), None))
        await bench.apply(beginning("running", keep=LEAST))

        async def ids(*states: RequestState, **page: Any) -> list[str]:
            rows = await bench.store.requests("default", states=frozenset(states), **page)
            assert all(row.state in states and row.answer == b"" for row in rows)
            return [row.request_id for row in rows]

        # Those that were expired went when the last one began.
        assert await ids(RequestState.RUNNING) == ["running"]
        assert await ids(RequestState.DONE) == ["done"]
        assert await ids(RequestState.FREED) == ["freed"]
        assert await ids(RequestState.IN_DOUBT) == ["doubt"]
        assert await ids(RequestState.EXPIRED) == []
        assert await ids() == []
        newest = await ids(*EVERY, limit=2)
        assert newest == ["running", "freed"]
        last = await row_of(bench, beginning("freed"))
        rest = await ids(*EVERY, before=(last.started_at, last.request_id))
        assert rest == ["doubt", "done"]
        assert await ids(*EVERY, limit=0) == []
        bench.clock.advance(KEEP)
        assert await ids(RequestState.EXPIRED) == ["freed", "done"]
        assert await ids(RequestState.EXPIRED, limit=1) == ["freed"]
        assert await ids(RequestState.DONE, RequestState.FREED) == []
        assert await ids(RequestState.IN_DOUBT) == ["running", "doubt"]

    @scenario
    async def test_expired_ones_go_in_passing(self, bench: Bench) -> None:
        """Each that begins removes a few, those first whose time was over first; a purge removes so many as it says."""
        count = PURGED_IN_PASSING + 5
        for number in range(count):
            begun = beginning(f"k{number:02}")
            await bench.apply(begun)
            await bench.apply(replace(ending_of(begun), keep=timedelta(seconds=count - number)))
        bench.clock.advance(timedelta(seconds=count))
        await bench.apply(beginning("new"))
        left = await bench.store.requests("default", states=frozenset({RequestState.EXPIRED}))
        assert {row.request_id for row in left} == {f"k{number:02}" for number in range(5)}
        assert (await bench.apply(PurgeRequests("default", 0))).removed == 0
        assert (await bench.apply(PurgeRequests("default", 2))).removed == 2
        left = await bench.store.requests("default", states=frozenset({RequestState.EXPIRED}))
        assert {row.request_id for row in left} == {"k00", "k01", "k02"}
        assert (await bench.apply(PurgeRequests("default", 9))).removed == 3
        assert (await row_of(bench, beginning("new"))).state is RequestState.RUNNING

    @scenario
    async def test_unstorable_request_is_refused(self, bench: Bench) -> None:
        """What no store can keep is refused with its name, and nothing of it is written."""
        large = bytes(MAX_BODY_BYTES + 1)
        assert await bench.one(beginning(note=large)) == Refused("unstorable", "note")
        assert await bench.one(beginning(fingerprint="a\0")) == Refused("unstorable", "fingerprint")
        assert await bench.one(beginning(hold=timedelta(0))) == Refused("unstorable", "hold")
        assert await bench.store.request("default", "k1") is None
        await bench.apply(beginning())
        assert await bench.one(ending_of(beginning(), large)) == Refused("unstorable", "answer")
        assert (await row_of(bench, beginning())).state is RequestState.RUNNING

    @scenario
    async def test_what_no_row_can_hold_is_no_request(self, bench: Bench) -> None:
        """Text that cannot be encoded finds nothing, and a limit beyond 63 bits finds all."""
        await bench.apply(beginning())
        assert await bench.store.request("default", "\udcff") is None
        assert await bench.store.request("\udcff", "k1") is None
        assert await bench.store.requests("\udcff", states=EVERY) == []
        assert len(await bench.store.requests("default", states=EVERY, limit=10**20)) == 1
