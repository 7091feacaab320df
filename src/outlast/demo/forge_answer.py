"""What the forge double answers: GitHub's documented behaviour for the pull requests of one repository.

Guards: no fault is made here, and nothing here knows HTTP; a request goes in, an answer comes out. Query parameters, Link
headers, error bodies and the bare `head` that is ignored without a word are as GitHub documents them.
Source: GitHub's REST documentation (pulls, pagination, versions) and its clients' issue threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from outlast.demo.forge_state import PullStore
from outlast.demo.repository import RepositoryError, git
from outlast.journal.parse import NotJsonError, parse

API_VERSIONS = ("2022-11-28", "2026-03-10")
DOCS = "https://docs.github.com/rest/pulls/pulls"


@dataclass(frozen=True)
class Answer:
    """An HTTP answer before it is sent."""

    status: int
    body: Any
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Request:
    """An HTTP request after it was read."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    authorization: str
    version: str
    agent: str


def problem(status: int, message: str, *errors: dict[str, Any]) -> Answer:
    """Return an error in GitHub's shape."""
    body: dict[str, Any] = {"message": message, "documentation_url": DOCS, "status": str(status)}
    return Answer(status, {**body, "errors": list(errors)} if errors else body)


def invalid(**error: Any) -> Answer:
    """Return a validation error in GitHub's shape."""
    return problem(422, "Validation Failed", {"resource": "PullRequest", **error})


class Forge:
    """The documented behaviour, without faults and without HTTP."""

    def __init__(self, repo: str, bare: Path, pulls: PullStore, token: str) -> None:
        self.owner, _, self.name = repo.partition("/")
        self.bare = bare
        self.pulls = pulls
        self.token = token
        self.url = ""

    def kind(self, request: Request) -> str:
        """Say what a request is: `create`, `list`, `get` or `other`."""
        here = f"/repos/{self.owner}/{self.name}/pulls".lower()
        path = request.path.lower().rstrip("/")
        if path == here:
            return {"GET": "list", "POST": "create"}.get(request.method, "other")
        number = path.removeprefix(f"{here}/")
        return "get" if request.method == "GET" and number != path and number.isdigit() else "other"

    def refusal(self, request: Request) -> Answer | None:
        """Return the answer to a request that is not let in, or None."""
        if not request.agent:
            return problem(
                403,
                "Request forbidden by administrative rules. Please make sure your request has a User-Agent header.",
            )
        if request.version and request.version not in API_VERSIONS:
            return problem(400, f"API version {request.version} is not supported")
        scheme, _, given = request.authorization.partition(" ")
        if scheme.lower() not in ("bearer", "token") or not given:
            return problem(401, "Requires authentication")
        if self.token and given != self.token:
            return problem(401, "Bad credentials")
        return None

    def act(self, kind: str, request: Request) -> Answer:
        """Carry out a request."""
        if kind == "list":
            return self._list(request.query)
        if kind == "create":
            return self._create(request.body)
        if kind == "get":
            number = int(request.path.rstrip("/").rpartition("/")[2])
            found = [each for each in self.pulls.pulls if each["number"] == number]
            return Answer(200, self._shown(found[0])) if found else problem(404, "Not Found")
        return problem(404, "Not Found")

    def _list(self, query: dict[str, str]) -> Answer:
        state, head, base = query.get("state", "open"), query.get("head", ""), query.get("base", "")
        if state not in ("open", "closed", "all"):
            return invalid(field="state", code="invalid", value=state)
        found = list(reversed(self.pulls.pulls))  # newest first, as documented
        found = [each for each in found if state in ("all", each["state"])]
        # A bare branch is ignored without a word, as many clients' authors found out.
        if ":" in head:
            owner, _, branch = head.partition(":")
            found = [
                each
                for each in found
                if branch == each["head"] and owner.lower() == self.owner.lower()
            ]
        found = [each for each in found if not base or base == each["base"]]
        size, page = min(natural(query.get("per_page"), 30), 100), natural(query.get("page"), 1)
        last = max(1, -(-len(found) // size))
        shown = [self._shown(each) for each in found[(page - 1) * size : page * size]]
        return Answer(200, shown, self._links(query, page, last))

    def _links(self, query: dict[str, str], page: int, last: int) -> tuple[tuple[str, str], ...]:
        targets = {"prev": page - 1, "next": page + 1, "last": last, "first": 1}
        if page <= 1:
            del targets["prev"], targets["first"]
        if page >= last:
            del targets["next"], targets["last"]
        here = f"{self.url}/repos/{self.owner}/{self.name}/pulls"
        links = [
            f'<{here}?{urlencode({**query, "page": str(to)})}>; rel="{rel}"'
            for rel, to in targets.items()
        ]
        return (("Link", ", ".join(links)),) if links else ()

    def _create(self, body: bytes) -> Answer:
        try:
            sent: object = parse(body)
        except NotJsonError:
            return problem(400, "Problems parsing JSON")
        if not isinstance(sent, dict):
            return problem(400, "Body should be a JSON object")
        wish = cast("dict[str, Any]", sent)
        given = {name for name, value in wish.items() if isinstance(value, str) and value}
        missing = sorted({"head", "base", "title"} - given)
        if missing:
            return problem(
                422,
                "Validation Failed",
                *(
                    {"resource": "PullRequest", "field": f, "code": "missing_field"}
                    for f in missing
                ),
            )
        with self.pulls.lock:  # two creates for one branch must see each other
            return self._create_checked(wish)

    def _create_checked(self, wish: dict[str, Any]) -> Answer:
        owner, colon, branch = wish["head"].rpartition(":")
        base = wish["base"]
        sha, base_sha = self._sha(branch), self._sha(base)
        if base_sha is None:
            return invalid(field="base", code="invalid")
        if sha is None or (colon and owner.lower() != self.owner.lower()):
            return invalid(field="head", code="invalid")
        if any(
            each["state"] == "open" and each["head"] == branch and each["base"] == base
            for each in self.pulls.pulls
        ):
            return invalid(
                code="custom", message=f"A pull request already exists for {self.owner}:{branch}."
            )
        if git("rev-list", "--count", f"{base_sha}..{sha}", cwd=self.bare).strip() == "0":
            return invalid(code="custom", message=f"No commits between {base} and {branch}")
        pull = self.pulls.add({
            "title": wish["title"], "body": wish.get("body"), "draft": wish.get("draft") is True, "state": "open",
            "head": branch, "head_sha": sha, "base": base, "base_sha": base_sha,
            "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        })  # fmt: skip
        shown = self._shown(pull)
        return Answer(201, shown, (("Location", shown["url"]),))

    def _sha(self, branch: str) -> str | None:
        try:
            return git(
                "rev-parse",
                "--verify",
                "--quiet",
                "--end-of-options",
                f"refs/heads/{branch}^{{commit}}",
                cwd=self.bare,
            ).strip()
        except RepositoryError:
            return None

    def _shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        repo = {
            "name": self.name,
            "full_name": f"{self.owner}/{self.name}",
            "owner": {"login": self.owner},
        }
        end = {"repo": repo, "user": {"login": self.owner}}
        closed = pull["state"] == "closed"
        return {
            "url": f"{self.url}/repos/{self.owner}/{self.name}/pulls/{pull['number']}",
            "id": 1_000_000 + pull["number"],
            "html_url": f"{self.url}/{self.owner}/{self.name}/pull/{pull['number']}",
            "number": pull["number"], "state": pull["state"], "locked": False, "title": pull["title"], "body": pull["body"],
            "user": {"login": f"{self.owner}-agent"}, "created_at": pull["created_at"],
            "closed_at": pull["created_at"] if closed else None, "merged_at": None, "mergeable": None, "draft": pull["draft"],
            "head": {"label": f"{self.owner}:{pull['head']}", "ref": pull["head"], "sha": pull["head_sha"], **end},
            "base": {"label": f"{self.owner}:{pull['base']}", "ref": pull["base"], "sha": pull["base_sha"], **end},
        }  # fmt: skip


def natural(text: str | None, default: int) -> int:
    """Return a positive number from a query or header, or the default for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() and int(text) > 0 else default
