"""What answers of receivers say to a client that may come again: how long to wait, and what a refusal means.

Source: RFC 9110 section 10.2.3 (Retry-After), RFC 9457 (problem details; what has another type than it should is ignored).
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

from outlast.errors import FinalAnswerError, KeyReusedError, OutlastError, ReceiverInDoubtError
from outlast.http.answer import REPLAYED
from outlast.http.carry import Passage, describe
from outlast.http.problem import MEDIA_TYPE, Code, code_of
from outlast.journal.parse import NotJsonError, parse_as

IN_PROGRESS = 409
LATER = frozenset({429, 503})
_MOST_DIGITS = 9
_LONGEST_TEXT = 300
_LONGEST_EXCERPT = 200
_REUSED = 422


class _Problem(msgspec.Struct):
    title: Any = None
    detail: Any = None
    code: Any = None
    type: Any = None
    request_id: Any = None


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


def is_replayed(response: httpx.Response) -> bool:
    """Whether an answer is the one that the receiver keeps for the key: it gives it again, however often it is asked."""
    return response.headers.get(REPLAYED, "").strip().lower() == "true"


def is_key_reused(response: httpx.Response) -> bool:
    """Return whether an answer is the refusal by which `outlast.http` says that it knows the key with other content.

    For the `is_reuse` of a `Target`: a 422 that is none is given back then, such as that of a framework for content that is not valid.

    Args:
        response: Its body has been read.

    Example:
        ```python
        import httpx
        from outlast.http.transport import Target, is_key_reused

        target = Target("pay.example.com", is_reuse=is_key_reused)
        assert not is_key_reused(httpx.Response(422, json={"detail": "the amount is no number"}))
        ```
    """
    return _code_in(response) is Code.KEY_REUSED


def may_be_final(response: httpx.Response, passage: Passage) -> bool:
    """Whether an answer may say something of the key that holds for longer than this try: then its body is to be read."""
    status = response.status_code
    says_problem = status in (IN_PROGRESS, _REUSED) and _is_problem(response)
    return passage.is_known and (
        status == passage.target.refusal or says_problem or _is_kept_failure(response)
    )


def final_error(
    request: httpx.Request, response: httpx.Response, passage: Passage
) -> OutlastError | None:
    """Return the error that an answer is which would come again, however often the request is sent; None for any other answer.

    Args:
        response: Its body has been read.
    """
    code = _code_in(response)
    if code is Code.IN_DOUBT:
        return _in_doubt(request, response, passage)
    if code is Code.ANSWER_NOT_KEPT or _is_kept_failure(response):
        return _final(request, response, passage, is_kept=code is not Code.ANSWER_NOT_KEPT)
    is_reuse = passage.target.is_reuse
    if code is Code.KEY_REUSED:
        return _refusal(request, response, passage, is_certain=True)
    if response.status_code != passage.target.refusal or (is_reuse and not is_reuse(response)):
        return None
    is_certain = is_reuse is not None or passage.target.refusal != _REUSED
    return _refusal(request, response, passage, is_certain=is_certain)


def _refusal(
    request: httpx.Request, response: httpx.Response, passage: Passage, *, is_certain: bool
) -> KeyReusedError:
    """Return the error for an answer by which a receiver refuses a key with this content.

    Args:
        is_certain: The receiver says that it knows the key with other content, in words that are known.
    """
    why = (
        "the receiver knows the key with other content"
        if is_certain
        else "whether it knows the key with other content, or does not take this content, is not said in words that are known"
    )
    look = (
        "look up what the receiver has done under the key; let the content depend on the effect's arguments alone, with no clock, "
        "chance or attempt in it; corrected arguments are another call, which has another key"
    )
    tell = "; a Target with is_reuse= tells the two apart"
    return KeyReusedError(
        f"{_told(request, response, passage)}: {why}",
        status=response.status_code,
        certain=is_certain,
        hint=look if is_certain else look + tell,
        **_where(passage),
    )


def _in_doubt(
    request: httpx.Request, response: httpx.Response, passage: Passage
) -> ReceiverInDoubtError:
    found = _problem_in(response).request_id
    request_id = found if isinstance(found, str) and found.isalnum() else ""
    named = f"request {request_id[:64]} there" if request_id else "it"
    return ReceiverInDoubtError(
        f"{_told(request, response, passage)}: the receiver does not know whether it carried the request out",
        status=response.status_code,
        detail=_said(response, passage),
        request_id=request_id[:64],
        hint=f"whoever operates the receiver has to say what became of {named}: `outlast requests show`, at his database. Until "
        "then it carries nothing out under the key; the attempts of the effect go on as its retry policy says",
        **_where(passage),
    )


def _final(
    request: httpx.Request, response: httpx.Response, passage: Passage, *, is_kept: bool
) -> FinalAnswerError:
    why = (
        "the first request with the key failed with this answer, which the receiver gives again to each"
        if is_kept
        else "the receiver carried the first request with the key out, and has no answer to give"
    )
    return FinalAnswerError(
        f"{_told(request, response, passage)}: {why}",
        status=response.status_code,
        detail=_said(response, passage),
        hint="no attempt follows: none would learn more, and one that comes when the receiver has forgotten the key would be carried "
        "out anew. Look up at the receiver what happened",
        **_where(passage),
    )


def _where(passage: Passage) -> dict[str, Any]:
    attempt = passage.attempt
    if attempt is None:
        return {}
    return {"run": attempt.run_id, "step": attempt.name, "operation": attempt.operation}


def _is_kept_failure(response: httpx.Response) -> bool:
    return is_replayed(response) and response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR


def _is_problem(response: httpx.Response) -> bool:
    media_type = response.headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == MEDIA_TYPE


def _problem_in(response: httpx.Response) -> _Problem:
    try:
        return parse_as(_problems, response.content)
    except NotJsonError:
        return _Problem()


def _code_in(response: httpx.Response) -> Code | None:
    """Return which refusal of this package an answer is; None for any other."""
    if not _is_problem(response):
        return None
    problem = _problem_in(response)
    return code_of(problem.code, problem.type)


def _told(request: httpx.Request, response: httpx.Response, passage: Passage) -> str:
    said = _said(response, passage)
    words = f" ({said})" if said else ""
    return f"{describe(request)}, sent with an idempotency key, was answered {response.status_code}{words}"


def _said(response: httpx.Response, passage: Passage) -> str:
    """Return title and detail of a problem, or the beginning of another body; without the key, which is for no model's eyes."""
    problem, longest = _problem_in(response), _LONGEST_TEXT
    parts = [part for part in (problem.title, problem.detail) if isinstance(part, str) and part]
    text = ": ".join(parts)
    if not text:
        text, longest = response.content.decode(errors="replace"), _LONGEST_EXCERPT
    for secret in (passage.value, passage.key):
        text = text.replace(secret, "…") if secret else text
    plain = "".join(one if one.isprintable() else " " for one in text[: longest + 1])
    return plain if len(plain) <= longest else f"{plain[:longest]} …"


def _moment(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        # HTTP's dates are in GMT; `-0000`, which is none, makes a naive one.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, IndexError):
        return None
