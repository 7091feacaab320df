"""Typed messages: what a signal may be, and what its values are stored as."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass

import pytest

import outlast
from outlast.errors import DecodeError, DefinitionError, EncodeError
from outlast.workflows.message import misfit


@dataclass
class Answer:
    """What a person says."""

    text: str
    score: int = 0


@pytest.mark.parametrize("name", ["", "a:b", "a#1", "a\x00"])
def test_ambiguous_names_are_refused(name):
    """A signal's name follows the rules of all names."""
    with pytest.raises(DefinitionError, match="signal"):
        outlast.Signal(name, int)


def test_type_that_cannot_be_stored_is_refused_at_once():
    """A signal of a type that no data stands for is refused where it is written."""
    with pytest.raises(DefinitionError, match="signal 'go'"):
        outlast.Signal("go", asyncio.Lock)


def test_values_are_those_of_the_type():
    """What is sent is checked by the type, and comes back as it."""
    answer = outlast.Signal("answer", Answer)
    assert answer.codec.decode(answer.codec.encode(Answer("yes", 2))) == Answer("yes", 2)
    assert answer.codec.decode(b'{"text":"no"}') == Answer("no")
    with pytest.raises(EncodeError, match="signal 'answer'"):
        answer.codec.encode({"text": "yes"})
    with pytest.raises(DecodeError, match="signal 'answer'"):
        answer.codec.decode(b"7")
    assert repr(answer) == "Signal('answer', Answer)"
    assert outlast.Signal("go").codec.decode(outlast.Signal("go").codec.encode(None)) is None


def test_misfit_asks_every_signal_of_the_name():
    """What fits any of them fits; a name that no code holds takes everything."""
    one = outlast.Signal("misfit-law", int)
    assert "expected int" in misfit("misfit-law", b'"five"')
    assert misfit("misfit-law", b"5") == ""
    two = outlast.Signal("misfit-law", str)
    assert misfit("misfit-law", b'"five"') == ""
    assert "or" in misfit("misfit-law", b"{}")
    del one, two
    gc.collect()
    assert misfit("misfit-law", b"{}") == ""
    assert misfit("nobody-holds-this", b"{}") == ""


@pytest.mark.parametrize("name", ["", "a:b", "a#1", "a\x00"])
def test_ambiguous_names_of_updates_are_refused(name):
    """Like those of signals."""
    with pytest.raises(DefinitionError, match="update"):
        outlast.Update(name, int)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [((asyncio.Lock, int), "update 'add'"), ((int, asyncio.Lock), "the answer to update 'add'")],
)
def test_types_of_an_update_that_cannot_be_stored_are_refused_at_once(kinds, words):
    """Its value's, and its answer's."""
    with pytest.raises(DefinitionError, match=words):
        outlast.Update("add", *kinds)


def test_an_update_has_a_codec_for_each_way():
    """Nothing is a type too."""
    add = outlast.Update("add", Answer, int)
    assert add.codec.decode(add.codec.encode(Answer("yes", 2))) == Answer("yes", 2)
    assert add.answer.encode(3) == b"3"
    nothing = outlast.Update("stop")
    assert (nothing.codec.encode(None), nothing.answer.encode(None)) == (b"null", b"null")
    assert repr(add) == "Update('add', Answer, int)"
    with pytest.raises(EncodeError):
        nothing.answer.encode(3)
