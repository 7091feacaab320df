"""What is kept of an answer comes back as it was, or is refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import DecodeError, DefinitionError
from outlast.http import Answer, keeps_header
from outlast.http.answer import Unkept, decode, encode, kept_headers

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30)
ANSWERS = st.builds(
    Answer,
    st.integers(200, 599),
    st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple),
    st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")),
)


@given(ANSWERS)
def test_an_answer_comes_back_to_the_byte(answer: Answer) -> None:
    """Status, headers in their order, and any body."""
    assert decode(encode(answer)) == answer


@given(
    st.binary(max_size=300)
    | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))
)
def test_what_is_kept_is_not_much_longer_than_the_answer(body: bytes) -> None:
    """At most twice, whatever it holds: an answer within its bound fits into a store."""
    assert len(encode(Answer(200, (), body))) <= 2 * len(body) + 50


def test_what_was_not_kept_says_why() -> None:
    """And which status it had."""
    assert decode(encode(Unkept(201, "is too large"))) == Unkept(201, "is too large")


def test_an_operator_can_write_one() -> None:
    """A status is enough; a body is text."""
    assert decode(b'{"status": 204}') == Answer(204)
    assert decode(b'{"status": 201, "headers": [["Location", "/1"]], "body": "\\u00e9"}') == Answer(
        201, (("location", "/1"),), "é".encode()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"status": 99}',
        b'{"status": "201"}',
        b'{"status": 201, "headers": [["a"]]}',
        b'{"status": 201, "headers": [["x y", "1"]]}',
        b'{"status": 201, "headers": [["x", "1\\r\\nset-cookie: a=1"]]}',
        b'{"status": 201, "headers": [["x", "\\u20ac"]]}',
        b'{"status": 201, "body_base64": "***"}',
        b'{"status": 201, "body_base64": "YQ"}',
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    """Whoever wrote it: no header is made of what is none."""
    with pytest.raises(DecodeError):
        decode(data)


@given(
    st.binary(max_size=80) | st.text(max_size=80).map(lambda t: json.dumps({"status": t}).encode())
)
def test_any_bytes_are_an_answer_or_an_error(data: bytes) -> None:
    """No other exception."""
    with contextlib.suppress(DecodeError):
        decode(data)


def test_an_answer_that_cannot_be_sent_is_refused_when_it_is_made() -> None:
    """By the probe that makes it, not by the server that sends it."""
    for wrong in ((99, ()), (200, (("x", "a\nb"),)), (200, (("X", "a"),)), (200, (), "text")):
        with pytest.raises(DefinitionError):
            Answer(*wrong)


def test_headers_of_the_connection_and_of_one_moment_are_not_given_again() -> None:
    """Whatever the policy says of the first kind, and those that `Connection` names too."""
    lines = [
        ("Location", "/1"),
        ("Set-Cookie", "session=secret"),
        ("Date", "now"),
        ("Connection", "close, X-Mine"),
        ("X-Mine", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "3"),
    ]
    assert kept_headers(lines, keeps_header) == (("location", "/1"),)
    kept = kept_headers(lines, lambda _: True)
    assert [name for name, _ in kept] == ["location", "set-cookie", "date"]
