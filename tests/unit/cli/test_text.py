"""Words for people, and text from elsewhere made safe to print."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.cli.text import ago, json_text, length, parse_length, safe, typed

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


@given(st.text(st.characters()), st.booleans())
def test_nothing_hides_or_directs(text: str, lines: bool) -> None:
    """Whatever comes in, no control, format, surrogate or separator character comes out."""
    allowed = "\n\t" if lines else ""
    for character in safe(text, lines=lines):
        if character not in allowed:
            assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(st.characters(categories=["L", "N", "P", "S"], max_codepoint=0x24F)))
def test_ordinary_text_stays(text: str) -> None:
    """Letters, digits and signs are printed as they are."""
    assert safe(text.replace("\u00ad", "")) == text.replace("\u00ad", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\u001b[31m"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb", "a\\u000ab"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("\ufe0f\u3164", "\\ufe0f\\u3164"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    """What is escaped is shown by its code."""
    assert safe(text) == shown


def test_json_is_readable_and_safe() -> None:
    """JSON keeps letters and escapes what hides; it stays JSON."""
    assert json_text({"ä": "\u202e"}, indent=None) == '{"ä": "\\u202e"}'


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (timedelta(0), "less than a second"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(minutes=2), "2 minutes"),
        (timedelta(hours=3, seconds=5), "3 hours"),
        (timedelta(days=1, hours=1, minutes=59), "1 day 1 hour"),
    ],
)
def test_length(gap: timedelta, words: str) -> None:
    """The two largest units, singular where it is one."""
    assert length(gap) == words


def test_ago() -> None:
    """Past and future are told apart."""
    assert ago(NOON, NOON + timedelta(minutes=1)) == "2026-11-29 12:00:00 UTC (1 minute ago)"
    assert ago(NOON, NOON - timedelta(hours=1)) == "2026-11-29 12:00:00 UTC (in 1 hour)"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15", 15), ("15s", 15), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), ("1d", 86400)],
)
def test_parse_length(text: str, seconds: float) -> None:
    """Numbers are seconds; units are known."""
    assert parse_length(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "1y", "inf", "1e3"])
def test_no_length(text: str) -> None:
    """What is no length is refused."""
    with pytest.raises(ValueError, match="no length of time"):
        parse_length(text)


def test_an_id_that_begins_with_a_dash_stands_behind_the_options() -> None:
    """Also a value behind it; a command without such an id is left as it is."""
    words = ("runs", "accept", "-x", "--history", "9", "--reason", "TEXT")
    assert typed((), words) == "outlast runs accept --history 9 --reason TEXT -- -x"
    assert (
        typed(["-d", "u"], ("runs", "send", "-x", "go", "J")) == "outlast -d u runs send -- -x go J"
    )
    assert typed((), ("runs", "send", "x", "-5")) == "outlast runs send -- x -5"
    assert typed((), ("runs", "show", "x", "--json")) == "outlast runs show x --json"
    assert typed((), ("worker", "MODULE", "--queue", "gpu")) == "outlast worker MODULE --queue gpu"
