"""A request that carries a key: whose it is, under what it is kept, and what it asks.

Under what it is kept is more than the client's key: tenant and principal, which only the server knows, stand before it, so that nobody can
ask for another one's answers. What it asks is its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from outlast.http.asgi import Scope

GUARDED = "outlast.idempotency"
"""Where a `GuardedRequest` stands in the scope."""

_LONGEST_NOTED = 1000
_VERSION = "1"


@dataclass(slots=True)
class GuardedRequest:
    """The request that a handler carries out, as the guard sees it. `guarded(scope)` returns it.

    Args:
        key: As the client sent it.
        request_id: The hash under which the store keeps it; unique among tenants, principals and keys, and the same in each repetition. An
            id of a run can be made of it.
        body: Of the request, whole.

    Example:
        ```python
        from outlast.http import guarded

        async def pay(scope, receive, send):  # in a framework: request.scope
            request = guarded(scope)
            if request is not None:  # None where no key was sent, and none is required
                request.keep_answer(False)  # nothing has happened: the key may be used again
        ```
    """

    key: str
    tenant: str
    principal: str
    body: bytes
    scope: Scope
    request_id: str = ""
    keep: bool | None = None

    def keep_answer(self, keep: bool) -> None:
        """Say whether the answer is to be kept, whatever the policy says of its status.

        Args:
            keep: True where something has happened, though the status says "refused". False where nothing has, though it says "failed": the key
                is free again then.

        Example:
            ```python
            from outlast.http import guarded

            async def reserve(scope, receive, send):
                seats_left = 0
                if not seats_left:  # a 409 that was found out by a look, before anything was done
                    guarded(scope).keep_answer(False)
            ```
        """
        self.keep = keep

    @property
    def composite_key(self) -> str:
        """Under what it is kept: text in which no part can run into the next."""
        return json.dumps([_VERSION, self.tenant, self.principal, self.key])

    @property
    def note(self) -> bytes:
        """For operators: JSON with method, path, principal and tenant. Neither body nor query nor key."""
        method, path = str(self.scope["method"]), str(self.scope["path"])
        note = {
            "method": method[:_LONGEST_NOTED],
            "path": path[:_LONGEST_NOTED],
            "principal": self.principal[:_LONGEST_NOTED],
            "tenant": self.tenant[:_LONGEST_NOTED],
        }
        return json.dumps(note).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulRequest:
    """What a probe is asked about: a request whose first handling was cut off. This is the same request, sent again.

    Args:
        request_id: As the handler saw it in `guarded(scope).request_id`.
        path: Of the URL, without query.
        body: Whole, and the same as the first time: another one would have had another fingerprint.

    Example:
        ```python
        from outlast import Applied, NotApplied, Unknown
        from outlast.http import Answer, DoubtfulRequest

        PAYMENTS: dict[str, int] = {}

        async def find_payment(request: DoubtfulRequest) -> Applied[Answer] | NotApplied | Unknown:
            if request.request_id in PAYMENTS:
                return Applied(Answer.json(201, {"payment": PAYMENTS[request.request_id]}))
            return NotApplied()
        ```
    """

    request_id: str
    key: str
    tenant: str
    principal: str
    method: str
    path: str
    body: bytes
    scope: Scope


def guarded(scope: Scope) -> GuardedRequest | None:
    """Return the request that is being carried out under a key, or None when this one has none.

    Example:
        ```python
        from outlast.http import guarded

        assert guarded({"type": "http"}) is None
        ```
    """
    found = scope.get(GUARDED)
    return found if isinstance(found, GuardedRequest) else None


def fingerprint_of(scope: Scope, body: bytes) -> str:
    """Return the SHA-256 of method, path, query and body, each with its length before it.

    Example:
        ```python
        from outlast.http import fingerprint_of

        scope = {"method": "POST", "path": "/payments", "query_string": b""}
        assert fingerprint_of(scope, b"1") != fingerprint_of(scope, b"2")
        ```
    """
    parts = (
        str(scope["method"]).encode(),
        str(scope["path"]).encode("utf-8", "surrogatepass"),
        bytes(scope.get("query_string", b"")),
        body,
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
