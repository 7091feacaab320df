"""What a store promises of requests with terms: who may say what, how many have to, and what came of each that said something."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from outlast.journal.asking import Edits, Rung, Terms, Vote
from outlast.store.change import (
    Applied,
    ApprovalExpire,
    ApprovalWithdraw,
    Decide,
    Guard,
    Message,
    MessageKind,
    PutControl,
    Refused,
    RunHead,
    RunKey,
)
from outlast.testing.conformance.approval import deciding, requested, spending, standing
from outlast.testing.conformance.bench import Bench, asking, following, parking, scenario

HOUR = timedelta(hours=1)


def terms(
    *, quorum: int = 1, four_eyes: bool = False, edits: Edits = "no", role: str = "maintainer"
) -> Terms:
    """Return terms of which only those that a decision is judged by can be chosen."""
    return Terms(
        role,
        HOUR,
        2 * HOUR,
        quorum,
        four_eyes,
        edits,
        (Rung("boss", HOUR), Rung("boss", 2 * HOUR)),
        (HOUR / 2,),
    )


def saying(run: RunKey, by: str, word: str = "yes", **fields: Any) -> Decide:
    """Return what somebody says: `yes`, `no` or `edit`."""
    message = Message(f"{word}/{by}", MessageKind.DECISION, "a1", by, b"{}")
    given: dict[str, Any] = {
        "approved": word == "yes",
        "edit": word == "edit",
        "by": by,
        "message": message,
    }
    return deciding(run, **{**given, **fields})


async def results(bench: Bench, run: RunKey) -> list[str]:
    """Return what came of the decisions that are in a run's inbox."""
    return [one.message.result for one in await bench.store.mail(run)]


class VoteConformance:
    """Votes, edits, and whoever may not."""

    @scenario
    async def test_request_is_kept_as_it_was_put(self, bench: Bench) -> None:
        """Terms, kind, persons and votes come back as they were given; the votes as the row's."""
        first = Vote("ann", bench.clock.now(), "pat")
        put = asking(
            bench.clock,
            terms=terms(quorum=3, four_eyes=True, edits="second"),
            kind="question",
            requesters=("alice", "rita"),
            barred=("eve",),
        )
        head = await bench.owned()
        await bench.apply(following(head, approvals=(replace(put, votes=(first,)),)))
        row = await standing(bench, head.run)
        assert (row.put, row.votes, row.state, row.by) == (put, (first,), "pending", "")
        (listed,) = await bench.store.approvals("default")
        assert listed == row

    @scenario
    async def test_last_vote_that_is_needed_approves(self, bench: Bench) -> None:
        """Each yes is kept with its time, its message says what came of it, and only the last one grants anything."""
        head = await requested(bench, terms=terms(quorum=3))
        await bench.apply(parking(head))
        times: list[Any] = []
        for by in ("bob", "carol", "dave"):
            row = await standing(bench, head.run)
            assert (row.state, row.decided_at, row.by) == ("pending", None, "")
            bench.clock.advance(timedelta(minutes=1))
            times.append(bench.clock.now())
            await bench.apply(saying(head.run, by))
        row = await standing(bench, head.run)
        assert [(vote.by, vote.at) for vote in row.votes] == [
            ("bob", times[0]),
            ("carol", times[1]),
            ("dave", times[2]),
        ]
        assert (row.state, row.decided_at, row.by) == ("approved", times[2], "dave")
        assert await results(bench, head.run) == ["vote", "vote", "approved"]
        assert await bench.one(saying(head.run, "erin")) == Refused("decided", "a1")

    @scenario
    async def test_votes_grant_nothing_before_the_last(self, bench: Bench) -> None:
        """A request that has some of its votes cannot be spent."""
        head = await requested(bench, terms=terms(quorum=2))
        await bench.apply(saying(head.run, "bob"))
        change = following(head, spends=(spending(),))
        assert await bench.one(change) == Refused("unapproved", "a1")
        await bench.apply(saying(head.run, "carol"))
        await bench.apply(change)

    @scenario
    async def test_a_vote_offers_the_run(self, bench: Bench) -> None:
        """Whoever waits for a decision is told of each vote."""
        head = await requested(bench, terms=terms(quorum=2))
        await bench.apply(parking(head))
        assert head.owner is not None
        assert (await bench.claim(head.owner)).runs == ()
        await bench.apply(saying(head.run, "bob"))
        assert (await bench.claim_one(head.owner)).mail

    @scenario
    async def test_one_no_denies_whoever_said_yes(self, bench: Bench) -> None:
        """A no closes the request, also that of one who said yes before; the votes stay on record."""
        head = await requested(bench, terms=terms(quorum=2))
        await bench.apply(saying(head.run, "bob"))
        await bench.apply(saying(head.run, "bob", "no"))
        row = await standing(bench, head.run)
        assert (row.state, row.by, [vote.by for vote in row.votes]) == ("denied", "bob", ["bob"])
        assert await results(bench, head.run) == ["vote", "denied"]
        assert await bench.one(saying(head.run, "carol")) == Refused("decided", "a1")

    @scenario
    async def test_the_same_word_again_counts_once(self, bench: Bench) -> None:
        """The same message again is applied without effect, and what came of it the first time stays what came of it."""
        head = await requested(bench, terms=terms(quorum=2))
        first = await bench.apply(saying(head.run, "bob"))
        bench.clock.advance(timedelta(minutes=1))
        assert await bench.apply(saying(head.run, "bob")) == Applied(first.at)
        assert len((await standing(bench, head.run)).votes) == 1
        await bench.apply(saying(head.run, "carol"))
        assert await bench.apply(saying(head.run, "bob")) == Applied(first.at)
        assert await results(bench, head.run) == ["vote", "approved"]

    @scenario
    async def test_another_word_under_the_same_id_is_refused(self, bench: Bench) -> None:
        """Where messages say what they say, another one under a known id is told, and decides nothing."""
        head = await requested(bench, terms=terms(quorum=2))

        def said(digest: str, **fields: Any) -> Decide:
            message = Message("d1", MessageKind.DECISION, "a1", "bob", b"{}", digest)
            return deciding(head.run, message=message, **fields)

        await bench.apply(said("x"))
        assert await bench.one(said("y", approved=False)) == Refused("other", "d1")
        assert (await standing(bench, head.run)).state == "pending"

    @scenario
    async def test_a_person_votes_once(self, bench: Bench) -> None:
        """Neither again in his own name nor for another, nor is he whose delegate has said yes one person more."""
        head = await requested(bench, terms=terms(quorum=3))
        await bench.apply(saying(head.run, "bob", behalf="pat"))
        voted = Refused("voted", "a1")
        other = Message("other", MessageKind.DECISION, "a1", "bob", b"{}")
        assert await bench.one(saying(head.run, "bob", message=other)) == voted
        assert await bench.one(saying(head.run, "pat")) == voted
        assert await bench.one(saying(head.run, "carol", behalf="pat")) == voted
        assert await bench.one(saying(head.run, "carol", behalf="bob")) == voted
        await bench.apply(saying(head.run, "carol"))
        row = await standing(bench, head.run)
        assert [(vote.by, vote.behalf) for vote in row.votes] == [("bob", "pat"), ("carol", "")]

    @scenario
    async def test_nobody_in_particular_votes_once(self, bench: Bench) -> None:
        """Whoever is not named is one person, however often; under four eyes he may be anybody, and so may not."""
        head = await requested(bench, terms=terms(quorum=3))
        other = Message("other", MessageKind.DECISION, "a1", "", b"{}")
        await bench.apply(saying(head.run, "bob"))
        await bench.apply(saying(head.run, ""))
        assert await bench.one(saying(head.run, "", message=other)) == Refused("voted", "a1")
        head = await _next(bench, head, terms=terms(four_eyes=True), requesters=("alice",))
        assert await bench.one(saying(head.run, "", approval_id="a2", message=other)) == Refused(
            "self", "a2"
        )

    @scenario
    async def test_four_eyes(self, bench: Bench) -> None:
        """Nobody who started the run says yes or edits, himself or by a delegate; a no he may say."""
        head = await requested(
            bench, terms=terms(four_eyes=True, edits="yes"), requesters=("alice", "rita")
        )
        refused = Refused("self", "a1")
        for by, behalf in (("alice", ""), ("rita", ""), ("bob", "alice"), ("alice", "bob")):
            for word in ("yes", "edit"):
                assert await bench.one(saying(head.run, by, word, behalf=behalf)) == refused
        assert (await standing(bench, head.run)).votes == ()
        await bench.apply(saying(head.run, "alice", "no"))
        assert (await standing(bench, head.run)).state == "denied"

    @scenario
    async def test_four_eyes_of_nobody_knows_whom(self, bench: Bench) -> None:
        """Where it is not known who started the run, or who its origin, nobody can be told to be somebody else."""
        for requesters in ((), ("",), ("alice", "")):
            head = await _fresh(bench, terms=terms(four_eyes=True), requesters=requesters)
            assert await bench.one(saying(head.run, "bob")) == Refused("self", "a1")
            await bench.apply(saying(head.run, "bob", "no"))

    @scenario
    async def test_without_four_eyes_the_starter_may(self, bench: Bench) -> None:
        """Who started the run counts under four eyes alone, and nothing else is asked of a request without terms."""
        head = await _fresh(bench, terms=terms(), requesters=("alice",))
        await bench.apply(saying(head.run, "alice"))
        head = await _fresh(bench, requesters=("alice",))
        await bench.apply(saying(head.run, "alice"))
        assert (await standing(bench, head.run)).state == "approved"

    @scenario
    async def test_barred_may_not(self, bench: Bench) -> None:
        """Who is kept out may neither say yes nor edit, by whatever terms; a no he may say."""
        for given in (None, terms(edits="yes")):
            head = await _fresh(bench, terms=given, barred=("bob",))
            refused = Refused("self", "a1")
            assert await bench.one(saying(head.run, "bob")) == refused
            assert await bench.one(saying(head.run, "carol", behalf="bob")) == refused
            assert await bench.one(saying(head.run, "bob", "edit")) == refused
            assert await bench.one(saying(head.run, "")) == refused
            await bench.apply(saying(head.run, "bob", "no"))

    @scenario
    async def test_role_that_is_asked(self, bench: Bench) -> None:
        """Whoever names his role names the one that is asked, whatever he says; the terms name that of the first rung."""
        put = {"terms": terms(edits="yes", role="first"), "role": "boss"}
        head = await requested(bench, **put)
        for word in ("yes", "no", "edit"):
            said = saying(head.run, "bob", word, role="first")
            assert await bench.one(said) == Refused("role", "a1")
        await bench.apply(saying(head.run, "bob", role="boss"))
        assert (await standing(bench, head.run)).state == "approved"

    @scenario
    async def test_edit_closes(self, bench: Bench) -> None:
        """An edit ends the request as edited, and grants nothing; later words are told so."""
        head = await requested(bench, terms=terms(quorum=2, edits="yes"))
        await bench.apply(saying(head.run, "bob"))
        await bench.apply(saying(head.run, "bob", "edit"))
        row = await standing(bench, head.run)
        assert (row.state, row.by, row.decided_at) == ("edited", "bob", bench.clock.now())
        assert [vote.by for vote in row.votes] == ["bob"]
        assert await results(bench, head.run) == ["vote", "edited"]
        for word in ("yes", "no", "edit"):
            assert await bench.one(saying(head.run, "carol", word)) == Refused("edited", "a1")
        change = following(head, spends=(spending(),))
        assert await bench.one(change) == Refused("unapproved", "a1")
        bench.clock.advance(HOUR)
        expire = following(head, approvals=(ApprovalExpire("a1"),))
        assert await bench.one(expire) == Refused("decided", "a1")
        await bench.apply(following(head, approvals=(ApprovalWithdraw("a1"),)))
        assert (await standing(bench, head.run)).state == "edited"

    @scenario
    async def test_edit_where_none_is_taken(self, bench: Bench) -> None:
        """Without terms, or by terms that take no edit, an edit is refused; so is one that says yes as well, by any terms."""
        for given in (None, terms(edits="no")):
            head = await _fresh(bench, terms=given)
            said = saying(head.run, "bob", "edit")
            assert await bench.one(said) == Refused("uneditable", "a1")
        for edits in ("yes", "second"):
            head = await _fresh(bench, terms=terms(edits=edits))
            both = saying(head.run, "bob", "edit", approved=True)
            assert await bench.one(both) == Refused("uneditable", "a1")
            assert (await standing(bench, head.run)).votes == ()
            await bench.apply(saying(head.run, "bob", "edit"))

    @scenario
    async def test_put_with_the_votes_that_are_needed(self, bench: Bench) -> None:
        """A request that begins with enough votes is approved as it is put, by the last of them, also where its time to decide is over."""
        now = bench.clock.now()
        votes = (Vote("ann", now), Vote("bob", now, "pat"))
        put = asking(bench.clock, terms=terms(quorum=2), expires_at=now)
        head = await bench.owned()
        change = following(
            head, approvals=(replace(put, votes=votes),), spends=(spending(operation="r:9"),)
        )
        applied = await bench.apply(change)
        row = await standing(bench, head.run)
        assert (row.state, row.by, row.decided_at) == ("approved", "bob", applied.at)
        assert (row.votes, row.spent) == (votes, ("r:9", ""))
        assert await bench.store.approvals("default") == []

    @scenario
    async def test_put_with_too_few_votes(self, bench: Bench) -> None:
        """Votes that a request begins with count like others: who has voted does not do so again, and one fewer is needed."""
        first = Vote("ann", bench.clock.now(), "pat")
        put = asking(bench.clock, terms=terms(quorum=2))
        head = await bench.owned()
        await bench.apply(following(head, approvals=(replace(put, votes=(first,)),)))
        for by in ("ann", "pat"):
            assert await bench.one(saying(head.run, by)) == Refused("voted", "a1")
        await bench.apply(saying(head.run, "bob"))
        assert (await standing(bench, head.run)).state == "approved"

    @scenario
    async def test_request_with_votes_ends_without_them(self, bench: Bench) -> None:
        """Withdrawn or expired, a request keeps its votes on record and takes no more."""
        for act, word in (
            (ApprovalWithdraw("a1"), "withdrawn"),
            (ApprovalExpire("a1"), "expired"),
        ):
            head = await _fresh(bench, terms=terms(quorum=2))
            await bench.apply(saying(head.run, "bob"))
            if word == "expired":
                assert await bench.one(following(head, approvals=(act,))) == Refused(
                    "not_due", "a1"
                )
                bench.clock.advance(HOUR)
            await bench.apply(following(head, approvals=(act,)))
            row = await standing(bench, head.run)
            assert (row.state, [vote.by for vote in row.votes]) == (word, ["bob"])
            assert (row.by, row.decided_at) == ("", None)
            assert await bench.one(saying(head.run, "carol")) == Refused(word, "a1")

    @scenario
    async def test_expired_stays_expired(self, bench: Bench) -> None:
        """A request that was closed because its time was over is not open again when the clock is set back."""
        head = await requested(bench, terms=terms())
        bench.clock.advance(HOUR)
        await bench.apply(following(head, approvals=(ApprovalExpire("a1"),)))
        bench.clock.set_wall(bench.clock.now() - HOUR)
        assert await bench.one(saying(head.run, "bob")) == Refused("expired", "a1")
        (listed,) = await bench.store.approvals("default", pending=False)
        assert (listed.state, await bench.store.approvals("default")) == ("expired", [])

    @scenario
    async def test_no_quorum_is_one(self, bench: Bench) -> None:
        """A request is never approved without a yes, whatever its terms say."""
        head = await requested(bench, terms=terms(quorum=0))
        assert (await standing(bench, head.run)).state == "pending"
        await bench.apply(saying(head.run, "bob"))
        assert (await standing(bench, head.run)).state == "approved"

    @scenario
    async def test_question(self, bench: Bench) -> None:
        """A question covers nothing: it is answered by the same words, and nothing can be spent of it."""
        head = await requested(bench, kind="question", covers=(), terms=terms(quorum=2))
        await bench.apply(saying(head.run, "bob"))
        await bench.apply(saying(head.run, "carol"))
        row = await standing(bench, head.run)
        assert (row.put.kind, row.state, row.spent) == ("question", "approved", ())
        change = following(head, spends=(spending(),))
        assert await bench.one(change) == Refused("mismatch", "a1")

    @scenario
    async def test_first_word_that_fits(self, bench: Bench) -> None:
        """Where several refusals hold, the first of the list is told; each that is mended shows the next."""
        head = await requested(
            bench, terms=terms(four_eyes=True, quorum=2), requesters=("alice",), barred=("eve",)
        )
        await bench.apply(saying(head.run, "bob"))
        stale = (Guard("default", "roles", 7),)
        wrong: dict[str, Any] = {"seen_sha256": "t", "role": "other", "guards": stale}
        said = saying(head.run, "alice", behalf="bob", **wrong)

        async def told(word: str, part: str = "a1", **mended: Any) -> None:
            nonlocal said
            said = replace(said, **mended)
            assert await bench.one(said) == Refused(word, part)

        await told("mismatch")
        await told("role", seen_sha256="s")
        await told("self", role="maintainer")
        await told("voted", by="carol")
        await told("stale", "roles", behalf="")
        edit = saying(head.run, "carol", "edit", guards=stale)
        assert await bench.one(edit) == Refused("uneditable", "a1")
        assert await bench.one(replace(edit, by="eve")) == Refused("self", "a1")
        bench.clock.advance(HOUR)
        await told("expired", **wrong)
        await bench.apply(following(head, approvals=(ApprovalWithdraw("a1"),)))
        await told("withdrawn")

    @scenario
    async def test_decision_rests_on_control_rows(self, bench: Bench) -> None:
        """A decision counts by the rows by which its author was found to be authorised, of his tenant and of all; a missing one is at 0."""
        head = await requested(bench, terms=terms(quorum=2))
        mine, every = Guard("default", "roles", 0), Guard("", "roles", 0)
        await bench.apply(saying(head.run, "bob", guards=(mine, every)))
        await bench.apply(PutControl("", "roles", 0, b"1"))
        late = saying(head.run, "carol", guards=(mine, every))
        assert await bench.one(late) == Refused("stale", "roles")
        assert await results(bench, head.run) == ["vote"]
        await bench.apply(replace(late, guards=(mine, Guard("", "roles", 1))))
        assert (await standing(bench, head.run)).state == "approved"

    @scenario
    async def test_control_row_comes_before_decisions(self, bench: Bench) -> None:
        """In one commit a row of the tenant, or of all, is written before what is decided in it, wherever it stands in the list."""
        for tenant in ("default", ""):
            head = await _fresh(bench, f"run of {tenant}", terms=terms(quorum=2))
            before = saying(head.run, "bob", guards=(Guard(tenant, "roles", 0),))
            after = saying(head.run, "carol", guards=(Guard(tenant, "roles", 1),))
            changes = [before, after, PutControl(tenant, "roles", 0, b"1")]
            stale, applied, written = await bench.store.commit(changes)
            assert stale == Refused("stale", "roles")
            assert isinstance(applied, Applied)
            assert isinstance(written, Applied)

    @scenario
    async def test_decisions_of_one_commit_are_in_order(self, bench: Bench) -> None:
        """Decisions on one run are judged as they are given: the second of two last votes is late, and so is a yes behind a no."""
        head = await requested(bench, terms=terms(quorum=2))
        people = [saying(head.run, by) for by in ("bob", "carol", "dave")]
        *applied, late = await bench.store.commit(people)
        assert [type(one) for one in applied] == [Applied, Applied]
        assert late == Refused("decided", "a1")
        assert await results(bench, head.run) == ["vote", "approved"]
        head = await _fresh(bench)
        no, yes = await bench.store.commit(
            [saying(head.run, "bob", "no"), saying(head.run, "carol")]
        )
        assert isinstance(no, Applied)
        assert yes == Refused("decided", "a1")


async def _next(bench: Bench, head: RunHead, **fields: Any) -> RunHead:
    """Ask once more, as `a2`."""
    await bench.apply(following(head, approvals=(asking(bench.clock, "a2", **fields),)))
    return await bench.head(head.run)


async def _fresh(bench: Bench, name: str = "", **fields: Any) -> RunHead:
    """Ask as `a1`, in a run of its own."""
    known = await bench.store.heads("default")
    worker = known[0].owner if known else await bench.worker(lease=timedelta(days=9))
    run = await bench.start(name or f"run-{len(known)}", worker=worker)
    head = await bench.head(run)
    await bench.apply(following(head, approvals=(asking(bench.clock, **fields),)))
    return await bench.head(run)
