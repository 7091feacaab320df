"""The GitHub client: against the double in its own process, and against answers that the double does not give."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.demo.forge_process import ForgeProcess
from outlast.demo.github import GitHub
from outlast.demo.github_error import (
    ForbiddenError,
    GitHubError,
    RateLimitedError,
    ServerFaultError,
    UnauthorizedError,
    UnprocessableError,
    redact,
)

pytestmark = pytest.mark.anyio
REPO = "org-example/payments-api"
OWNER = "org-example"
TOKEN = "ghs_" + "A1b2.C3d4-E5f6_" * 4
Add = Callable[[str], str]


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only."""
    return "asyncio"


def client(forge: ForgeProcess, **options: Any) -> GitHub:
    """Return a client of the double."""
    return GitHub(REPO, **{"token": TOKEN, "base_url": forge.url, **options})


def answering(handler: Callable[[httpx.Request], httpx.Response]) -> GitHub:
    """Return a client whose answers a function makes."""
    github = GitHub(REPO, token=TOKEN)
    github._client._transport = httpx.MockTransport(handler)
    github._client._mounts = {}
    return github


async def test_create_then_find(forge: ForgeProcess, add_branch: Add) -> None:
    """A created draft is found by its head, and by nothing else."""
    sha = add_branch("fix")
    async with client(forge) as github:
        assert await github.find_pull_requests(OWNER, "fix", "main") == ()
        made = await github.create_pull_request("A title", "fix", "main", "A body")
        assert (made.number, made.draft, made.state, made.head_sha, made.head_repo) == (
            1,
            True,
            "open",
            sha,
            REPO,
        )
        assert await github.find_pull_requests(OWNER.upper(), "fix", "main") == (made,)
        assert await github.find_pull_requests(OWNER, "other", "main") == ()
        assert await github.find_pull_requests("somebody", "fix", "main") == ()
        assert await github.find_pull_requests(OWNER, "fix", "develop") == ()
        forge.close_pull(1)
        assert await github.find_pull_requests(OWNER, "fix", "main", state="open") == ()
        assert [each.state for each in await github.find_pull_requests(OWNER, "fix", "main")] == [
            "closed"
        ]


async def test_each_request_names_version_and_media_type(
    forge: ForgeProcess, add_branch: Add
) -> None:
    """Both headers go with every request; `head` has its owner."""
    add_branch("fix")
    async with client(forge) as github:
        await github.create_pull_request("A title", "fix", "main", "")
        await github.find_pull_requests(OWNER, "fix", "main")
    sent = [each for each in forge.log() if each["event"] == "request"]
    assert {(each["version"], each["accept"]) for each in sent} == {
        ("2022-11-28", "application/vnd.github+json")
    }
    assert forge.requests("list")[0]["query"] == {
        "state": "all",
        "head": f"{OWNER}:fix",
        "base": "main",
        "per_page": "100",
    }
    assert TOKEN not in str(forge.log())


async def test_second_pull_request_and_nothing_to_merge(
    forge: ForgeProcess, add_branch: Add
) -> None:
    """The two refusals that the agent must tell apart."""
    add_branch("fix")
    async with client(forge) as github:
        await github.create_pull_request("A title", "fix", "main", "")
        with pytest.raises(
            UnprocessableError, match=f"A pull request already exists for {OWNER}:fix"
        ) as second:
            await github.create_pull_request("A title", f"{OWNER}:fix", "main", "")
        with pytest.raises(UnprocessableError, match="No commits between main and main") as same:
            await github.create_pull_request("A title", "main", "main", "")
        with pytest.raises(UnprocessableError, match="PullRequest head invalid") as missing:
            await github.create_pull_request("A title", "missing", "main", "")
    flags = [(each.value.already_exists, each.value.no_commits) for each in (second, same, missing)]
    assert flags == [(True, False), (False, True), (False, False)]


async def test_bad_token_and_bad_repository(forge: ForgeProcess) -> None:
    """401 and 404 are errors of their own, and neither repeats the token."""
    async with client(forge, token="ghp_" + "x" * 36) as github:
        with pytest.raises(UnauthorizedError, match="Bad credentials") as caught:
            await github.find_pull_requests(OWNER, "fix", "main")
        assert "ghp_x" not in str(caught.value) + repr(github)
    github = GitHub("org-example/other", token=TOKEN, base_url=forge.url)
    async with github:
        with pytest.raises(ForbiddenError, match="404"):
            await github.create_pull_request("A title", "fix", "main", "")


async def test_ordered_faults_arrive_as_their_errors(forge: ForgeProcess, add_branch: Add) -> None:
    """A fault before acting leaves nothing, a dropped answer leaves a pull request; each is told as what it is."""
    add_branch("fix")
    async with client(forge) as github:
        forge.order("server_error")
        forge.order("rate_limit", retry_after=7)
        forge.order("drop_before")
        with pytest.raises(ServerFaultError):
            await github.create_pull_request("A title", "fix", "main", "")
        with pytest.raises(RateLimitedError) as limited:
            await github.create_pull_request("A title", "fix", "main", "")
        assert limited.value.retry_after == 7
        with pytest.raises(httpx.TransportError):
            await github.create_pull_request("A title", "fix", "main", "")
        assert await github.find_pull_requests(OWNER, "fix", "main") == ()
        forge.order("drop_after")
        with pytest.raises(httpx.TransportError):
            await github.create_pull_request("A title", "fix", "main", "")
        assert [each.number for each in await github.find_pull_requests(OWNER, "fix", "main")] == [
            1
        ]
    assert forge.create_requests() == 4


async def test_hits_that_github_should_not_have_given_are_left_out() -> None:
    """Another branch at the same commit, another fork, another base, a deleted fork: not ours."""

    def pull(number: int, ref: str, repo: str | None, base: str = "main") -> dict[str, Any]:
        head = {"ref": ref, "sha": "1" * 40, "repo": {"full_name": repo} if repo else None}
        return {
            "number": number,
            "html_url": "https://x",
            "title": "t",
            "state": "open",
            "head": head,
            "base": {"ref": base},
        }

    listed = [
        pull(1, "other", REPO), pull(2, "fix", "fork/payments-api"), pull(3, "fix", f"{OWNER}/other"),
        pull(4, "fix", None), pull(5, "fix", REPO, "develop"), pull(6, "fix", REPO.upper()), pull(7, "fix", "fork/renamed"),
    ]  # fmt: skip
    async with answering(lambda request: httpx.Response(200, json=listed)) as github:
        assert [each.number for each in await github.find_pull_requests(OWNER, "fix", "main")] == [
            6
        ]
        assert [each.number for each in await github.find_pull_requests("fork", "fix", "main")] == [
            2,
            7,
        ]


async def test_every_page_is_read_and_no_other_host() -> None:
    """The link to the next page is followed on the same host only: the token goes with it."""

    def page(number: int) -> dict[str, Any]:
        head = {"ref": "fix", "sha": "1" * 40, "repo": {"full_name": REPO}}
        return {
            "number": number,
            "html_url": "https://x",
            "title": "t",
            "state": "open",
            "head": head,
            "base": {"ref": "main"},
        }

    def handler(request: httpx.Request) -> httpx.Response:
        number = int(request.url.params.get("page", "1"))
        host = "api.github.com" if number < 3 else "evil.example"
        link = (
            f'<https://{host}/repos/{REPO}/pulls?page={number + 1}>; rel="next"'
            if number < last
            else ""
        )
        return httpx.Response(200, json=[page(number)], headers={"Link": link} if link else {})

    last = 3
    async with answering(handler) as github:
        assert [each.number for each in await github.find_pull_requests(OWNER, "fix", "main")] == [
            1,
            2,
            3,
        ]
        last = 4
        with pytest.raises(GitHubError, match="another host"):
            await github.find_pull_requests(OWNER, "fix", "main")


DATE = "Sun, 29 Nov 2026 12:00:00 GMT"
NOON = 1795953600


@pytest.mark.parametrize(
    ("status", "headers", "message", "wait"),
    [
        (429, {"retry-after": "30"}, "", 30),
        (403, {"retry-after": "30", "x-ratelimit-remaining": "0"}, "", 30),
        (429, {"retry-after": "Sun, 29 Nov 2026 12:01:30 GMT"}, "", 90),
        (429, {"retry-after": "soon"}, "", 60),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOON + 120)}, "", 120),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOON - 5)}, "", 1),
        (403, {"x-ratelimit-remaining": "0"}, "", 60),
        (403, {"x-ratelimit-remaining": "12"}, "You have exceeded a secondary rate limit.", 60),
        (429, {}, "", 60),
        (403, {"x-ratelimit-remaining": "12"}, "Resource not accessible by integration", None),
    ],
)
async def test_a_403_is_not_always_forbidden(
    status: int, headers: dict[str, str], message: str, wait: float | None
) -> None:
    """How long to wait follows the documented order of headers; a 403 about rights has no wait."""
    answer = httpx.Response(status, json={"message": message}, headers={"Date": DATE, **headers})
    async with answering(lambda request: answer) as github:
        with pytest.raises(GitHubError) as caught:
            await github.create_pull_request("t", "fix", "main", "")
    if wait is None:
        assert isinstance(caught.value, ForbiddenError)
    else:
        assert isinstance(caught.value, RateLimitedError)
        assert caught.value.retry_after == wait


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(502, text="<html>"), ServerFaultError),
        (httpx.Response(201, text="{"), ServerFaultError),
        (httpx.Response(201, content=b"\xff"), ServerFaultError),
        (
            httpx.Response(422, json={"message": "Validation Failed", "errors": ["in words"]}),
            UnprocessableError,
        ),
        (httpx.Response(301, headers={"Location": "https://evil.example/"}), GitHubError),
        (httpx.Response(200, json={}), GitHubError),
    ],
)
async def test_unexpected_answers_have_their_kind(
    answer: httpx.Response, kind: type[GitHubError]
) -> None:
    """An unreadable success may have happened; a redirect is not followed."""
    async with answering(lambda request: answer) as github:
        with pytest.raises(GitHubError) as caught:
            await github.create_pull_request("t", "fix", "main", "")
    assert type(caught.value) is kind
    assert caught.value.status == answer.status_code


async def test_no_error_repeats_a_token() -> None:
    """What a server says is cleaned, of this token and of any other."""
    body = {
        "message": f"token {TOKEN} and github_pat_11AAAA_bbb",
        "errors": [{"message": f"Bearer {TOKEN}"}],
    }
    async with answering(lambda request: httpx.Response(422, json=body)) as github:
        with pytest.raises(UnprocessableError) as caught:
            await github.create_pull_request("t", "fix", "main", "")
        assert TOKEN not in repr(github)
    text = f"{caught.value!r} {caught.value} {caught.value.reasons}"
    assert TOKEN not in text
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.reasons, again.status) == (
        str(caught.value),
        caught.value.reasons,
        422,
    )
    assert "github_pat_" not in text


@given(
    prefix=st.sampled_from(["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"]),
    secret=st.text("ABCxyz019._-", min_size=8, max_size=400),
)
def test_tokens_of_any_length_are_redacted(prefix: str, secret: str) -> None:
    """No length is assumed: prefix and character set decide."""
    assert redact(f"a {prefix}{secret} b") == "a *** b"


def test_tokens_are_not_sent_in_the_clear() -> None:
    """Plain http is for loopback; a name that is no repository is refused."""
    with pytest.raises(GitHubError, match="clear"):
        GitHub(REPO, token=TOKEN, base_url="http://github.example")
    for name in ("payments-api", "a/b/c", "../x", "a/b?x=1"):
        with pytest.raises(GitHubError, match="does not name"):
            GitHub(name, token=TOKEN)
