"""The forge double, in its own process, by plain HTTP: what it documents, what it logs, what it breaks on order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast.demo.forge_process import ForgeError, ForgeProcess
from outlast.demo.forge_state import Fault, FaultBox, PullStore, RequestLog

REPO = "org-example/payments-api"
TOKEN = "ghs_" + "A1b2.C3d4-E5f6_" * 4
Add = Callable[[str], str]


def call(
    forge: ForgeProcess, method: str, query: str = "", *, without: str = "", **rest: Any
) -> httpx.Response:
    """Send one request to the pulls of the repository."""
    headers = {"Authorization": f"Bearer {TOKEN}", "User-Agent": "test", **rest.pop("headers", {})}
    headers.pop(without, None)
    request = httpx.Request(
        method, f"{forge.url}/repos/{REPO}/pulls{query}", headers=headers, **rest
    )
    with httpx.Client(trust_env=False) as client:
        return client.send(request)


def create(forge: ForgeProcess, head: str = "fix", **more: Any) -> httpx.Response:
    """Ask for a pull request."""
    return call(
        forge,
        "POST",
        json={"title": "A title", "head": head, "base": "main", "draft": True, **more},
    )


def numbers(response: httpx.Response) -> list[int]:
    """Return the numbers of the pull requests in an answer."""
    assert response.status_code == 200, response.text
    return [each["number"] for each in response.json()]


def test_create_answers_201_and_location(forge: ForgeProcess, add_branch: Add) -> None:
    """The answer has GitHub's fields, and its Location can be read."""
    sha = add_branch("fix")
    made = create(forge, body="words")
    assert made.status_code == 201
    pull = made.json()
    assert made.headers["Location"] == pull["url"] == f"{forge.url}/repos/{REPO}/pulls/1"
    assert (pull["draft"], pull["mergeable"], pull["head"]["label"], pull["head"]["sha"]) == (
        True,
        None,
        "org-example:fix",
        sha,
    )
    assert call(forge, "GET", "/1").json() == pull
    missing = call(forge, "GET", "/2")
    assert (missing.status_code, missing.json()["message"], missing.json()["status"]) == (
        404,
        "Not Found",
        "404",
    )


def test_a_bare_head_is_silently_ignored(forge: ForgeProcess, add_branch: Add) -> None:
    """Without an owner the filter filters nothing; with one it does; state is open unless said."""
    for name in ("one", "two"):
        add_branch(name)
        assert create(forge, name).status_code == 201
    assert numbers(call(forge, "GET", "?head=one")) == [2, 1]
    assert numbers(call(forge, "GET", "?head=org-example:one")) == [1]
    assert numbers(call(forge, "GET", "?head=other:one")) == []
    assert numbers(call(forge, "GET", "?base=develop")) == []
    forge.close_pull(1)
    assert numbers(call(forge, "GET")) == [2]
    assert numbers(call(forge, "GET", "?state=closed")) == [1]
    assert numbers(call(forge, "GET", "?state=all")) == [2, 1]
    assert call(forge, "GET", "?state=mine").status_code == 422


def test_pages_are_linked(forge: ForgeProcess, add_branch: Add) -> None:
    """Following `next` from the first page shows each pull request once, with the query kept."""
    for n in range(5):
        add_branch(f"b{n}")
        create(forge, f"b{n}")
    first = call(forge, "GET", "?per_page=2&state=all")
    assert numbers(first) == [5, 4]
    assert set(first.links) == {"next", "last"}
    query = httpx.URL(first.links["next"]["url"]).query.decode()
    second = call(forge, "GET", f"?{query}")
    assert numbers(second) == [3, 2]
    assert set(second.links) == {"prev", "next", "last", "first"}
    assert numbers(call(forge, "GET", "?per_page=2&page=3")) == [1]
    assert "link" not in call(forge, "GET", "?per_page=1000&page=0").headers


def test_only_open_pull_requests_conflict(forge: ForgeProcess, add_branch: Add) -> None:
    """A second open one gets the documented 422; after closing the first, a new one is made."""
    add_branch("fix")
    create(forge)
    second = create(forge, "org-example:fix")
    assert (second.status_code, second.json()["message"]) == (422, "Validation Failed")
    assert second.json()["errors"] == [
        {
            "resource": "PullRequest",
            "code": "custom",
            "message": "A pull request already exists for org-example:fix.",
        }
    ]
    forge.close_pull(1)
    assert create(forge).json()["number"] == 2


@pytest.mark.parametrize(
    ("wish", "status", "error"),
    [
        (
            {"head": "main"},
            422,
            {
                "resource": "PullRequest",
                "code": "custom",
                "message": "No commits between main and main",
            },
        ),
        ({"head": "missing"}, 422, {"resource": "PullRequest", "field": "head", "code": "invalid"}),
        (
            {"head": "other:fix"},
            422,
            {"resource": "PullRequest", "field": "head", "code": "invalid"},
        ),
        ({"base": "missing"}, 422, {"resource": "PullRequest", "field": "base", "code": "invalid"}),
        (
            {"title": ""},
            422,
            {"resource": "PullRequest", "field": "title", "code": "missing_field"},
        ),
    ],
)
def test_wrong_wishes(
    forge: ForgeProcess, add_branch: Add, wish: dict[str, Any], status: int, error: dict[str, Any]
) -> None:
    """What cannot become a pull request is refused in GitHub's words, and makes none."""
    add_branch("fix")
    answer = create(forge, **wish)
    assert (answer.status_code, answer.json()["errors"]) == (status, [error])
    assert forge.pulls() == []


def test_who_is_let_in(forge: ForgeProcess) -> None:
    """Missing and wrong credentials, an unknown version and a missing agent are refused; a missing version is the default."""
    assert (
        call(forge, "GET", without="Authorization").json()["message"] == "Requires authentication"
    )
    assert call(forge, "GET", headers={"Authorization": "Bearer other"}).status_code == 401
    assert call(forge, "GET", headers={"X-GitHub-Api-Version": "1999-01-01"}).status_code == 400
    assert call(forge, "GET", without="User-Agent").status_code == 403
    assert call(forge, "GET").headers["X-GitHub-Api-Version-Selected"] == "2022-11-28"
    assert call(forge, "POST", content=b"{").json()["message"] == "Problems parsing JSON"
    assert call(forge, "POST", content=b"[]").status_code == 400
    assert call(forge, "DELETE").status_code in (404, 501)
    with httpx.Client(trust_env=False) as client:
        other = client.get(
            f"{forge.url}/repos/org-example/other/pulls",
            headers={"Authorization": f"token {TOKEN}"},
        )
    assert other.status_code == 404


def test_simultaneous_creates_make_one(forge: ForgeProcess, add_branch: Add) -> None:
    """Eight at once: one 201, seven 422."""
    add_branch("fix")
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(create(forge).status_code))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] + [422] * 7
    assert forge.create_requests() == 8


def test_held_answer_waits_for_its_release(forge: ForgeProcess, add_branch: Add) -> None:
    """The pull request exists while its answer is held, others are served, and the answer comes when released."""
    add_branch("fix")
    forge.order("hold")
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(create(forge)))
    waiting.start()
    assert forge.held(wait=20) == [1]
    assert len(forge.pulls()) == 1
    assert numbers(call(forge, "GET")) == [1]
    assert answers == []
    forge.release()
    waiting.join(20)
    assert answers[0].status_code == 201
    assert forge.held() == []


def test_client_killed_while_its_answer_is_held(forge: ForgeProcess, add_branch: Add) -> None:
    """The demo's moment: the client dies with SIGKILL after the pull request was made; the double lives on."""
    add_branch("fix")
    forge.order("hold")
    code = (
        "import sys, httpx\n"
        "httpx.post(sys.argv[1], headers={'Authorization': 'Bearer ' + sys.argv[2]}, timeout=60, trust_env=False,\n"
        "           json={'title': 'A title', 'head': 'fix', 'base': 'main'})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, f"{forge.url}/repos/{REPO}/pulls", TOKEN]
    ) as killed:
        assert forge.held(wait=30) == [1]
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    forge.release()
    assert numbers(call(forge, "GET", "?head=org-example:fix&state=all")) == [1]
    assert forge.create_requests() == 1


def test_log_says_what_was_answered(forge: ForgeProcess, add_branch: Add) -> None:
    """Each request and its answer are there, in order, by file and by control; dropped ones have status 0."""
    add_branch("fix")
    forge.order("drop_after")
    with pytest.raises(httpx.TransportError):
        create(forge)
    call(forge, "GET")
    short = [
        (each["event"], each["number"], each.get("kind"), each.get("status"), each.get("fault"))
        for each in forge.log()
    ]
    assert short == [
        ("request", 1, "create", None, None), ("answer", 1, None, 0, "drop_after"),
        ("request", 2, "list", None, None), ("answer", 2, None, 200, ""),
    ]  # fmt: skip
    assert forge.log()[0]["body"]["head"] == "fix"
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{forge.url}/_double/log").json() == forge.log()


def test_faults_are_counted_and_chosen_by_kind(
    remote: Path, tmp_path: Path, add_branch: Add
) -> None:
    """Orders at the start work too; an order for lists leaves creates alone; wrong orders are refused."""
    add_branch("fix")
    faults = [{"fault": "server_error", "on": "list", "times": 2}]
    with ForgeProcess.start(tmp_path / "other", repo=REPO, bare=remote, faults=faults) as forge:
        assert create(forge).status_code == 201
        assert [call(forge, "GET").status_code for _ in range(3)] == [500, 500, 200]
        with pytest.raises(ForgeError, match="a fault is one of"):
            forge.order("drop_after", on="delete")
        forge.order("rate_limit", on="any", retry_after=3)
        limited = call(forge, "GET")
        assert (limited.status_code, limited.headers["Retry-After"]) == (429, "3")


def test_memory_survives_the_doubles_death(remote: Path, tmp_path: Path, add_branch: Add) -> None:
    """After SIGKILL and a new start, pull requests, log and numbers go on."""
    add_branch("fix")
    add_branch("more")
    with ForgeProcess.start(tmp_path / "d", repo=REPO, bare=remote) as forge:
        create(forge)
        os.kill(forge.pid, signal.SIGKILL)
    with ForgeProcess.start(tmp_path / "d", repo=REPO, bare=remote) as forge:
        assert numbers(call(forge, "GET")) == [1]
        assert create(forge).status_code == 422
        assert create(forge, "more").json()["number"] == 2
        assert [each["number"] for each in forge.requests("create")] == [1, 3, 4]


def test_double_ends_with_the_process_that_started_it(remote: Path, tmp_path: Path) -> None:
    """When the starter is killed, nothing stays behind."""
    code = (
        "import sys, pathlib; from outlast.demo.forge_process import ForgeProcess\n"
        "d = ForgeProcess.start(pathlib.Path(sys.argv[1]), repo='a/b', bare=pathlib.Path(sys.argv[2]))\n"
        "print(d.url, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "d"), str(remote)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        url = starter.stdout.readline().decode().strip()
        with httpx.Client(trust_env=False) as client:
            # A long poll is open when the starter dies, so that the end of the double is seen without sleeping.
            threading.Timer(0.2, starter.kill).start()
            with pytest.raises(httpx.TransportError):
                client.get(f"{url}/_double/state?wait_held=30", timeout=60)


def test_a_double_that_cannot_start_says_so(remote: Path, tmp_path: Path) -> None:
    """A taken port is an error of the handle."""
    with (
        ForgeProcess.start(tmp_path / "a", repo=REPO, bare=remote) as forge,
        pytest.raises(ForgeError, match="ended with status"),
    ):
        ForgeProcess.start(tmp_path / "b", repo=REPO, bare=remote, port=forge.port)


def test_state_classes_keep_their_promises(tmp_path: Path) -> None:
    """A torn last line is no record, numbers go on, orders are used up oldest first."""
    path = tmp_path / "log"
    with contextlib.closing(RequestLog(path)) as log:
        log.request(kind="list")
    with path.open("ab") as file:
        file.write(b'{"event": "req')
    with contextlib.closing(RequestLog(path)) as log:
        assert [each["number"] for each in log.records()] == [1]
        assert log.request(kind="list") == 2
        assert [each["number"] for each in log.records()] == [1, 2]
    store = PullStore(tmp_path / "pulls.json")
    store.add({"state": "open"})
    assert PullStore(tmp_path / "pulls.json").pulls == [{"number": 1, "state": "open"}]
    box = FaultBox([Fault("drop_after"), Fault("server_error", on="any")])
    taken = [box.take(kind) for kind in ("list", "create", "create")]
    assert [each and each.fault for each in taken] == ["server_error", "drop_after", None]
    for order in ({}, {"fault": "x"}, {"fault": "hold", "times": 0}, {"fault": "hold", "more": 1}):
        with pytest.raises(ValueError, match="a fault is one of"):
            Fault.of(json.loads(json.dumps(order)))
