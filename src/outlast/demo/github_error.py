"""What GitHub's answers mean when they are not the expected ones.

Guards: each error says whether anything can have happened, and no token gets into its text.
Source: GitHub's REST documentation (rate limits, best practices) and its clients' issue threads.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

from outlast.errors import OutlastError
from outlast.journal.parse import NotJsonError, parse_as

_SECONDARY_WAIT = 60.0  # seconds; the least that GitHub asks for when it names none
# By prefix and character set: the newer installation tokens have no fixed length.
_TOKEN = re.compile(r"\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_.\-]+")
_BEARER = re.compile(r"(?i)\b(bearer|token)\s+[A-Za-z0-9_.~+/=\-]{8,}")


class GitHubError(OutlastError):
    """GitHub did not do what was asked.

    Args:
        status: The HTTP status; 0 where there was none to trust.
    """

    code = "github"

    def __init__(self, message: str, *, status: int = 0, **where: Any) -> None:
        super().__init__(message, **where)
        self.status = status


class UnauthorizedError(GitHubError):
    """The token is missing, wrong or expired. Nothing happened."""

    code = "github_unauthorized"


class ForbiddenError(GitHubError):
    """The token may not do this, or not see that it exists. Nothing happened."""

    code = "github_forbidden"


class RateLimitedError(GitHubError):
    """Too many requests. Nothing happened.

    Args:
        retry_after: Seconds to wait at least.
    """

    code = "github_rate_limited"

    def __init__(self, message: str, *, retry_after: float = _SECONDARY_WAIT, **where: Any) -> None:
        super().__init__(message, **where)
        self.retry_after = retry_after


class UnprocessableError(GitHubError):
    """The request cannot be carried out as it stands. Nothing happened.

    Args:
        reasons: GitHub's messages, one per error.
    """

    code = "github_unprocessable"

    def __init__(self, message: str, *, reasons: tuple[str, ...] = (), **where: Any) -> None:
        super().__init__(message, **where)
        self.reasons = reasons

    @property
    def already_exists(self) -> bool:
        """Whether an open pull request for the same head and base is the reason; GitHub has no better sign than its words."""
        return any(reason.startswith("A pull request already exists") for reason in self.reasons)

    @property
    def no_commits(self) -> bool:
        """Whether the reason is that head holds nothing that base lacks."""
        return any(reason.startswith("No commits between") for reason in self.reasons)


class ServerFaultError(GitHubError):
    """GitHub failed, or answered what cannot be read. The request may have been carried out."""

    code = "github_server_fault"


def redact(text: str) -> str:
    """Return text with whatever looks like a GitHub token, or follows `Bearer`, replaced by stars."""
    return _TOKEN.sub("***", _BEARER.sub(r"\1 ***", text))


def error_of(response: httpx.Response, clean: Callable[[str], str]) -> GitHubError:
    """Return the error that an answer stands for.

    Args:
        clean: Takes secrets out of a text.
    """
    status, problem = response.status_code, _problem(response)
    said = clean(
        f"GitHub answered {status}: {problem.message}"
        if problem.message
        else f"GitHub answered {status}"
    )
    if status == 401:
        return UnauthorizedError(
            said, status=status, hint="renew the token; installation tokens live for an hour"
        )
    if status in (403, 429):
        wait = _retry_after(response, problem)
        if wait is not None:
            return RateLimitedError(
                said, status=status, retry_after=wait, hint=f"wait {wait:g} s, then ask again"
            )
    if status in (403, 404):
        return ForbiddenError(
            said,
            status=status,
            hint="check that the token may read and write pull requests of this repository",
        )
    if status == 422:
        reasons = tuple(clean(reason) for reason in problem.reasons())
        detail = f"{said} ({'; '.join(reasons)})" if reasons else said
        return UnprocessableError(
            detail,
            status=status,
            reasons=reasons,
            hint="correct the request; asking again will not help",
        )
    if status >= 500:
        return ServerFaultError(
            said, status=status, hint="it may have been carried out; look before asking again"
        )
    return GitHubError(said, status=status, hint="check the base URL and the repository's name")


class _Reason(msgspec.Struct):
    resource: str | None = None
    field: str | None = None
    code: str | None = None
    message: str | None = None


class _Problem(msgspec.Struct):
    message: str = ""
    errors: list[_Reason | str] = []

    def reasons(self) -> Iterator[str]:
        for each in self.errors:
            if isinstance(each, str):
                yield each
            else:
                yield each.message or " ".join(filter(None, (each.resource, each.field, each.code)))


_problems = msgspec.json.Decoder(_Problem)


def _problem(response: httpx.Response) -> _Problem:
    try:
        return parse_as(_problems, response.content)
    except NotJsonError:
        return _Problem()  # a proxy's page, or a shape that is not documented


def _retry_after(response: httpx.Response, problem: _Problem) -> float | None:
    """Return the seconds to wait, or None where a 403 is about rights and not about rates."""
    headers = response.headers
    now = _server_time(headers.get("date"))
    if (after := headers.get("retry-after")) is not None:
        seconds = _number(after)
        if seconds is None and (moment := _moment(after)) is not None:
            seconds = moment - now
        return _SECONDARY_WAIT if seconds is None else max(seconds, 0.0)
    if headers.get("x-ratelimit-remaining") == "0":
        reset = _number(headers.get("x-ratelimit-reset", ""))
        return _SECONDARY_WAIT if reset is None else max(reset - now, 1.0)
    if response.status_code == 429 or "rate limit" in problem.message.lower():
        return _SECONDARY_WAIT
    return None


def _number(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() else None


def _server_time(date: str | None) -> float:
    # GitHub's reset time is by GitHub's clock, so its own date is what it is compared with.
    moment = _moment(date) if date else None
    return time.time() if moment is None else moment


def _moment(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
