"""The key of a request: a Structured Field String of the published format, and nothing else."""

from __future__ import annotations

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import DefinitionError
from outlast.http import KeyFormat
from outlast.http.key import MalformedKeyError

STRICT = KeyFormat()
LENIENT = KeyFormat(lenient=True)


def scope(*values: bytes) -> dict:
    """A request with these headers."""
    return {"headers": [(b"Idempotency-Key", value) for value in values]}


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b' "a" ', "a"),
        (b'"a";version=1', "a"),
        (b'"a\\"b\\\\c"', 'a"b\\c'),
    ],
)
@pytest.mark.parametrize("format", [STRICT, LENIENT])
def test_a_string_is_a_key(value: bytes, key: str, format: KeyFormat) -> None:
    """Quoted, unescaped, its parameters without meaning; the same in both modes."""
    assert format.read(scope(value)) == key


@pytest.mark.parametrize(
    "value",
    [
        b"abc",
        b"8e03978e-40d5",
        b"12",
        b"?1",
        b"@1659578233",
        b":YWJj:",
        b'%"caf%c3%a9"',
        b'("a" "b")',
        b'"a", "b"',
        b'"a',
        b'""',
        b'"  "',
        b"",
        b'"caf\xe9"',
        b'"a\x00"',
        b'"' + b"a" * 256 + b'"',
        b'"' + b"a" * 10_000 + b'"',
    ],
)
def test_whatever_else_is_malformed(value: bytes) -> None:
    """Tokens, numbers, dates, bytes and lists are Structured Fields, and no keys."""
    with pytest.raises(MalformedKeyError):
        STRICT.read(scope(value))


@pytest.mark.parametrize(
    ("value", "key"),
    [(b"abc", "abc"), (b"8e03-40d5", "8e03-40d5"), (b"12;x=1", "12"), (b" a ", "a")],
)
def test_lenient_takes_unquoted_keys(value: bytes, key: str) -> None:
    """Whatever they would be as Structured Fields, they are the text that was sent."""
    assert LENIENT.read(scope(value)) == key


@pytest.mark.parametrize("value", [b"a b", b"a, b", b"a,b", b'a"b', b"caf\xe9", b"", b";x", b'"a'])
def test_lenient_is_not_everything(value: bytes) -> None:
    """What could be two keys, or part of one, is none."""
    with pytest.raises(MalformedKeyError):
        LENIENT.read(scope(value))


@pytest.mark.parametrize("format", [STRICT, LENIENT])
def test_two_headers_are_malformed(format: KeyFormat) -> None:
    """Even equal ones: nobody can say which one was meant."""
    with pytest.raises(MalformedKeyError, match="more than once"):
        format.read(scope(b'"a"', b'"a"'))


def test_no_header_is_no_key() -> None:
    """Whether that is allowed is the policy's."""
    assert STRICT.read(scope()) is None


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_every_key_that_can_be_sent_is_read(key: str) -> None:
    """What a client serializes comes out as it was; blank ones apart."""
    value = http_sf.ser(key).encode()
    if key.strip():
        assert STRICT.read(scope(value)) == key == LENIENT.read(scope(value))
    else:
        with pytest.raises(MalformedKeyError):
            STRICT.read(scope(value))


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_key_or_malformed(value: bytes, lenient: bool) -> None:
    """No other exception, and no key outside of printable ASCII."""
    try:
        key = KeyFormat(lenient=lenient).read(scope(value))
    except MalformedKeyError:
        return
    assert key and key.isascii() and key.isprintable() and len(key) <= 255


def test_the_format_is_kept() -> None:
    """Length and pattern are of the whole key."""
    format = KeyFormat(shortest=3, longest=5, pattern="[a-z]+")
    assert format.read(scope(b'"abc"')) == "abc"
    for value in (b'"ab"', b'"abcdef"', b'"abc1"'):
        with pytest.raises(MalformedKeyError):
            format.read(scope(value))


@pytest.mark.parametrize(
    "fields",
    [
        {"shortest": 0},
        {"shortest": 9, "longest": 8},
        {"longest": 2000},
        {"pattern": "["},
        {"shortest": "1"},
        {"longest": 9.5},
        {"pattern": None},
        {"lenient": "no"},
    ],
)
def test_a_format_that_cannot_be_is_refused(fields: dict) -> None:
    """When it is made, not when the first request comes."""
    with pytest.raises(DefinitionError):
        KeyFormat(**fields)
