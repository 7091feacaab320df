"""Links that show one request and decide nothing: signed, for one purpose, and over when the request is.

The end stands in what is signed and is judged by the store's clock, as all deadlines are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from outlast.errors import DefinitionError
from outlast.notify.channel import INSTALL

Key: TypeAlias = str | Sequence[str]
"""A secret; or several, the newest last: that one signs, all of them are believed."""

LEAST_KEY_LENGTH = 32
_LONGEST_TOKEN = 4096
_SHOW = "show"


class Shown(Struct, frozen=True):
    """What a link is of.

    Args:
        until: In seconds since 1970.
    """

    purpose: str
    tenant: str
    run_id: str
    approval_id: str
    until: int


class Links:
    """Makes and reads links.

    Raises:
        DefinitionError: The key is short, or itsdangerous is not installed.
    """

    def __init__(self, key: Key) -> None:
        keys = [key] if isinstance(key, str) else list(key)
        if not keys or any(len(one) < LEAST_KEY_LENGTH for one in keys):
            raise DefinitionError(
                f"the key of links is shorter than {LEAST_KEY_LENGTH} characters",
                hint="draw one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            )
        try:
            from itsdangerous import BadData, URLSafeSerializer
        except ModuleNotFoundError as error:
            raise DefinitionError("links need itsdangerous", hint=INSTALL) from error
        self._bad = BadData
        self._signer: Any = URLSafeSerializer(
            keys,
            salt="outlast.approval",
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )

    def token(self, tenant: str, run_id: str, approval_id: str, expires_at: datetime) -> str:
        """Return the token of a request, fit for a path."""
        shown = Shown(_SHOW, tenant, run_id, approval_id, int(expires_at.timestamp()))
        return self._signer.dumps(msgspec.to_builtins(shown))

    def read(self, token: str, now: datetime) -> Shown | None:
        """Return what a token is of; None for one that was not signed here, is for something else, or is over."""
        if len(token) > _LONGEST_TOKEN or not token.isascii():
            return None
        try:
            shown = msgspec.convert(self._signer.loads(token), Shown)
        except (self._bad, msgspec.ValidationError):
            return None
        is_good = shown.purpose == _SHOW and now.timestamp() < shown.until
        return shown if is_good else None
