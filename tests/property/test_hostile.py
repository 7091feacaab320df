"""Whatever bytes come in, a decoder gives data or one of our errors, within bounds; and none is forgotten here."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hostile_bytes import NASTY, mutated
from hostile_decoders import DECODERS, EXCEPTIONS, Decoder
from hypothesis import given
from hypothesis import strategies as st
from searching import examples

import outlast

SOURCE = Path(outlast.__file__).parent
_LONGEST_ERROR = 40_000
"""Characters: what an error tells of hostile bytes is bounded, however many of them there were."""


def decode(decoder: Decoder, data: bytes) -> None:
    """Decode; what is raised is of the types that are promised, short, and can be written anywhere."""
    try:
        decoder.call(data)
    except decoder.raises as error:
        said = str(error).encode(errors="backslashreplace")
        assert len(said) < _LONGEST_ERROR
        # Not by an exception: its own text would hold what no report can.
        assert said == str(error).encode(errors="replace")


@pytest.mark.parametrize("name", DECODERS)
def test_valid_bytes_are_read(name):
    """What each decoder is for, it decodes: no law here holds because everything is refused."""
    for seed in DECODERS[name].seeds:
        if name in {"approval row", "URL"}:  # two columns, and two kinds of URL, share these seeds
            decode(DECODERS[name], seed)
        else:
            DECODERS[name].call(seed)


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_known_to_break_decoders_breaks_none(name):
    """Deep nesting, endless numbers, text that is none, and all else that has brought parsers down."""
    for data in NASTY.values():
        decode(DECODERS[name], data)


@pytest.mark.parametrize("name", DECODERS)
def test_nasty_values_within_valid_bytes_break_none(name):
    """The same, where a value stands in otherwise valid input; long ones at every fifth place, which are all places in turn."""
    decoder = DECODERS[name]
    for seed in decoder.seeds:
        try:
            document = json.loads(seed)
        except ValueError:
            continue
        for place in range(len(_places(document))):
            marked = json.loads(seed)
            holder, key = _places(marked)[place]
            holder[key] = "@@"
            for number, data in enumerate(NASTY.values()):
                if len(data) < 5_000 or (len(data) < 200_001 and (place + number) % 5 == 0):
                    decode(decoder, json.dumps(marked).encode().replace(b'"@@"', data))


def _places(document):
    """Return holder and key of each value in a document."""
    found, waiting = [], [document]
    while waiting:
        each = waiting.pop()
        keys = (
            list(each)
            if isinstance(each, dict)
            else range(len(each))
            if isinstance(each, list)
            else ()
        )
        for key in keys:
            found.append((each, key))
            waiting.append(each[key])
    return found


@examples(8)
@given(name=st.sampled_from(sorted(DECODERS)), data=st.binary(max_size=200))
def test_any_bytes(name, data):
    """Bytes of any kind."""
    decode(DECODERS[name], data)


@pytest.mark.parametrize("name", DECODERS)
@examples(0.5)
@given(data=st.data())
def test_valid_bytes_with_something_done_to_them(name, data):
    """Flipped bits, cuts, insertions, other values, other keys."""
    decode(DECODERS[name], data.draw(mutated(DECODERS[name].seeds)))


@pytest.mark.soak
@examples(100)
@given(name=st.sampled_from(sorted(DECODERS)), data=st.data())
def test_long_search(name, data):
    """The same, for as long as one likes."""
    decode(DECODERS[name], data.draw(mutated(DECODERS[name].seeds)))


_DECODING = {
    "json.decode", "json.loads", "json.load", "tomllib.loads", "tomllib.load", "msgspec.convert", "msgpack.decode",
    "urlsplit", "urlparse", "parse", "parse_as", "read", "read_as", "_decoder.decode", "decoder.decode", "_covers.decode",
    "_texts.decode", "literal_eval",
}  # fmt: skip
_NAMES = {"parse", "parse_as", "read", "read_as"}
"""Functions of `outlast.journal.parse`, which are imported by name; files and syntax trees have methods of the same names."""

_NOT_THESE = ("testing.crash", "testing.simulation", "demo.data")
"""Trials and simulations read what they wrote themselves."""


class _Sites(ast.NodeVisitor):
    """The functions of a module that decode."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.scope: list[str] = []
        self.found: set[str] = set()

    def _enter(self, node):
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _enter

    def visit_Call(self, node):
        text = ast.unparse(node.func)
        if text in _DECODING or text.partition(".")[2] in _DECODING - _NAMES:
            self.found.add(f"{self.module}:{'.'.join(self.scope)}")
        self.generic_visit(node)


def decoding_sites() -> set[str]:
    """Return every function of the library that decodes."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if not module.startswith(_NOT_THESE):
            visitor = _Sites(module)
            visitor.visit(ast.parse(path.read_text()))
            found |= visitor.found
    return found


def test_no_decoder_is_forgotten():
    """Each function that decodes is gone through by a decoder of the table, or is an exception with its reason."""
    listed = {site for decoder in DECODERS.values() for site in decoder.sites} | EXCEPTIONS.keys()
    assert decoding_sites() == listed
