"""Typed messages: what a signal may be, and what its values are stored as."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import outlast
from outlast.errors import DecodeError, DefinitionError, EncodeError


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
