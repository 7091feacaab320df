"""A signed receipt is refused after any change; one that was put together wrongly is noticed even when it is signed again."""

from __future__ import annotations

import copy
import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from journals import (
    HOUR,
    T0,
    asked,
    broken,
    escalated,
    expired,
    intended,
    journal,
    paid,
    receipt,
    said,
    voted,
)
from searching import examples

from outlast.approvals.proof import prove
from outlast.approvals.receipt import PURPOSE, Receipt, read_receipt
from outlast.crypto import SigningKey, sign, verify
from outlast.errors import OutlastError, SignatureError
from outlast.journal.asking import Terms
from outlast.journal.entry import Entry, GrantUse

KEY = SigningKey.generate()
NOW = datetime(2026, 2, 1, tzinfo=UTC)
REQUEST = asked(terms=Terms("boss", HOUR, use_within=2 * HOUR, quorum=2, four_eyes=True))
WHOLE = receipt(
    REQUEST, voted(REQUEST, "eve", "dan"), said(REQUEST), intended(), paid(), with_results=True
)
LADDER = receipt(
    *escalated(), intended(grant=GrantUse("1~r:1#2", 0)), approval_id="1~r:1#2", with_results=True
)


def signed(found: Receipt, **given: Any) -> bytes:
    """Return a receipt as it leaves."""
    return sign(msgspec.json.encode(found), PURPOSE, key=KEY, at=NOW, **given)


TEXT = signed(WHOLE)


def opened(text: bytes) -> Receipt:
    """Return the receipt whose signature holds."""
    return read_receipt(bytes(verify(text, PURPOSE, key=KEY.public, now=NOW).body))


def test_what_is_signed_is_what_comes_back() -> None:
    """Every field of it, and it is sound."""
    for one in (WHOLE, LADDER):
        assert opened(signed(one)) == one
        assert not broken(one)


@examples(2)
@given(place=st.integers(0, len(TEXT) - 1), byte=st.integers(0, 255), what=st.sampled_from("=-+"))
def test_any_change_of_a_byte_is_refused(place: int, byte: int, what: str) -> None:
    """Another byte, one that is missing, or one too many."""
    put = b"" if what == "-" else bytes([byte])
    changed = TEXT[:place] + put + TEXT[place + (what != "+") :]
    assume(changed != TEXT)
    with pytest.raises(SignatureError):
        opened(changed)


@examples()
@given(cut=st.integers(0, len(TEXT) - 1))
def test_what_is_cut_short_is_refused(cut: int) -> None:
    """However much of it is there."""
    with pytest.raises(SignatureError):
        opened(TEXT[:cut])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in JSON data that holds no others."""
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in leaves(each, (*path, key))]
    if isinstance(value, list):
        return [leaf for at, each in enumerate(value) for leaf in leaves(each, (*path, at))]
    return [path]


def is_the_signers_word(path: tuple[Any, ...]) -> bool:
    """Whether only the signer can vouch for what stands there: the length of the journal, and its first entry, whose bytes are withheld."""
    return path[0] == "length" or (path[:2] == ("evidence", 0) and path[2] in {"at", "sha256"})


OTHERS: list[Any] = [
    "", "0" * 64, "eve", "2026-01-31T12:02:30Z", "1~r:1", "r:2", "approved", "denied", "no", "{}", 0, 1, 7, True, False, None,
]  # fmt: skip


@examples(2)
@given(data=st.data())
def test_any_value_that_is_made_up_is_noticed_though_it_is_signed(data: st.DataObject) -> None:
    """One field says something else, or what another field says, and the right key signs it."""
    one = data.draw(st.sampled_from((WHOLE, LADDER)))
    plain = msgspec.json.decode(msgspec.json.encode(one))
    places = [path for path in leaves(plain) if not is_the_signers_word(path)]
    path = data.draw(st.sampled_from(places))
    *way, last = path
    forged = copy.deepcopy(plain)
    holder = functools.reduce(lambda value, step: value[step], way, forged)
    of_others = functools.reduce(
        lambda value, step: value[step], data.draw(st.sampled_from(places)), plain
    )
    value = data.draw(st.sampled_from([*OTHERS, of_others]))
    assume(value != holder[last] or type(value) is not type(holder[last]))
    holder[last] = value
    text = sign(msgspec.json.encode(forged), PURPOSE, key=KEY, at=NOW)
    try:
        found = opened(text)
    except OutlastError:
        return
    assume(found != one)
    assert broken(found), (path, value)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Entry], bool]:
    """Return what a faithful owner records of one request, and whether it was approved."""
    quorum, four_eyes = draw(st.integers(1, 4)), draw(st.booleans())
    request = asked(
        amount=draw(st.integers(0, 9)),
        terms=Terms("boss", HOUR, use_within=2 * HOUR, quorum=quorum, four_eyes=four_eyes),
        expires_at=T0 + timedelta(minutes=30),
    )
    people = draw(
        st.lists(st.sampled_from("bcdefghij"), unique=True, min_size=quorum, max_size=quorum)
    )
    votes: list[Entry] = [voted(request, one) for one in people[:-1]]
    match draw(st.sampled_from(["pending", "yes", "no", "expired"])):
        case "yes":
            return [request, *votes, said(request, people[-1])], True
        case "no":
            return [request, *votes, said(request, "ann", yes=False)], False
        case "expired":
            return [request, *votes, expired(request)], False
        case _:
            return [request, *votes], False


@examples()
@given(history=histories(), acts=st.booleans(), with_results=st.booleans())
def test_faithful_journal_makes_a_sound_receipt(
    history: tuple[list[Entry], bool], acts: bool, with_results: bool
) -> None:
    """Whatever was decided: no check accuses anybody. An act without a yes always is one."""
    entries, is_approved = history
    amount = msgspec.json.decode(bytes(entries[0].subject))["covers"][0]["arguments"]["amount"]
    done = [intended(amount=amount), paid()] if acts else []
    found = receipt(*entries, *done, with_results=with_results)
    assert bool(broken(found)) == (acts and not is_approved)
    assert len(found.evidence) == len(journal(*entries, *done))
    assert all(
        one.verdict != "open" for one in prove(found) if one.name in {"terms", "times", "uses"}
    )
