"""Bytes that nobody wrote: what a damaged file, another program or an attacker can put where JSON is expected."""

from __future__ import annotations

import re

from hypothesis import strategies as st

DEEP = 200_000
"""Levels of nesting: far beyond any stack."""

NASTY: dict[str, bytes] = {
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a NUL": b"\0",
    "no UTF-8": b'"\xff\xfe"',
    "a key that is no UTF-8": b'{"\xff":1}',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "an escaped lone surrogate": b'"\\ud800"',
    "a key with a lone surrogate": b'{"\\ud800":1}',
    "an escaped NUL": b'"\\u0000"',
    "an escape cut short": b'"\\u00',
    "a control character": b'"\x1b[2J"',
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "a float without end": b"1e400",
    "a float of no size": b"1e-400",
    "an exponent without end": b"1e" + b"9" * 100_000,
    "an integer without end": b"9" * 1_000_000,
    "a negative integer without end": b"-" + b"9" * 1_000_000,
    "the longest integer": b"9" * 4_300,
    "a fraction without end": b"0." + b"3" * 100_000,
    "digits in a text": b'"' + b"9" * 100_000 + b'"',
    "a text of escapes": b'"' + b"\\u20ac" * 50_000 + b'"',
    "a text of backslashes": b'"' + b"\\\\" * 100_000,
    "arrays": b"[" * DEEP,
    "closed arrays": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * DEEP,
    "closed objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "brackets in a text": b'"' + b"[" * DEEP + b'"',
    "a deep value beside what is read": b'{"type":"completed","value":1,"x":' + b"[" * DEEP,
    "small things": b"[" + b"[]," * 50_000 + b"0]",
    "keys twice": b"{" + b'"a":1,' * 10_000 + b'"a":2}',
    "base64 that is none": b'"AAA=A==="',
    "two documents": b"{} {}",
    "a date that is none": b'"2026-02-30T25:61:61Z"',
    "the last day": b'"9999-12-31T23:59:59.999999-23:59"',
    "a duration without end": b'"P999999999DT99999.999999S"',
    "a division by nothing": b'"1/0"',
    "a zone outside": b'"2026-01-01T00:00:00+00:00[../../../../etc/passwd]"',
    "a Decimal that signals": b'"sNaN"',
}

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_VALUES = (
    b"null", b"true", b"-1", b"1e400", b"9223372036854775808", b"9" * 5_000, b'""', b'"\\ud800"', b'"\xff"', b"[]", b"{}",
    b'"2026-01-01T00:00:00"', b'"9999-12-31T23:59:59-01:00"', b"[" * 1_000 + b"]" * 1_000, b'{"$type":"x","value":{}}',
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Return valid bytes with something done to them, once or a few times."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["flip", "cut", "put", "swap", "twice", "value", "key"]))
        at = draw(st.integers(0, max(0, len(data) - 1)))
        to = draw(st.integers(at, min(len(data), at + 40)))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at:to]
        elif kind == "put":
            data[at:at] = draw(st.binary(max_size=8))
        elif kind == "swap":
            data[at:to] = data[at:to][::-1]
        elif kind == "twice":
            data[at:at] = data[at:to]
        else:
            _exchange(draw, data, keys=kind == "key")
    return bytes(data)


def _exchange(draw: st.DrawFn, data: bytearray, *, keys: bool) -> None:
    """Put another value where a text stands, or another text's name."""
    found = [match.span() for match in _STRING.finditer(bytes(data))]
    if found:
        start, end = draw(st.sampled_from(found))
        other = draw(st.sampled_from(found))
        data[start:end] = bytes(data[slice(*other)]) if keys else draw(st.sampled_from(_VALUES))
