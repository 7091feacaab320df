"""Signed JSON documents: who signed what, for which purpose and tenant, when, and until when it counts.

A document is one line of canonical JSON (RFC 8785). What is signed is the same line without its `signature`; so the signature holds
the format, the purpose, the key's id, the tenant and the times as well as the body, and a document of one purpose is none of another:

```
{"algorithm":"Ed25519","body":…,"format":"outlast-signed/1","key_id":…,"purpose":…,"signature":…,"signed_at":…,"tenant":…}
```

There is one algorithm for each format: what a document says of it is compared, and chooses nothing. A document that is written in any
other way than it was signed is refused, even where it means the same.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, NoReturn, cast

import msgspec
from msgspec import Raw, Struct

from outlast.crypto.key import SigningKey, VerifyingKey
from outlast.errors import EncodeError, SignatureError
from outlast.journal.canonical import canonical
from outlast.journal.parse import NotJsonError, parse
from outlast.journal.plan import VALUE_NESTING, printable

FORMAT = "outlast-signed/1"
ALGORITHM = "Ed25519"

_NESTING = VALUE_NESTING + 2
"""A body, inside the document."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Signed(Struct, frozen=True):
    """A document whose signature holds.

    Args:
        body: Canonical JSON of what was signed.

    Example:
        ```python
        from datetime import UTC, datetime, timedelta

        from outlast.crypto import SigningKey, sign, verify

        key, now = SigningKey.generate(), datetime(2026, 1, 31, tzinfo=UTC)
        soon = now + timedelta(days=30)
        text = sign(b'"paid"', "invoice", key=key, at=now, tenant="acme", expires_at=soon)
        signed = verify(text, "invoice", key=key.public, now=now)
        assert (signed.tenant, signed.key_id, signed.expires_at) == ("acme", key.public.id, soon)
        ```
    """

    purpose: str
    key_id: str
    tenant: str
    signed_at: datetime
    body: Raw
    expires_at: datetime | None = None


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    algorithm: str
    purpose: _Text
    key_id: _Text
    tenant: _Text
    signed_at: _Time
    body: Any
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]
    expires_at: _Time | None = None


def sign(
    body: bytes,
    purpose: str,
    *,
    key: SigningKey,
    at: datetime,
    tenant: str = "default",
    expires_at: datetime | None = None,
) -> bytes:
    """Return a signed document: one line, with its line break.

    Args:
        body: JSON. Numbers that have no exact form in RFC 8785 are refused: write them as text.
        purpose: What it is signed for; `verify` must be asked for the same.
        at: The time of the signing, aware.
        expires_at: From then on it is refused; None for never.

    Raises:
        EncodeError: The body has no canonical form.

    Example:
        ```python
        from datetime import UTC, datetime

        from outlast.crypto import SigningKey, sign, verify

        key, now = SigningKey.generate(), datetime(2026, 1, 31, tzinfo=UTC)
        text = sign(b'{"amount": 5}', "invoice", key=key, at=now)
        signed = verify(text, "invoice", key=key.public, now=now)
        assert (bytes(signed.body), signed.signed_at) == (b'{"amount":5}', now)
        ```
    """
    document: dict[str, Any] = {
        "format": FORMAT,
        "algorithm": ALGORITHM,
        "purpose": purpose,
        "key_id": key.public.id,
        "tenant": tenant,
        "signed_at": at,
        "body": _json(body),
    }
    if expires_at is not None:
        document["expires_at"] = expires_at
    text = canonical(document)
    if canonical(_json(text)) != text:
        raise EncodeError(
            "a number of the body has no exact form that can be signed",
            path="$.body",
            hint="write numbers beyond 2^53 as text",
        )
    document["signature"] = key.sign(text).hex()
    return canonical(document) + b"\n"


def verify(
    text: bytes, purpose: str, *, key: VerifyingKey, now: datetime, tenant: str | None = None
) -> Signed:
    """Return what a document says, once its signature holds.

    Args:
        text: The whole document, as `sign` returned it.
        now: By this its expiry is judged.
        tenant: Whose it must be; None for anybody's.

    Raises:
        SignatureError: It is not what it is taken for; its `reason` says in what.

    Example:
        ```python
        from datetime import UTC, datetime

        from outlast.crypto import SigningKey, sign, verify
        from outlast.errors import SignatureError

        key, now = SigningKey.generate(), datetime(2026, 1, 31, tzinfo=UTC)
        text = sign(b'{"amount": 5}', "offer", key=key, at=now)
        try:
            verify(text, "invoice", key=key.public, now=now)
        except SignatureError as error:
            assert error.reason == "purpose"
        ```
    """
    data = _data_of(text)
    document = _document_of(data, text)
    if document.key_id != key.id:
        _refuse(
            "key",
            f"it was signed with the key {printable(document.key_id)}, and this one is {key.id}",
            "get the public key of whoever signed it, from themselves",
        )
    del data["signature"]
    if not key.is_of(bytes.fromhex(document.signature), canonical(data)):
        _refuse(
            "signature",
            "it was changed after it was signed, or somebody else signed it",
            "believe nothing of it, and ask for another copy",
        )
    if document.purpose != purpose:
        _refuse(
            "purpose", f"it was signed as a {printable(document.purpose)}, and not as a {purpose}"
        )
    if tenant is not None and document.tenant != tenant:
        _refuse("tenant", f"it is of the tenant {printable(document.tenant)}, and not of {tenant}")
    if document.expires_at is not None and now >= document.expires_at:
        _refuse("expired", f"it counted until {document.expires_at:%Y-%m-%d %H:%M:%S %Z}")
    return Signed(
        purpose=document.purpose,
        key_id=document.key_id,
        tenant=document.tenant,
        signed_at=document.signed_at,
        body=Raw(canonical(data["body"])),
        expires_at=document.expires_at,
    )


def _data_of(text: bytes) -> dict[str, Any]:
    """Return the document as data, of a format that is known."""
    try:
        data: Any = parse(text, nesting=_NESTING)
    except NotJsonError as error:
        _refuse("format", f"it is cut short or was changed: {error}")
    if not isinstance(data, dict) or "format" not in data:
        _refuse("format", "it is no signed document")
    found = cast("dict[str, Any]", data)
    said = found["format"], found.get("algorithm")
    if said != (FORMAT, ALGORITHM):
        _refuse(
            "version",
            f"its format is {printable(str(said[0]))[:100]} with {printable(str(said[1]))[:100]}, and {FORMAT} with {ALGORITHM} is known",
            "verify it with the version of Outlast that wrote it, or a newer one",
        )
    return found


def _document_of(data: dict[str, Any], text: bytes) -> _Document:
    """Return the document, which is written exactly as it was signed."""
    try:
        document = msgspec.convert(data, _Document)
        written = canonical(data) + b"\n"
    except (msgspec.ValidationError, EncodeError) as error:
        _refuse("format", f"it is no whole signed document: {printable(str(error))}")
    if written != text:
        _refuse("format", "it is not written as it was signed", "ask for the file as it was made")
    return document


def _json(text: bytes) -> Any:
    try:
        return parse(text, nesting=_NESTING)
    except NotJsonError as error:
        raise EncodeError(f"what is to be signed is no JSON: {error}") from None


def _refuse(reason: str, text: str, hint: str = "") -> NoReturn:
    raise SignatureError(f"the signature does not hold: {text}", reason=reason, hint=hint)
