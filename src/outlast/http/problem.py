"""What the server side says when it does not let a request through, as problem details.

Each has a `type` of its own (the policy's page, where there is one), and `code`, which programs may read and which does not change.

Source: RFC 9457; the titles are those of draft-ietf-httpapi-idempotency-key-header, where it has one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from math import ceil
from typing import Any

from outlast.http.answer import Answer

MEDIA_TYPE = "application/problem+json"
_URN = "urn:outlast:idempotency:"


class Code(StrEnum):
    """Which refusal it is: the word in `code`. The client side of this package reads it."""

    KEY_MISSING = "key_missing"
    KEY_MALFORMED = "key_malformed"
    KEY_REUSED = "key_reused"
    IN_PROGRESS = "in_progress"
    IN_DOUBT = "in_doubt"
    ANSWER_NOT_KEPT = "answer_not_kept"
    BODY_TOO_LARGE = "body_too_large"
    HANDLER_FAILED = "handler_failed"
    STORE_UNAVAILABLE = "store_unavailable"

    @property
    def slug(self) -> str:
        """As it stands at the end of a `type`."""
        return self.value.replace("_", "-")


def code_of(code: object, type_: object) -> Code | None:
    """Return which refusal of this package the members `code` and `type` of a problem name; None where it is somebody else's.

    The `type` has to end with the word: another API may have a `code` of its own that reads the same.
    """
    if not isinstance(type_, str):
        return None
    return next((one for one in Code if code in (None, one.value) and _is_type(type_, one)), None)


def _is_type(type_: str, code: Code) -> bool:
    return type_ == f"{_URN}{code.slug}" or type_.endswith(f"#{code.slug}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal.

    Args:
        retry_after: When the same request may be sent again; None when it must not be.
        members: What else is said, by the name of the member.
    """

    status: int
    code: Code
    title: str
    detail: str
    retry_after: timedelta | None = None
    members: dict[str, Any] = field(default_factory=dict[str, Any])

    def answer(self, link: str) -> Answer:
        """Return it as it is sent.

        Args:
            link: The policy's page, or nothing.
        """
        slug = self.code.slug
        document = {
            "type": f"{link}#{slug}" if link else f"{_URN}{slug}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code.value,
            **self.members,
        }
        headers = [("content-type", MEDIA_TYPE), ("cache-control", "no-store")]
        if link:
            headers.append(("link", f'<{link}>; rel="describedby"'))
        if self.retry_after is not None:
            headers.append(("retry-after", str(max(1, ceil(self.retry_after.total_seconds())))))
        body = json.dumps(document).encode()
        return Answer(self.status, tuple(headers), body)


def key_missing() -> Problem:
    """A key is required."""
    return Problem(
        400,
        Code.KEY_MISSING,
        "Idempotency-Key is missing",
        "This operation requires an Idempotency-Key header, unique to the request.",
    )


def key_malformed(why: str) -> Problem:
    """The header is not in the published format."""
    return Problem(
        400,
        Code.KEY_MALFORMED,
        "Idempotency-Key is malformed",
        f"The Idempotency-Key header cannot be used: {why}.",
    )


def key_reused() -> Problem:
    """The key stands for another request."""
    return Problem(
        422,
        Code.KEY_REUSED,
        "Idempotency-Key is already used",
        "This Idempotency-Key was used with another request. Use a new key for a new request; do not repeat this one.",
    )


def in_progress(retry_after: timedelta) -> Problem:
    """The first request with this key is still running."""
    return Problem(
        409,
        Code.IN_PROGRESS,
        "A request is outstanding for this Idempotency-Key",
        "The first request with this key is being carried out. Send it again, with the same key, later.",
        retry_after,
    )


def in_doubt(request_id: str, why: str = "") -> Problem:
    """Nobody knows whether the first request was carried out, and nobody may repeat it until somebody says."""
    return Problem(
        409,
        Code.IN_DOUBT,
        "It is not known whether this request was carried out",
        "The first request with this key was cut off. It is not repeated, under this key, until the operator of this service has "
        f"found out whether it was carried out.{f' ({why})' if why else ''} Do not send it under another key.",
        members={"request_id": request_id},
    )


def answer_not_kept(why: str, status: int) -> Problem:
    """The request was carried out, and its answer is not there to be given again."""
    return Problem(
        409,
        Code.ANSWER_NOT_KEPT,
        "This request was carried out, and its answer was not kept",
        f"The first request with this key has ended; its answer {why}. It is not repeated. Do not send it under another key.",
        members={"original_status": status} if status else {},
    )


def body_too_large(largest_bytes: int) -> Problem:
    """The request's body cannot be looked at whole."""
    return Problem(
        413,
        Code.BODY_TOO_LARGE,
        "The body is too large for a request with an Idempotency-Key",
        f"The body of such a request has at most {largest_bytes} bytes.",
    )


def handler_failed(status: int = 0) -> Problem:
    """The application raised.

    Args:
        status: Of the answer that it had begun, or 0.
    """
    return Problem(
        500,
        Code.HANDLER_FAILED,
        "The request failed while it was carried out",
        "The application failed. What it had done until then stands. The request is not repeated under this key.",
        members={"original_status": status} if status else {},
    )


def store_unavailable(retry_after: timedelta) -> Problem:
    """The key cannot be looked up, so nothing is done."""
    return Problem(
        503,
        Code.STORE_UNAVAILABLE,
        "Idempotency keys cannot be looked up now",
        "Nothing was done. Send the request again, with the same key, later.",
        retry_after,
    )
