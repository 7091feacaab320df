"""A signed document is what it is taken for, or is refused with what is wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from outlast.crypto import SigningKey, sign, verify
from outlast.errors import EncodeError, SignatureError
from outlast.journal.canonical import canonical

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TEXT = sign(b'{"b": "\xc3\xa4", "a": [1, true, null]}', "note", key=KEY, at=NOW, tenant="acme")


def refusal(text: bytes, purpose: str = "note", **given: object) -> str:
    """Return why a document is refused; empty when it is not."""
    try:
        verify(text, purpose, **{"key": KEY.public, "now": NOW, **given})
    except SignatureError as error:
        return error.reason
    return ""


def signed_again(key: SigningKey = KEY, **fields: object) -> bytes:
    """Return the document with other fields, signed by a key as it stands."""
    document = {**json.loads(TEXT), **fields}
    del document["signature"]
    document["signature"] = key.sign(canonical(document)).hex()
    return canonical(document) + b"\n"


def test_what_was_signed_comes_back() -> None:
    """The body in canonical form, and who signed it, for what, for whom and when."""
    signed = verify(TEXT, "note", key=KEY.public, now=NOW, tenant="acme")
    assert bytes(signed.body) == '{"a":[1,true,null],"b":"ä"}'.encode()
    assert (signed.purpose, signed.tenant, signed.signed_at) == ("note", "acme", NOW)
    assert (signed.key_id, signed.expires_at) == (KEY.public.id, None)


def test_document_is_one_canonical_line() -> None:
    """Anybody can make the signed text: the line without its signature."""
    document = json.loads(TEXT)
    signature = document.pop("signature")
    assert KEY.public.is_of(bytes.fromhex(signature), canonical(document))
    assert (document["format"], document["algorithm"]) == ("outlast-signed/1", "Ed25519")
    assert TEXT.count(b"\n") == 1 and TEXT.endswith(b"\n")


def test_another_key_is_named() -> None:
    """Both keys are told, so that the right one can be found."""
    with pytest.raises(SignatureError) as caught:
        verify(TEXT, "note", key=OTHER.public, now=NOW)
    assert caught.value.reason == "key"
    assert KEY.public.id in str(caught.value) and OTHER.public.id in str(caught.value)
    # A document that claims the right key, and was signed with another one.
    assert refusal(signed_again(OTHER)) == "signature"


def test_another_purpose_tenant_or_time() -> None:
    """What is genuine is still not what was asked for."""
    assert refusal(TEXT, "receipt") == "purpose"
    assert refusal(TEXT, tenant="other") == "tenant"
    until = sign(b"1", "note", key=KEY, at=NOW, expires_at=NOW + timedelta(seconds=1))
    assert refusal(until) == ""
    assert refusal(until, now=NOW + timedelta(seconds=1)) == "expired"


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "outlast-signed/2"},
        {"format": None},
        {"algorithm": "none"},
        {"algorithm": "HS256"},
        {"algorithm": ["Ed25519"]},
    ],
)
def test_other_formats_and_algorithms(fields: dict[str, object]) -> None:
    """The data chooses nothing: even with a signature that holds they are refused."""
    assert refusal(signed_again(**fields)) == "version"


@pytest.mark.parametrize(
    "text",
    [
        TEXT[:-1],
        TEXT[:-2],
        TEXT + b"\n",
        b" " + TEXT,
        json.dumps(json.loads(TEXT), indent=1).encode(),
        TEXT.replace("ä".encode(), b"\\u00e4"),
        TEXT.replace(b'{"a":[', b'{"a":0,"a":['),
        TEXT.replace(b'"signature":"', b'"signature":"00'),
        signed_again(more=1),
        signed_again(signed_at="2026-01-31T12:00:00"),
        b"",
        b"[]",
        b"{}",
        b'"outlast-signed/1"',
    ],
)
def test_other_ways_to_write_the_same(text: bytes) -> None:
    """Only the bytes that were signed count, so that there is one file for one signature."""
    assert refusal(text) == "format"


def test_time_and_tenant_are_signed_too() -> None:
    """Nothing of the document can be changed beside its body."""
    for old, new in ((b"12:00", b"13:00"), (b"acme", b"acne"), (b'"note"', b'"vote"')):
        assert (
            refusal(TEXT.replace(old, new), "vote" if new == b'"vote"' else "note") == "signature"
        )


@pytest.mark.parametrize("body", [b"1e17", b"[-1e18]", b"{", b'"\\ud800"'])
def test_what_cannot_be_signed(body: bytes) -> None:
    """A number that would come back as another one, and what is no JSON, are refused before."""
    with pytest.raises(EncodeError):
        sign(body, "note", key=KEY, at=NOW)
