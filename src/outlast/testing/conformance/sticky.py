"""What a store promises of decisions that stick: made with a decision, counted with a request, taken back, and found by whom they reach."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from outlast.journal.asking import Reach, Terms, Vote
from outlast.store.change import (
    Applied,
    ApprovalPut,
    CoverRow,
    Guard,
    Message,
    MessageKind,
    PutControl,
    Refused,
    RevokeSticky,
    RunHead,
    RunKey,
    Terminate,
)
from outlast.store.sticky import STICKY, StickyPut, StickyRow
from outlast.store.sticky_condition import StickyFilter, vote_of
from outlast.testing.conformance.approval import LONG, deciding
from outlast.testing.conformance.bench import (
    Bench,
    asking,
    following,
    scenario,
    starting,
)

HOUR = timedelta(hours=1)
TERMS = Terms("maintainer", HOUR, 2 * HOUR, sticky="workflow")
ONE = (CoverRow("pay", "h1"),)


def sticking(sticky_id: str = "s1", reach: Reach = "run", **fields: Any) -> StickyPut:
    """Return what of a decision is to stick."""
    return StickyPut(sticky_id, "pay", reach, **fields)


def asked(bench: Bench, approval_id: str = "a1", **fields: Any) -> ApprovalPut:
    """Return a request for one call of the effect."""
    given: dict[str, Any] = {"terms": TERMS, "covers": ONE, **fields}
    return asking(bench.clock, approval_id, **given)


async def owned(bench: Bench, name: str = "run") -> RunHead:
    """Return the head of a new run that a new worker has claimed for long."""
    worker = await bench.worker(f"w-{name}", lease=LONG)
    return await bench.head(await bench.start(name, worker=worker))


async def stuck(
    bench: Bench, put: StickyPut, /, *, name: str = "run", approved: bool = True, **fields: Any
) -> RunHead:
    """Return the head of a run after a decision on its request that is to stick, by these fields of the request."""
    head = await owned(bench, name)
    await bench.apply(following(head, approvals=(asked(bench, **fields),)))
    await bench.apply(deciding(head.run, approved=approved, sticky=put))
    return await bench.head(head.run)


async def found(bench: Bench, sticky_id: str = "s1") -> StickyRow:
    """Return a decision, whatever has become of it."""
    (row,) = await bench.store.sticky("default", StickyFilter(sticky_id=sticky_id, over=True))
    return row


async def version(bench: Bench) -> int:
    """Return how often something was made or taken back."""
    row = await bench.store.control("default", STICKY)
    return 0 if row is None else row[0]


async def answers(bench: Bench, head: RunHead, *votes: Vote, **fields: Any) -> Any:
    """Return the verdict on requests of a run that are answered so, each by one vote."""
    puts = [
        asked(bench, f"b{head.version}-{n}", votes=(vote,), **fields)
        for n, vote in enumerate(votes)
    ]
    return await bench.one(following(head, approvals=tuple(puts)))


class StickyConformance:
    """Decisions that stick."""

    @scenario
    async def test_a_decision_that_sticks_is_kept_as_it_was_made(self, bench: Bench) -> None:
        """With who made it, when and on what, in its tenant alone; the control row moves on, and a second sending moves nothing."""
        put = sticking(
            version="2",
            agent="a",
            server="s",
            turn="1:3",
            action_sha256="h",
            where=b'{"to":"1"}',
            when=b'[["n","at_most",5]]',
            uses=3,
            expires_in=HOUR,
            reason=b"fine",
        )
        head = await owned(bench)
        await bench.apply(following(head, approvals=(asked(bench),)))
        decision = deciding(head.run, behalf="zoe", sticky=put)
        for _ in range(2):
            await bench.apply(decision)
        row = await found(bench)
        now = bench.clock.now()
        assert row == StickyRow(
            "default", "s1", "run", row.incarnation, head.workflow, "a1", "maintainer", True, "bob",
            "zoe", now, put, expires_at=now + HOUR, uses=3,
        )  # fmt: skip
        assert await version(bench) == 1
        assert await bench.store.sticky("other", StickyFilter(over=True)) == []

    @scenario
    async def test_a_refused_decision_leaves_nothing_that_sticks(self, bench: Bench) -> None:
        """Late, by an id that is there, or found out on roles that are not those of now."""
        head = await stuck(bench, sticking())
        await bench.apply(following(head, approvals=(asked(bench, "a2"),)))
        message = Message("d2", MessageKind.DECISION, "a2", "bob", b"{}")
        again = deciding(head.run, approval_id="a2", message=message, sticky=sticking())
        assert await bench.one(again) == Refused("sticky", "s1")
        stale = replace(again, sticky=sticking("s2"), guards=(Guard("default", "roles", 7),))
        assert await bench.one(stale) == Refused("stale", "roles")
        bench.clock.advance(2 * HOUR)
        late = replace(again, sticky=sticking("s2"))
        assert await bench.one(late) == Refused("expired", "a2")
        assert await bench.store.sticky("default", StickyFilter(sticky_id="s2", over=True)) == []
        assert await version(bench) == 1
        states = {
            row.put.approval_id: row.state
            for row in await bench.store.approvals("default", pending=False)
        }
        assert states["a1"] == "approved"
        assert states["a2"] != "approved"

    @scenario
    async def test_a_yes_sticks_as_far_as_the_terms_let_it(self, bench: Bench) -> None:
        """Not farther, not of several, not of another role than those name first, of two covers or another effect, and no edit."""
        run = TERMS.role
        wrong: list[dict[str, Any]] = [
            {"terms": replace(TERMS, sticky="turn")},
            {"terms": replace(TERMS, sticky="no")},
            {"terms": replace(TERMS, quorum=2)},
            {"terms": replace(TERMS, role="other"), "role": run},
            {"covers": (*ONE, *ONE)},
            {"covers": (CoverRow("other", "h1"),)},
            {"kind": "question"},
            {"terms": None},
        ]
        head = await owned(bench)
        for number, fields in enumerate(wrong):
            await bench.apply(following(head, approvals=(asked(bench, f"a{number}", **fields),)))
            head = await bench.head(head.run)
            decision = deciding(head.run, approval_id=f"a{number}", sticky=sticking())
            assert await bench.one(decision) == Refused("sticky", f"a{number}"), fields
        terms = replace(TERMS, edits="yes")
        await bench.apply(following(head, approvals=(asked(bench, "e", terms=terms),)))
        edit = deciding(head.run, approval_id="e", approved=False, edit=True, sticky=sticking())
        assert await bench.one(edit) == Refused("sticky", "e")
        assert await version(bench) == 0

    @scenario
    async def test_a_no_sticks_whatever_the_terms(self, bench: Bench) -> None:
        """And answers no request."""
        terms = replace(TERMS, sticky="no", quorum=2)
        head = await stuck(bench, sticking(reach="workflow"), approved=False, terms=terms)
        row = await found(bench)
        assert not row.approved
        verdict = await answers(bench, head, vote_of(row))
        assert verdict == Refused("sticky", "s1")

    @scenario
    async def test_an_answered_request_uses_it_once(self, bench: Bench) -> None:
        """Request and use are one: of two in one change both count, and where one is too many neither does."""
        head = await stuck(bench, sticking(uses=3))
        vote = vote_of(await found(bench))
        assert isinstance(await answers(bench, head, vote), Applied)
        row = await found(bench)
        assert (row.uses, row.used) == (2, 1)
        head = await bench.head(head.run)
        assert await answers(bench, head, vote, vote, vote) == Refused("sticky", "s1")
        assert await found(bench) == row
        assert len(await bench.store.approvals("default", pending=False)) == 2
        assert isinstance(await answers(bench, head, vote, vote), Applied)
        row = await found(bench)
        assert (row.uses, row.used) == (0, 3)
        assert not row.sticks(bench.clock.now())
        head = await bench.head(head.run)
        assert await answers(bench, head, vote) == Refused("sticky", "s1")
        states = {one.state for one in await bench.store.approvals("default", pending=False)}
        assert states == {"approved"}
        # Nothing was made, and nothing taken back.
        assert await version(bench) == 1

    @scenario
    async def test_it_answers_nothing_that_it_is_not_about(self, bench: Bench) -> None:
        """Another role, effect, person, time or place of the decision; terms that let none stick so far; four eyes; who is barred."""
        head = await stuck(bench, sticking())
        vote = vote_of(await found(bench))
        eyes = replace(TERMS, four_eyes=True)
        wrong: list[dict[str, Any]] = [
            {"role": "other"},
            {"covers": (CoverRow("other", "h1"),)},
            {"covers": (*ONE, *ONE)},
            {"terms": replace(TERMS, sticky="turn")},
            {"terms": replace(TERMS, quorum=2)},
            {"terms": None},
            {"terms": eyes, "requesters": ("bob",)},
            {"terms": eyes, "requesters": ("",)},
            {"terms": eyes},
            {"barred": ("bob",)},
        ]
        for fields in wrong:
            verdict = await answers(bench, head, vote, **fields)
            assert verdict == Refused("sticky", "s1"), fields
        for other in (
            replace(vote, by="eve"),
            replace(vote, behalf="eve"),
            replace(vote, at=vote.at + HOUR),
            replace(vote, run="other"),
            replace(vote, approval="other"),
        ):
            assert await answers(bench, head, other) == Refused("sticky", "s1")
        unknown = replace(vote, sticky="s2")
        assert await answers(bench, head, unknown) == Refused("sticky", "s2")
        verdict = await answers(bench, head, vote, terms=eyes, requesters=("ann",))
        assert isinstance(verdict, Applied)

    @scenario
    async def test_it_ends_at_its_time(self, bench: Bench) -> None:
        """By the store's clock, at that very moment."""
        head = await stuck(bench, sticking(expires_in=HOUR / 2))
        row = await found(bench)
        bench.clock.advance(HOUR / 2 - timedelta(microseconds=1))
        assert isinstance(await answers(bench, head, vote_of(row)), Applied)
        bench.clock.advance(timedelta(microseconds=1))
        head = await bench.head(head.run)
        assert await answers(bench, head, vote_of(row)) == Refused("sticky", "s1")
        assert await bench.store.sticky("default", StickyFilter(run=head.run)) == []
        assert len(await bench.store.sticky("default", StickyFilter(run=head.run, over=True))) == 1

    @scenario
    async def test_what_is_taken_back_answers_nothing(self, bench: Bench) -> None:
        """Once, by whoever was found to be authorised; it stays, with who did it and why; what rested on the old version is refused."""
        head = await stuck(bench, sticking())
        row = await found(bench)
        change = RevokeSticky("default", "s1", "ann", b"a mistake")
        assert await bench.one(replace(change, sticky_id="s2")) == Refused("unknown", "s2")
        assert await bench.one(replace(change, tenant="other")) == Refused("unknown", "s1")
        stale = replace(change, guards=(Guard("default", "roles", 1),))
        assert await bench.one(stale) == Refused("stale", "roles")
        assert await version(bench) == 1
        bench.clock.advance(HOUR / 4)
        await bench.apply(PutControl("default", "roles", 0, b"{}"))
        await bench.apply(stale)
        assert await bench.one(change) == Refused("revoked", "s1")
        now = bench.clock.now()
        assert await found(bench) == replace(
            row, revoked_at=now, revoked_by="ann", revoked_why=b"a mistake"
        )
        assert await version(bench) == 2
        assert await answers(bench, head, vote_of(row)) == Refused("sticky", "s1")

    @scenario
    async def test_each_reach_is_found_by_those_whom_it_reaches(self, bench: Bench) -> None:
        """A run's own, one life of it; a workflow's runs; never another tenant's. What is not reached is not answered."""
        await stuck(bench, sticking("near"), name="one")
        await stuck(bench, sticking("far", "workflow"), name="two")
        other = await owned(bench, "three")
        await bench.apply(starting("four", workflow="another"))

        async def reached(name: str, *, effect: str = "pay", tenant: str = "default") -> list[str]:
            wanted = StickyFilter(run=RunKey(tenant, name), effect=effect)
            rows = await bench.store.sticky(tenant, wanted)
            everything = await bench.store.sticky(tenant, replace(wanted, over=True))
            assert rows == everything
            return [row.sticky_id for row in rows]

        assert await reached("one") == ["far", "near"]
        assert await reached("one", effect="") == ["far", "near"]
        assert await reached("one", effect="other") == []
        assert await reached("two") == await reached("three") == ["far"]
        assert await reached("four") == await reached("nobody") == []
        assert await reached("one", tenant="other") == []
        near, far = await found(bench, "near"), await found(bench, "far")
        assert await answers(bench, other, vote_of(near)) == Refused("sticky", "near")
        assert isinstance(await answers(bench, other, vote_of(far)), Applied)

    @scenario
    async def test_the_next_run_of_an_id_is_another_one(self, bench: Bench) -> None:
        """What stuck to the run that has ended does not reach it; what sticks to the workflow does."""
        head = await stuck(bench, sticking())
        row = await found(bench)
        await bench.apply(Terminate(head.run, "root", "enough"))
        await bench.apply(starting(generation=2, worker=head.owner))
        head = await bench.head(head.run)
        assert await bench.store.sticky("default", StickyFilter(run=head.run, effect="pay")) == []
        assert await bench.store.sticky("default", StickyFilter(run=head.run, over=True)) == []
        assert await answers(bench, head, vote_of(row)) == Refused("sticky", "s1")

    @scenario
    async def test_decisions_are_listed_page_by_page(self, bench: Bench) -> None:
        """Oldest first, also those of one moment; those that are over only when they are asked for."""
        head = await owned(bench)
        for number in range(5):
            name = f"a{number}"
            await bench.apply(following(head, approvals=(asked(bench, name),)))
            message = Message(f"d{number}", MessageKind.DECISION, name, "bob", b"{}")
            put = sticking(f"s{9 - number}")
            await bench.apply(deciding(head.run, approval_id=name, message=message, sticky=put))
            head = await bench.head(head.run)
            if number in (1, 3):
                bench.clock.advance(HOUR / 9)
        await bench.apply(RevokeSticky("default", "s7", "ann"))
        for over, names in (
            (True, ["s8", "s9", "s6", "s7", "s5"]),
            (False, ["s8", "s9", "s6", "s5"]),
        ):
            whole = await bench.store.sticky("default", StickyFilter(over=over))
            assert [row.sticky_id for row in whole] == names
            pages: list[StickyRow] = []
            while True:
                after = pages[-1].key if pages else None
                wanted = StickyFilter(over=over, limit=2, after=after)
                page = await bench.store.sticky("default", wanted)
                pages += page
                if len(page) < 2:
                    break
            assert pages == whole
        assert await bench.store.sticky("default", StickyFilter(limit=0)) == []
