"""Laws of the record of a request: one has it at a time, no time ends it, and what was answered is what is answered."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from searching import examples

from outlast.store.change import Applied, Conflict
from outlast.store.request import (
    BeginRequest,
    EndRequest,
    HoldRequest,
    RequestState,
    ResolveRequest,
)
from outlast.store.request_condition import listed, settle

PLACE = ("default", "k")
TOKENS = st.sampled_from(["a", "b", "c"])
LENGTHS = st.sampled_from([1, 5, 30]).map(lambda count: timedelta(seconds=count))
ACTS = st.one_of(
    st.builds(lambda *given: BeginRequest(*PLACE, "f", *given), TOKENS, LENGTHS, LENGTHS),
    st.builds(lambda *given: HoldRequest(*PLACE, *given), TOKENS, LENGTHS),
    st.builds(
        lambda token, happened, keep: EndRequest(*PLACE, token, happened, keep, token.encode()),
        TOKENS,
        st.booleans(),
        LENGTHS,
    ),
    st.builds(
        lambda token, happened: ResolveRequest(*PLACE, token, happened, "root", "why", b"root"),
        TOKENS,
        st.booleans(),
    ),
)
STEPS = st.lists(st.tuples(ACTS, st.integers(0, 40)), max_size=30)


@examples(6)
@given(steps=STEPS)
def test_one_has_it_until_it_has_ended(steps):
    """While one has the record, whatever the time, no other begins; it goes by its own word or by an operator's on one in doubt."""
    row, holder, now = None, None, datetime(2026, 1, 1, tzinfo=UTC)
    for change, passed in steps:
        now += timedelta(seconds=passed)
        before, was = row, None if row is None else listed(row, now).state
        verdict, row = settle(before, change, now)
        if not isinstance(verdict, Applied):
            assert row is before
        if holder is not None:
            # It has not ended: the record stands, and is its own.
            assert before.token == holder
            assert was in (RequestState.RUNNING, RequestState.IN_DOUBT)
        match change, verdict:
            case BeginRequest(token=token), Applied() if row is not before:
                assert holder is None
                assert was in (None, RequestState.EXPIRED, RequestState.FREED)
                holder = token
            case EndRequest(token=token), Applied() if token == holder:
                holder = None
                assert (row is not None) == change.happened
            case ResolveRequest(token=token), Applied() if row is not before:
                assert (token, was) == (holder, RequestState.IN_DOUBT)
                holder = None
            case _:
                assert (row is None) == (before is None)


@examples(6)
@given(steps=STEPS)
def test_what_was_answered_is_answered(steps):
    """Once there is an answer, everybody who asks in its time is shown that one, and nothing changes it."""
    row, now = None, datetime(2026, 1, 1, tzinfo=UTC)
    for change, passed in steps:
        now += timedelta(seconds=passed)
        before = row
        is_answered = before is not None and listed(before, now).state is RequestState.DONE
        verdict, row = settle(before, change, now)
        if is_answered:
            assert row is before
            if isinstance(change, BeginRequest) and change.token != before.token:
                assert verdict == Conflict(request=before)


@examples(6)
@given(steps=STEPS)
def test_sent_again_is_sent_once(steps):
    """Any change that was applied, sent again at once, is applied, and leaves what it has left."""
    row, now = None, datetime(2026, 1, 1, tzinfo=UTC)
    for change, passed in steps:
        now += timedelta(seconds=passed)
        verdict, row = settle(row, change, now)
        again, after = settle(row, change, now)
        assert type(again) is type(verdict)
        assert after == row
        if isinstance(verdict, Applied):
            assert again.request == verdict.request
