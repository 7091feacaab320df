"""What answers of receivers say to a client that may come again: how long to wait, and what a refusal means.

Source: RFC 9110 section 10.2.3 (Retry-After), RFC 9457 (problem details; what has another type than it should is ignored).
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

from outlast.errors import KeyReusedError
from outlast.http.carry import Passage, describe
from outlast.journal.parse import NotJsonError, parse_as

IN_PROGRESS = 409
LATER = frozenset({429, 503})
_MOST_DIGITS = 9
_LONGEST_TEXT = 300


class _Problem(msgspec.Struct):
    title: Any = None
    detail: Any = None


_problems = msgspec.json.Decoder(_Problem)


def retry_after(response: httpx.Response, now: float) -> float | None:
    """Return how many seconds a receiver asks to wait, at least 0; None where it does not say so in a way that is defined.

    Args:
        now: Seconds since 1970. A date is compared with the answer's own Date, by the same clock, where it has one.
    """
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_MOST_DIGITS]) if len(text) <= _MOST_DIGITS else None
    moment = _moment(text)
    if moment is None:
        return None
    sent = _moment(response.headers.get("date", ""))
    return max(0.0, moment - (now if sent is None else sent))


def refusal(request: httpx.Request, response: httpx.Response, passage: Passage) -> KeyReusedError:
    """Return the error that an answer is by which a receiver refuses a key with this content.

    Args:
        response: Its body has been read.
    """
    said = _said(response, passage)
    attempt = passage.attempt
    return KeyReusedError(
        f"{describe(request)}, sent with an idempotency key, was answered {response.status_code}"
        f"{f' ({said})' if said else ''}: the receiver knows the key with other content, or cannot take this content",
        status=response.status_code,
        run=attempt.run_id if attempt else None,
        step=attempt.name if attempt else None,
        operation=attempt.operation if attempt else None,
        hint="look up what the receiver has done under the key; let the content depend on the effect's arguments alone, with no clock, "
        "chance or attempt in it; corrected arguments are another call, which has another key",
    )


def _said(response: httpx.Response, passage: Passage) -> str:
    """Return the title and detail of a problem; without the key, which is for no model's eyes."""
    try:
        problem = parse_as(_problems, response.content)
    except NotJsonError:
        return ""
    parts = [part for part in (problem.title, problem.detail) if isinstance(part, str) and part]
    text = ": ".join(parts)
    for secret in (passage.value, passage.key):
        text = text.replace(secret, "…") if secret else text
    plain = "".join(one if one.isprintable() else " " for one in text)
    return plain if len(plain) <= _LONGEST_TEXT else f"{plain[:_LONGEST_TEXT]} …"


def _moment(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        # HTTP's dates are in GMT; `-0000`, which is none, makes a naive one.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, IndexError):
        return None
