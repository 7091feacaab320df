"""What is shown is what is hashed; a recorded request stands while the code only adds to it."""

from __future__ import annotations

import hashlib
import json

import pytest

from outlast.approvals.request import Subject, still_asks, subject_of
from outlast.journal.entry import Cover

CALL = Cover(effect="pay", action_sha256="ab" * 32)
PATTERN = Cover(effect="pay", where={"n": "5"})


def ask(shown: object, *covers: tuple[Cover, dict[str, str]]) -> Subject:
    """Return the subject of a request."""
    return subject_of(json.dumps(shown).encode(), covers)


def test_body_is_canonical_and_its_hash_is_of_its_bytes():
    """The bytes that an approver is shown are the bytes of the hash, whatever the order of keys was."""
    subject = ask({"b": 1, "a": "x"}, (CALL, {"n": "5"}), (PATTERN, {"n": "5"}))
    assert json.loads(bytes(subject.body)) == {
        "subject": {"a": "x", "b": 1},
        "covers": [
            {"effect": "pay", "kind": "call", "action_sha256": "ab" * 32, "arguments": {"n": 5}},
            {"effect": "pay", "kind": "pattern", "action_sha256": "", "arguments": {"n": 5}},
        ],
    }
    assert subject.sha256 == hashlib.sha256(bytes(subject.body)).hexdigest()
    assert subject.sha256 == "d3c0e4f9a45330ee82e3b20c845fe9956af86ed7a291bc8245573bcf7710e043"
    assert ask({"a": "x", "b": 1}, (CALL, {"n": "5"}), (PATTERN, {"n": "5"})) == subject


def test_every_part_is_in_the_hash():
    """Another subject, effect, action, argument or kind of cover is another hash."""
    hashes = {
        ask(1).sha256,
        ask(2).sha256,
        ask(1, (CALL, {"n": "5"})).sha256,
        ask(1, (CALL, {"n": "6"})).sha256,
        ask(1, (PATTERN, {"n": "5"})).sha256,
        ask(1, (Cover(effect="tip", where={"n": "5"}), {"n": "5"})).sha256,
        ask(1, (Cover(effect="pay", action_sha256="cd" * 32), {"n": "5"})).sha256,
    }
    assert len(hashes) == 7


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, True),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": {}}, {"a": []}, False),
        ({"a": None}, {"a": 0}, False),
        ("x", "y", False),
    ],
)
def test_added_fields_are_no_difference(old, new, same):
    """Fields may be added, at any depth; nothing may change, go, or be added to a list."""
    assert still_asks(bytes(ask(old).body), bytes(ask(new).body)) is same


def test_covers_must_be_the_same_but_for_added_arguments():
    """The hash of a call changes with a new default, its other arguments must not."""
    newer = Cover(effect="pay", action_sha256="cd" * 32)
    old = bytes(ask(1, (CALL, {"n": "5"})).body)
    assert still_asks(old, bytes(ask(1, (newer, {"n": "5", "note": '""'})).body))
    assert not still_asks(old, bytes(ask(1, (newer, {"n": "6"})).body))
    assert not still_asks(old, bytes(ask(1, (PATTERN, {"n": "5"})).body))
    assert not still_asks(old, bytes(ask(1).body))
