"""Time, memory and depth of decoding follow from the length of what is decoded; nothing reaches the C stack's end."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hostile_decoders import DECODERS
from hypothesis import given
from hypothesis import strategies as st
from searching import examples

from outlast.errors import DecodeError, EncodeError
from outlast.journal.codec import LIMIT_BYTES, codec_for
from outlast.journal.parse import NotJsonError, is_deeper, parse
from outlast.journal.plan import MAX_DEPTH, VALUE_NESTING

_PER_BYTE = 200
_FIXED = 1 << 20
"""Bytes of memory at the peak: so many for each byte that is decoded, and so many whatever is."""

GROWING: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda n: b"[" + b"[]," * n + b"0]",
    "objects": lambda n: b"[" + b"{}," * n + b"0]",
    "numbers": lambda n: b"[" + b"0," * n + b"0]",
    "integers of all lengths": lambda n: b"[" + b"12345678901234567890123," * n + b"0]",
    "a long text": lambda n: b'"' + b"x" * n + b'"',
    "a text of escapes": lambda n: b'"' + b"\\ud83d\\ude00" * n + b'"',
    "keys": lambda n: b"{" + b",".join(b'"%d":{}' % each for each in range(n)) + b"}",
    "the same key": lambda n: b"{" + b'"a":{},' * n + b'"a":1}',
    "records": lambda n: b'{"children":[' + b"{}," * n + b'{"leaves":[{"when":"x"}]}]}',
    "tagged": lambda n: b'{"named":{' + b",".join(b'"%d":{"$type":"Leaf","value":{"when":"y"}}' % each for each in range(n)) + b"}}",
    "brackets in texts": lambda n: b"[" + b'"[[[[{{{{\\"",' * n + b"0]",
    "an unclosed text": lambda n: b'["' + b'\\"[' * n,
    "digits": lambda n: b"1" * n,
    "members of a failure": lambda n: b'{"type":"failed","failure":{"type":"a","message":"","members":[' + b'{"type":"","message":""},' * n
    + b'{"type":"","message":""}]}}',
    "covers": lambda n: b'{"type":"approval_requested","operation":"","approval_id":"","role":"","subject":{},"subject_sha256":"","covers":['
    + b'{"effect":""},' * n + b'{"effect":""}],"expires_at":"2026-01-01T00:00:00Z","use_by":"2026-01-01T00:00:00Z"}',
}  # fmt: skip
NAMES = ["codec", "codec of anything", "entry completed", "entry failed", "entry approval_requested", "failure", "message signal", "message resolution",
         "waits", "note", "asked", "subject", "alarm", "untyped value", "last failure", "approval row", "worker row", "OSV record", "shown value",
         "argument of a command", "answer of GitHub"]  # fmt: skip


def decode(name: str, data: bytes) -> None:
    """Decode, whatever comes of it."""
    try:
        DECODERS[name].call(data)
    except DECODERS[name].raises:
        pass


@pytest.mark.parametrize("shape", GROWING)
@pytest.mark.parametrize("name", NAMES)
def test_memory_grows_with_the_length_alone(name, shape):
    """The peak is linear in the length, with a factor that holds for every decoder and every shape."""
    data = GROWING[shape](20_000)
    decode(name, GROWING[shape](1))  # what is made once, is made before
    tracemalloc.start()
    try:
        decode(name, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < _FIXED + _PER_BYTE * len(data)


def calls_of(act: Callable[[], Any]) -> int:
    """Return how many functions, of Python and of C, an act calls."""
    count = 0

    def tell(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(tell)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("shape", GROWING)
@pytest.mark.parametrize("name", NAMES)
def test_work_grows_with_the_length_alone(name, shape):
    """Twice the length is at most about twice the calls: counted, not timed."""
    few, many = (calls_of(lambda data=GROWING[shape](n): decode(name, data)) for n in (300, 600))
    assert many <= 2.2 * few + 200


@pytest.mark.parametrize("name", DECODERS)
def test_an_integer_without_end_is_refused_by_its_length(name):
    """A million digits are not turned into a number: that would take time in proportion to their square."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(
        0
    )  # as a program may have done: the bound must be our own, or the parser's
    try:
        few, many = (calls_of(lambda data=b"9" * n: decode(name, data)) for n in (5_000, 1_000_000))
    finally:
        sys.set_int_max_str_digits(before)
    assert many <= few + 100


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(dict[int, int], '{{"{}":1}}'), (Fraction, '"{}/7"'), (Fraction, '"7/{}"')],
)
def test_digits_in_a_text_are_bounded_as_those_of_a_number(annotation, text):
    """Also where a program has taken Python's own limit away."""
    codec = codec_for(annotation, where="it")
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert codec.decode(text.format("9" * 4_300).encode())
        with pytest.raises(DecodeError):
            codec.decode(text.format("9" * 4_302).encode())
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(("text", "levels"), [(b"[", 1), (b'{"a":', 1), (b'{"a":[', 2)])
def test_the_limit_of_depth_is_the_one_that_is_stated(text, levels):
    """At the limit it is read, one level more it is refused, from any depth of the stack."""
    close = {b"[": b"]", b'{"a":': b"}", b'{"a":[': b"]}"}[text]
    times = VALUE_NESTING // levels
    fits = text * times + b"1" + close * times
    assert parse(fits)
    for frames in (0, 100, 400):
        assert _at_depth(frames, lambda: parse(fits))
        with pytest.raises(NotJsonError, match=f"deeper than {VALUE_NESTING}"):
            _at_depth(frames, lambda: parse(b"[" + fits + b"]"))


def _at_depth(frames: int, act: Callable[[], Any]) -> Any:
    return act() if frames == 0 else _at_depth(frames - 1, act)


@dataclasses.dataclass
class Left:
    inner: Left | Right | None


@dataclasses.dataclass
class Right:
    inner: Left | Right | None


def test_the_deepest_value_that_is_stored_is_read():
    """A value of the greatest depth, each level of it tagged, comes back; one level more is refused before it is stored."""
    codec = codec_for(Any, where="it")
    tagged = codec_for(Left | Right | None, where="it")
    value: Any = 1
    held: Left | Right | None = None
    for number in range(MAX_DEPTH):
        value = [value]
        held = (Left, Right)[number % 2](held)
    assert codec.decode(codec.encode(value)) == value
    text = tagged.encode(held)
    assert text.count(b"{") == 2 * MAX_DEPTH
    assert tagged.encode(tagged.decode(text)) == text
    with pytest.raises(EncodeError):
        codec.encode([value])
    with pytest.raises(EncodeError):
        tagged.encode(Left(held))


@examples(4)
@given(data=st.text('[]{}"\\a:,1', max_size=60).map(str.encode), nesting=st.integers(0, 6))
def test_no_json_is_deeper_than_was_counted(data, nesting):
    """Law: what is JSON, and was not found too deep, is not."""
    try:
        found = parse(data, nesting=1_000)
    except NotJsonError:
        return
    assert is_deeper(data, nesting) or _depth(found) <= nesting


BRACKETS = st.text('[]{}"\\a', max_size=5)
JSON = st.recursive(
    BRACKETS | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(BRACKETS, inner, max_size=3),
    max_leaves=12,
)


@examples(4)
@given(data=JSON, nesting=st.integers(0, 6))
def test_depth_is_counted_exactly(data, nesting):
    """Law: of JSON without repeated keys the depth is the depth of its data, whatever brackets stand in its texts."""
    assert is_deeper(json.dumps(data).encode(), nesting) == (_depth(data) > nesting)


def _depth(data: Any) -> int:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def test_encoding_is_bounded_by_the_limit_and_not_by_the_value():
    """A value far over the limit is refused before it was all turned into JSON."""
    codec = codec_for(list[str], where="it")
    value = [
        "x" * 1_000
    ] * 1_000_000  # a gigabyte of text, of which there is one kilobyte in memory
    tracemalloc.start()
    try:
        with pytest.raises(EncodeError, match="larger than"):
            codec.encode(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * LIMIT_BYTES


_CHILD = """
import sys, threading
sys.path.insert(0, sys.argv[1])

from hostile_decoders import DECODERS

def work():
    for name, decoder in DECODERS.items():
        for what, data in NASTY.items():
            for each in (data, b'{"type":"completed","value":' + data + b'}', b'{"a":[' + data + b']}'):
                try:
                    decoder.call(each)
                except decoder.raises:
                    pass

sys.setrecursionlimit(int(sys.argv[2]))
threading.stack_size(int(sys.argv[3]))
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("whole")
"""


@pytest.mark.parametrize(("limit", "stack"), [(1_000, 8 << 20), (100_000, 1 << 20)])
def test_nothing_overflows_the_stack_of_a_process(limit, stack):
    """A process of its own, on a small stack and with no limit of Python's in the way, decodes everything and lives."""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, here, str(limit), str(stack)],
        capture_output=True, text=True, timeout=100, env=dict(os.environ), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stderr[-2_000:]


def test_a_decode_error_of_a_large_value_is_small():
    """What is wrong at the end of megabytes is said in a line."""
    codec = codec_for(list[int], where="it")
    with pytest.raises(DecodeError) as caught:
        codec.decode(b"[" + b"1," * 1_000_000 + b'"x"]')
    assert caught.value.path == "$[1000000]"
    assert len(str(caught.value)) < 300
