"""The idempotency policy of an HTTP API: what is asked of clients, what is kept and for how long, and what is published of it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, cast

from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.errors import DefinitionError
from outlast.http.answer import Answer
from outlast.http.asgi import Scope
from outlast.http.key import KeyFormat
from outlast.http.request import DoubtfulRequest, fingerprint_of

Identify: TypeAlias = Callable[[Scope], str | Awaitable[str]]
Finding: TypeAlias = Applied[Answer] | NotApplied | Unknown
Probe: TypeAlias = Callable[[DoubtfulRequest], Finding | Awaitable[Finding]]

REFUSALS = frozenset(
    {400, 401, 403, 404, 405, 406, 409, 411, 412, 413, 415, 421, 422, 426, 428, 429, 431}
)
"""Statuses by which an application says that it has not begun: the request does not fit, is not allowed, comes too often or too early.

Others, those from 500 on among them, say nothing about what had happened before, so their answers are kept.
"""

NEVER_GIVEN_AGAIN = frozenset({"set-cookie", "set-cookie2", "date", "age", "www-authenticate"})
"""Headers that belong to one moment or to one client."""

_LARGEST_BYTES = 1024 * 1024
_MOST_BYTES = 16 * 1024 * 1024
"""Of an answer: written as JSON it is at most twice as long, and stays below the largest payload that a store takes."""
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FUNCTIONS = {
    "principal": 'lambda scope: scope["user"].identity',
    "tenant": 'lambda scope: scope["state"]["tenant"]',
    "fingerprint": "fingerprint_of",
    "keeps": "keeps_status",
    "keeps_header": "keeps_header",
}
_LEAST = timedelta(milliseconds=1)
_MOST = timedelta(days=3650)


def keeps_status(status: int) -> bool:
    """Return whether answers of a status are kept by default: all but those that say that nothing was begun.

    Example:
        ```python
        from outlast.http import keeps_status

        assert keeps_status(201) and keeps_status(402) and keeps_status(500)
        assert not keeps_status(401) and not keeps_status(422) and not keeps_status(429)
        ```
    """
    return status not in REFUSALS


def keeps_header(name: str) -> bool:
    """Return whether a header is given again by default: all but cookies, times and challenges.

    Example:
        ```python
        from outlast.http import keeps_header

        assert keeps_header("location") and not keeps_header("set-cookie")
        ```
    """
    return name not in NEVER_GIVEN_AGAIN


def _methods(given: Any) -> frozenset[str]:
    is_set = isinstance(given, set | frozenset | list | tuple)
    named = list(cast("Iterable[Any]", given)) if is_set else []
    if not named or not all(isinstance(one, str) and _METHOD.fullmatch(one) for one in named):
        raise DefinitionError(
            f"methods={given!r} names no methods", hint='give a set, as frozenset({"POST"})'
        )
    return frozenset(one.upper() for one in named)


def _nobody(_: Scope) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyPolicy:
    """What a server asks of requests with an Idempotency-Key, and promises them.

    Args:
        principal: Returns whose key it is, from the request's scope: the account or user that *was authenticated* and does not change when
            a token is renewed. One principal never gets another one's answers. It has no default, since no default is safe; `lambda scope: "all"`
            says that all clients are one. Empty text is refused with each request: many frameworks call whoever is not known so.
        tenant: Returns the tenant of the API to which the principal belongs, where there are several.
        methods: The methods that are guarded.
        required: Whether a guarded request without a key is refused; it goes to the application unguarded otherwise.
        format: The format of a key.
        link: URL of the policy's documentation, for people. Problems link to it.
        keep: How long an answer is kept; longer than any client goes on repeating a request.
        hold: How long nothing may be heard of a request that is being carried out before it is in doubt. Renewed while the handler runs; longer than
            the event loop ever stands still.
        wait: How long a repeated request waits for the first one's answer before it is told that that is in progress.
        retry_after: What a client is told to wait then, and when the store cannot be reached.
        fingerprint: Returns what two requests with one key must have in common, from the scope and the body.
        keeps: Whether an answer of this status is kept. A handler's word for one request, `guarded(scope).keep_answer(…)`, counts before it.
        keeps_header: Whether a header of an answer, by its name in lower case, is given again. Those of the connection never are.
        largest_body_bytes: Of a request with a key: it is read whole before anything begins.
        largest_answer_bytes: The largest answer that is kept.
        on_doubt: What becomes of a repeated request when the first one was cut off: `"refuse"` until an operator has said what happened, or a probe
            that finds it out, async or not. Whatever it returns but `Applied(Answer(…))` and `NotApplied()` leaves the request in doubt.

    Raises:
        DefinitionError: A time or size that cannot be, no method, a link that is no URL, or what is nothing of its kind.

    Example:
        ```python
        from datetime import timedelta
        from outlast.http import IdempotencyPolicy, KeyFormat

        policy = IdempotencyPolicy(
            principal=lambda scope: scope["user"].identity,
            format=KeyFormat(shortest=16, lenient=True),
            keep=timedelta(days=7),
            link="https://api.example.com/docs/idempotency",
        )
        assert policy.describe()["expires_after_seconds"] == 7 * 24 * 3600
        ```
    """

    principal: Identify
    tenant: Identify = _nobody
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    required: bool = True
    format: KeyFormat = field(default_factory=KeyFormat)
    link: str = ""
    keep: timedelta = timedelta(hours=24)
    hold: timedelta = timedelta(seconds=60)
    wait: timedelta = timedelta(0)
    retry_after: timedelta = timedelta(seconds=1)
    fingerprint: Callable[[Scope, bytes], str] = fingerprint_of
    keeps: Callable[[int], bool] = keeps_status
    keeps_header: Callable[[str], bool] = keeps_header
    largest_body_bytes: int = _LARGEST_BYTES
    largest_answer_bytes: int = _LARGEST_BYTES
    on_doubt: Literal["refuse"] | Probe = "refuse"

    def __post_init__(self) -> None:
        self._check_kinds()
        for name, least in (
            ("keep", _LEAST),
            ("hold", _LEAST),
            ("wait", timedelta(0)),
            ("retry_after", _LEAST),
        ):
            time = getattr(self, name)
            if not isinstance(time, timedelta) or not least <= time <= _MOST:
                raise DefinitionError(
                    f"{name}={time!r} cannot be", hint="give a timedelta, as timedelta(hours=24)"
                )
        if self.hold > self.keep:
            raise DefinitionError(
                f"hold={self.hold!r} is longer than keep={self.keep!r}",
                hint="an answer is kept for longer than a request may be silent while it is carried out",
            )
        for name in ("largest_body_bytes", "largest_answer_bytes"):
            size: Any = getattr(self, name)
            if type(size) is not int or not 0 < size <= _MOST_BYTES:
                raise DefinitionError(
                    f"{name}={size!r} cannot be",
                    hint=f"requests and answers are held in memory: from 1 to {_MOST_BYTES} bytes",
                )
        object.__setattr__(self, "methods", _methods(self.methods))
        if self.link and (not self.link.isascii() or set(self.link) & set(' <>"\\\r\n\t')):
            raise DefinitionError(f"link={self.link!r} is no URL", hint="percent-encode it")
        if self.on_doubt != "refuse" and not callable(self.on_doubt):
            raise DefinitionError(
                f"on_doubt={self.on_doubt!r} is neither",
                hint='give "refuse", or a function that finds out what happened',
            )

    def _check_kinds(self) -> None:
        for name, fitting in _FUNCTIONS.items():
            if not callable(one := getattr(self, name)):
                raise DefinitionError(
                    f"{name}={one!r} is no function",
                    hint=f"give one, as {fitting}",
                )
        kinds = (("required", bool, "True or False"), ("link", str, "text"))
        for name, kind, said in (*kinds, ("format", KeyFormat, "a KeyFormat(…)")):
            if not isinstance(one := getattr(self, name), kind):
                raise DefinitionError(f"{name}={one!r} cannot be", hint=f"give {said}")

    def describe(self) -> dict[str, Any]:
        """Return the policy as JSON for clients: what they must send, and what they can rely on. `PublishedPolicy` serves it.

        Example:
            ```python
            from outlast.http import IdempotencyPolicy

            policy = IdempotencyPolicy(principal=lambda scope: "all")
            assert policy.describe()["methods"] == ["PATCH", "POST"]
            ```
        """
        described: dict[str, Any] = {
            "header": "Idempotency-Key",
            "required": self.required,
            "methods": sorted(self.methods),
            "format": {
                "type": "string, quoted or bare"
                if self.format.lenient
                else "structured field string",
                "shortest": self.format.shortest,
                "longest": self.format.longest,
                "pattern": self.format.pattern or None,
            },
            "expires_after_seconds": int(self.keep.total_seconds()),
            "largest_body_bytes": self.largest_body_bytes,
            "largest_answer_bytes": self.largest_answer_bytes,
            "answers_not_kept": [
                int(one) for one in HTTPStatus if one >= 200 and not self.keeps(one)
            ],
            "replayed_header": "Idempotent-Replayed",
        }
        if self.link:
            described["documentation"] = self.link
        return described
