"""What is said of a request, and what rests on it, drawn: rules for machines that ask two stores the same, and what they say in plain Python."""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import rule

from outlast.journal.asking import Terms, Vote
from outlast.store.change import (
    Applied,
    Decide,
    Fenced,
    GrantSpend,
    Guard,
    Message,
    MessageKind,
    Permit,
    PutControl,
    Refused,
    RunChange,
    RunKey,
    WorkerId,
)
from outlast.testing.conformance import ManualClock

RUNS = [RunKey("default", "a"), RunKey("default", "b"), RunKey("tenant", "a")]
WORKERS = [WorkerId("w1"), WorkerId("w2")]
ROWS = [("default", "roles"), ("tenant", "roles"), ("", "stops")]
HOUR, WITHIN = timedelta(hours=1), timedelta(seconds=5)
BEGUN = ManualClock().now()

runs = st.sampled_from(RUNS)
people = st.sampled_from(["ann", "bob", "carol", "dave", ""])
guards = st.lists(
    st.builds(
        lambda row, version: Guard(*row, version),
        st.sampled_from(ROWS),
        st.sampled_from([0, 0, 0, 1, 2]),
    ),
    max_size=2,
).map(tuple)
terms = st.builds(
    lambda quorum, eyes, edits: Terms("maintainer", HOUR, None, quorum, eyes, edits),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["no", "yes", "second"]),
)
asked_by = st.fixed_dictionaries(
    {},
    optional={
        "terms": terms,
        "kind": st.sampled_from(["approval", "question"]),
        "requesters": st.lists(people, max_size=2).map(tuple),
        "barred": st.lists(people, max_size=1).map(tuple),
        "votes": st.sampled_from([(), (), (Vote("ann", BEGUN),), (Vote("bob", BEGUN, "ann"),)]),
    },
)
"""How the request `a1` differs from one that needs one yes."""


def persons(said):
    """Return who has said something: two, where it was said for another."""
    return {said.by} | ({said.behalf} - {""})


def may(row, change):
    """Whether somebody may say that of a request that still waits, by the hash and the role that are asked."""
    terms, said = row.put.terms, persons(change)
    if not (change.approved or change.edit):
        return True
    apart = set(row.put.barred)
    if terms and terms.four_eyes:
        apart |= set(row.put.requesters)
        if not row.put.requesters:
            return False
    if "" in apart or (apart and "" in said) or apart & said:
        return False
    if change.edit:
        return not change.approved and terms is not None and terms.edits != "no"
    return not any(persons(vote) & said for vote in row.votes)


def needed(row):
    """Return how many have to say yes."""
    return row.put.terms.quorum if row.put.terms else 1


class VotingRules:
    """Rules for a machine that has `both`, `commit` and a clock."""

    @rule(
        run=runs,
        word=st.sampled_from(["yes", "yes", "yes", "no", "edit", "both"]),
        by=people,
        behalf=st.just("") | people,
        wrong=st.sampled_from([{}, {}, {}, {}, {"seen_sha256": "t"}, {"role": "other"}]),
        on=st.just(()) | guards,
    )
    def decide(self, run, word, by, behalf, wrong, on):
        """Decide the request: exactly what may be said is accepted, and what came of it stands in the message."""
        fields = {"seen_sha256": "s", "behalf": behalf, "guards": on, **wrong}
        message = Message(f"{word}/{by}/{behalf}", MessageKind.DECISION, "a1", by, b"{}")
        change = Decide(
            run,
            "a1",
            approved=word in {"yes", "both"},
            edit=word in {"edit", "both"},
            by=by,
            message=message,
            **fields,
        )
        known, before = self.both(lambda store: store.mail(run)), self.request_of(run)
        verdict = self.commit(change)
        mail, after = self.both(lambda store: store.mail(run)), self.request_of(run)
        if mail == known:
            assert after == before
        waits = before is not None and before.state == "pending"
        waits = waits and self.clock.now() < before.put.expires_at
        if isinstance(verdict, Refused):
            fits = waits and not wrong and may(before, change)
            assert not (fits and all(map(self.stands, on))), verdict
        elif mail != known:
            assert waits
            assert not wrong
            assert may(before, change)
            assert all(map(self.stands, on))
            self.check_step(word, before, after, mail[-1].message.result)

    def check_step(self, word, before, after, result):
        """Look at what an accepted decision has changed: one vote more and perhaps enough, or the end."""
        assert after.votes[: len(before.votes)] == before.votes
        assert len(after.votes) == len(before.votes) + (word == "yes")
        enough = len(after.votes) >= needed(after)
        states = {"no": "denied", "edit": "edited", "yes": "approved" if enough else "pending"}
        assert after.state == states[word]
        assert result == ("vote" if after.state == "pending" else after.state)

    def stands(self, guard):
        """Whether a control row has the version that a guard says."""
        row = self.both(lambda store: store.control(guard.tenant, guard.name))
        return guard.version == (row[0] if row else 0)

    @rule(row=st.sampled_from(ROWS), version=st.sampled_from([0, 0, 1]))
    def control(self, row, version):
        """Write a control row, if it has that version."""
        self.both(lambda store: store.commit([PutControl(*row, version, b"{}")]))

    @rule(
        run=runs,
        cover=st.sampled_from([None, 0, 0, 1, 2]),
        operation=st.sampled_from(["r:2", "r:3"]),
        age=st.sampled_from([0, 0, 0, 5, 6, -1]),
        authority=st.just(()) | guards,
        stops=st.just(()) | guards,
    )
    def intend(self, run, cover, operation, age, authority, stops):
        """Intend an effect on a permit, perhaps with a grant: exactly what is young, stands and is granted is applied."""
        head = self.both(lambda store: store.head(run))
        if head is None:
            return
        checked_at = self.clock.now() - timedelta(seconds=age)
        change = RunChange(
            run,
            head.owner or WORKERS[0],
            head.epoch,
            head.version,
            spends=() if cover is None else (GrantSpend("a1", cover, operation, f"h{cover + 1}"),),
            permits=(Permit(operation, checked_at, WITHIN, authority, stops),),
        )
        before = self.both(lambda store: store.load(run))
        row = self.request_of(run)
        verdict = self.commit(change)
        stand = all(map(self.stands, (*authority, *stops)))
        granted = cover is None or (
            row is not None
            and row.state == "approved"
            and self.clock.now() < row.put.use_by
            and cover < len(row.spent)
            and row.spent[cover] in ("", operation)
        )
        if isinstance(verdict, Applied):
            assert granted
            assert stand
            assert 0 <= age <= 5
            assert cover is None or self.request_of(run).spent[cover] == operation
            return
        assert self.both(lambda store: store.load(run)) == before
        assert isinstance(verdict, Fenced) or not (granted and stand and 0 <= age <= 5), verdict

    def request_of(self, run):
        """Return the run's request `a1`."""
        image = self.both(lambda store: store.load(run))
        found = () if image is None else image.approvals
        return next(iter(found), None)

    def check_requests(self, run, image):
        """Look at a run's requests: lists agree; what is approved has enough votes, and what waits has not; nobody counts twice."""
        for pending in (True, False):
            every = self.both(lambda store, p=pending: store.approvals(run.tenant, pending=p))
            of_run = self.both(
                lambda store, p=pending: store.approvals(run.tenant, pending=p, run=run, limit=2)
            )
            assert of_run == [row for row in every if row.run == run][:2]
        for one in () if image is None else image.approvals:
            assert one.put.votes == ()
            assert one.state != "approved" or len(one.votes) >= needed(one)
            assert one.state != "pending" or len(one.votes) < needed(one)
            names = [name for vote in one.votes for name in persons(vote)]
            assert len(names) == len(set(names))
