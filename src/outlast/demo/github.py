"""GitHub's REST API, as far as a pull request needs it: find by head, create a draft.

Guards: each answer is either the typed value or a typed error that says whether anything can have happened; the token goes to
the configured host only, and into no text. Transport errors of httpx pass through: after a create they mean "unknown".
Source: GitHub's REST documentation (pulls, rate limits, versions).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeVar

import httpx
import msgspec

from outlast.demo.github_error import GitHubError, ServerFaultError, error_of, redact
from outlast.journal.parse import NotJsonError, parse_as

_T = TypeVar("_T")

LOOPBACK = ("127.0.0.1", "::1", "localhost")
API_VERSION = "2022-11-28"
_PAGES_READ = 50  # a branch with more pull requests than that is not ours


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request at the forge. `head_repo` is empty when the fork was deleted."""

    number: int
    url: str
    title: str
    state: Literal["open", "closed"]
    draft: bool
    head_repo: str
    head_branch: str
    head_sha: str
    base: str


class _Repo(msgspec.Struct):
    full_name: str


class _End(msgspec.Struct):
    ref: str
    sha: str = ""
    repo: _Repo | None = None


class _Pull(msgspec.Struct):
    number: int
    html_url: str
    title: str
    state: Literal["open", "closed"]
    head: _End
    base: _End
    draft: bool = False

    def value(self) -> PullRequest:
        repo = self.head.repo.full_name if self.head.repo else ""
        return PullRequest(
            self.number,
            self.html_url,
            self.title,
            self.state,
            self.draft,
            repo,
            self.head.ref,
            self.head.sha,
            self.base.ref,
        )


class GitHub:
    """A client for one repository. Use it as `async with GitHub("owner/name", token=…) as github`.

    Args:
        repo: `owner/name`.
        token: A token that may read and write pull requests there.
        base_url: The API's address; anything but loopback must be https.
        timeout: Seconds for one request. It must be below the timeout of the effect that calls.
    """

    def __init__(
        self,
        repo: str,
        *,
        token: str,
        base_url: str = "https://api.github.com",
        timeout: float = 4.0,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+", repo):
            raise GitHubError(f"{repo!r} does not name a repository", hint="write it as owner/name")
        url = httpx.URL(base_url)
        if url.scheme != "https" and url.host not in LOOPBACK:
            raise GitHubError(f"a token is not sent to {url.host} in the clear", hint="use https")
        self.repo = repo
        self.base_url = str(url).rstrip("/")
        self._token = token
        self._client = httpx.AsyncClient(
            timeout=timeout,
            follow_redirects=False,
            trust_env=url.host not in LOOPBACK,  # no proxy leads to loopback
            headers={
                "Authorization": f"Bearer {token}",
                "Accept": "application/vnd.github+json",
                "X-GitHub-Api-Version": API_VERSION,
                "User-Agent": "outlast-demo",
            },
        )

    def __repr__(self) -> str:
        """Name repository and address; never the token."""
        return f"GitHub({self.repo!r}, token='***', base_url={self.base_url!r})"

    async def __aenter__(self) -> GitHub:
        """Return the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def find_pull_requests(
        self,
        head_owner: str,
        branch: str,
        base: str,
        *,
        state: Literal["open", "closed", "all"] = "all",
    ) -> tuple[PullRequest, ...]:
        """Return the pull requests from a branch into another, newest first.

        Each hit is checked: a `head` that GitHub does not understand it ignores without a word, and then lists everything.

        Raises:
            GitHubError: GitHub refused or failed.
            httpx.TransportError: No answer came.
        """
        params = {"state": state, "head": f"{head_owner}:{branch}", "base": base, "per_page": "100"}
        url: str | None = str(httpx.URL(f"{self.base_url}/repos/{self.repo}/pulls", params=params))
        found: list[PullRequest] = []
        for _ in range(_PAGES_READ):
            if url is None:
                return tuple(
                    each for each in found if self._is_from(each, head_owner, branch, base)
                )
            response = await self._client.get(url)
            found += [pull.value() for pull in self._read(response, 200, list[_Pull])]
            url = self._next_page(response)
        raise GitHubError(
            f"more than {_PAGES_READ} pages of pull requests", hint="narrow the branch and base"
        )

    async def create_pull_request(
        self, title: str, head: str, base: str, body: str, *, draft: bool = True
    ) -> PullRequest:
        """Create a pull request.

        Args:
            head: The branch, as `branch` or `owner:branch`.

        Raises:
            RateLimitedError, UnauthorizedError, ForbiddenError, UnprocessableError: Nothing was created.
            ServerFaultError, httpx.TransportError: It may have been created.
        """
        request = {"title": title, "head": head, "base": base, "body": body, "draft": draft}
        response = await self._client.post(f"{self.base_url}/repos/{self.repo}/pulls", json=request)
        return self._read(response, 201, _Pull).value()

    def _is_from(self, pull: PullRequest, head_owner: str, branch: str, base: str) -> bool:
        owner, _, _ = pull.head_repo.partition("/")
        own = self.repo.partition("/")[0].casefold() == head_owner.casefold()
        same_repo = not own or pull.head_repo.casefold() == self.repo.casefold()
        return (
            pull.head_branch == branch
            and pull.base == base
            and owner.casefold() == head_owner.casefold()
            and same_repo
        )

    def _next_page(self, response: httpx.Response) -> str | None:
        link = response.links.get("next", {}).get("url")
        if link is None:
            return None
        here, there = httpx.URL(self.base_url), httpx.URL(link)
        if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
            raise GitHubError(
                "the next page is on another host, which would be sent the token",
                hint="check the base URL",
            )
        return link

    def _read(self, response: httpx.Response, status: int, kind: type[_T]) -> _T:
        if response.status_code != status:
            raise error_of(response, self._redact)
        try:
            return parse_as(msgspec.json.Decoder(kind), response.content)
        except NotJsonError as error:
            raise ServerFaultError(
                f"GitHub's answer cannot be read: {error}",
                status=response.status_code,
                hint="the request may have been carried out; look before asking again",
            ) from error

    def _redact(self, text: str) -> str:
        return redact(text.replace(self._token, "***") if self._token else text)
