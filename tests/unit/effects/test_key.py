"""Idempotency keys: fixed vectors, and names that keep them unambiguous."""

from __future__ import annotations

import hashlib

import pytest

from outlast.effects.key import (
    check_message_id,
    check_name,
    check_run_id,
    check_tenant,
    idempotency_key,
    namespace,
)
from outlast.errors import DefinitionError
from outlast.journal.canonical import payload_sha256
from outlast.journal.length import MESSAGE_ID_BYTES, NAME_BYTES, RUN_ID_BYTES

EMPTY = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize(
    ("workflow_id", "step", "payload", "key"),
    [
        ("wf-7f3a", "send_invoice_email", "9c41", "f37a6fa9afd08ec0020219af03079cf1"),
        ("wf-7f3a", "send_invoice_email", "e208", "64675e2be69604690a3e203ef1098594"),
        (
            "finding-4821:org-example/payments-api",
            "push",
            EMPTY,
            "3a8d389ced457a52325a5e6632713d51",
        ),
    ],
)
def test_key_vectors(workflow_id, step, payload, key):
    """The key is the one that the receivers of the first release saw."""
    assert idempotency_key(workflow_id, step, payload) == key


def test_payload_of_no_arguments():
    """The hash of `{}` is the one of the vectors."""
    assert payload_sha256({}) == EMPTY


def test_repeated_calls_have_numbered_keys():
    """The second equal call is the step `#2`; the first has no number."""
    second = hashlib.sha256(f"run:pay#2:{EMPTY}".encode()).hexdigest()[:32]
    assert idempotency_key("run", "pay", EMPTY, number=2) == second
    assert idempotency_key("run", "pay", EMPTY, number=1) == idempotency_key("run", "pay", EMPTY)


def test_namespaces():
    """Run id; `~n` for later uses; a tenant other than the default before a control character."""
    assert namespace("default", "run", 1) == "run"
    assert namespace("default", "run", 3) == "run~3"
    assert namespace("org", "a/b", 1) == "org\x1fa/b"
    assert namespace("org", "a/b", 2) == "org\x1fa/b~2"


@pytest.mark.parametrize("wrong", ["", "a~2", "a\x1fb", "a\x00", "a\x7f", "x" * 256, "a\ud800"])
def test_ambiguous_run_ids_are_refused(wrong):
    """Nothing in a run id can be taken for a generation or a tenant."""
    with pytest.raises(DefinitionError):
        check_run_id(wrong)


@pytest.mark.parametrize(
    "right", ["a:b", "finding-4821:org/repo", "ü", "x" * 255, "字" * 255, "a#2", " "]
)
def test_other_run_ids_are_taken(right):
    """Ids come from events, which have their own habits."""
    assert check_run_id(right) == right


@pytest.mark.parametrize("wrong", ["", "a\x1fb", "a\n", "x" * 256, "\udfff"])
def test_ambiguous_tenants_are_refused(wrong):
    """Nothing in a tenant can be taken for the separator."""
    with pytest.raises(DefinitionError):
        check_tenant(wrong)


@pytest.mark.parametrize("wrong", ["", "a:b", "a#2", "a\tb", "a\ud800"])
def test_ambiguous_names_are_refused(wrong):
    """Nothing in a name can be taken for a part of the key, or for a number."""
    with pytest.raises(DefinitionError, match="step"):
        check_name(wrong, what="step")


@pytest.mark.parametrize("given", [123, None, b"run"])
def test_an_id_that_is_no_text_is_refused(given):
    """The error names the id, and what was given for it."""
    for check, what in ((check_run_id, "a run id"), (check_tenant, "a tenant")):
        with pytest.raises(
            DefinitionError, match=f"cannot be {what}: it is {type(given).__name__}"
        ):
            check(given)
    with pytest.raises(DefinitionError, match="cannot be the name of an effect: it is"):
        check_name(given, what="effect")


@pytest.mark.parametrize(
    ("check", "what", "limit"),
    [
        (check_run_id, "a run id", RUN_ID_BYTES),
        (check_tenant, "a tenant", NAME_BYTES),
        (check_message_id, "the id of a message", MESSAGE_ID_BYTES),
        (lambda name: check_name(name, what="queue"), "the name of a queue", NAME_BYTES),
    ],
)
def test_what_is_too_long_for_an_index_is_refused(check, what, limit):
    """Counted in bytes of UTF-8, four of which may be one character; the error names the limit."""
    longest = "😀" * (limit // 4)
    assert check(longest) == longest
    with pytest.raises(DefinitionError, match=f"cannot be {what}: it has .* and {limit:,} are"):
        check(longest + "字字")
