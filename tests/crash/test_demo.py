"""The demo as a stranger runs it: a process, its output, its exit status, and what the forge saw."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from crash_bench import Bench, check_journal, lines_of

from outlast.demo.repository import git
from outlast.demo.stage import BODIES, Play, Stage
from outlast.store.change import Status

LIMIT_SECONDS = 60
GOOD, BAD, USAGE = 0, 1, 2

RECORD = {
    "schema_version": "1.4.0",
    "id": "OSV-EXAMPLE-1",
    "modified": "2026-01-02T00:00:00Z",
    "summary": "A template could do what it should not",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "example-templates"},
            "ranges": [
                {"type": "ECOSYSTEM", "events": [{"introduced": "2.0"}, {"fixed": "3.1.3"}]}
            ],
        }
    ],
}
SUITE = "import unittest\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertTrue(True)\n"


def demo(*options: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    return subprocess.run(
        [sys.executable, "-m", "outlast.demo.show", *options],
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "COLUMNS": "200"},
    )


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON object on the last line."""
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody else's repository, as a directory: another package, another pin, a suite of its own."""
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / "requirements.txt").write_text("example-templates==3.0.1\nother==1.0\n")
    (root / "tests" / "__init__.py").touch()
    (root / "tests" / "test_it.py").write_text(SUITE)
    return root


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record about that package."""
    path = tmp_path / "record.json"
    path.write_text(json.dumps(RECORD))
    return path


def test_unattended_run_is_killed_and_opens_one_pull_request(tmp_path: Path) -> None:
    """`--yes --json` ends with status 0, and the last line says what happened."""
    done = demo("--yes", "--json", "--directory", str(tmp_path))
    assert done.returncode == GOOD, done.stderr
    assert '"pull_requests": 1, "create_requests": 1' in done.stdout.splitlines()[-1]
    result = result_of(done)
    killed = result["killed"]
    assert result["status"] == "completed"
    assert killed["signal"] == "SIGKILL"
    assert not Path(f"/proc/{killed['pid']}").exists()
    assert result["bodies"] == dict.fromkeys(BODIES, 1)
    assert set(result["seconds"]) == set(BODIES)
    assert result["url"].endswith("/pull/1")
    pids = {one["body"]: one["pid"] for one in lines_of(tmp_path / "bodies.jsonl")}
    assert pids["open_pull_request"] == killed["pid"]
    assert killed["pid"] not in (pids["find_pull_request"], pids["record_outcome"])
    requests = lines_of(tmp_path / "forge" / "requests.jsonl")
    assert [one["kind"] for one in requests if one["event"] == "request"] == ["create", "list"]
    assert json.loads((tmp_path / "outcome.json").read_text())["url"] == result["url"]


def test_undisturbed_run_needs_no_probe() -> None:
    """With nobody killed, each body runs once and the forge is never asked."""
    done = demo("--yes", "--json", "--undisturbed")
    assert done.returncode == GOOD, done.stderr
    result = result_of(done)
    assert (result["pull_requests"], result["create_requests"], result["killed"]) == (1, 1, None)
    assert result["bodies"] == {**dict.fromkeys(BODIES, 1), "find_pull_request": 0}


@pytest.mark.parametrize(("option", "status"), [("--no", "failed"), ("--let-expire", "cancelled")])
def test_without_a_yes_there_is_no_pull_request(option: str, status: str) -> None:
    """Denied or expired: nothing is pushed, nothing is opened, and the exit status says so."""
    done = demo(option, "--json")
    assert done.returncode == BAD, done.stderr
    result = result_of(done)
    assert result["status"] == status
    assert (result["pull_requests"], result["create_requests"]) == (0, 0)
    assert result["bodies"] == {**dict.fromkeys(BODIES, 0), "plan": 1, "prepare_patch": 1}
    assert "Approval" in result["reason"]


def test_without_the_probe_the_forge_is_asked_twice() -> None:
    """The demo can fail: a recovery that does not look first sends a second create request."""
    done = demo("--yes", "--json", "--without-probe")
    assert done.returncode == BAD, done.stderr
    result = result_of(done)
    assert result["create_requests"] == 2
    assert result["bodies"]["open_pull_request"] == 2


@pytest.mark.parametrize(
    ("fault", "creates", "bodies", "probes"),
    [
        ("drop_after", 1, 1, 1),
        ("drop_before", 2, 2, 1),
        ("server_error", 2, 2, 1),
        ("rate_limit", 2, 2, 0),
    ],
)
def test_fault_of_the_forge(
    tmp_path: Path, fault: str, creates: int, bodies: int, probes: int
) -> None:
    """Whatever the forge does to a create request, one pull request comes of it; after an unknown end it is asked first."""
    with Stage.build(tmp_path, Play(kill=False)) as stage:
        stage.forge.order(fault, retry_after=2)
        with Bench.opened(tmp_path, stage.setting.environment()) as bench:
            process = bench.launch("--play")
            assert bench.finish(process) == 0, bench.words()
            image = bench.image("fix")
        assert image is not None
        assert image.head.status is Status.COMPLETED
        check_journal(image.rows)
        assert [one["state"] for one in stage.forge.pulls()] == ["open"]
        requests = stage.forge.requests("create")
        assert len(requests) == creates
        if fault == "rate_limit":
            assert requests[1]["at"] - requests[0]["at"] >= 2
        tally = [one["body"] for one in stage.setting.bodies() if one["event"] == "began"]
        assert tally.count("open_pull_request") == bodies
        assert tally.count("find_pull_request") == probes


def test_other_record_and_git_repository_with_another_main_branch(
    tmp_path: Path, project: Path, record: Path
) -> None:
    """Any record and any git repository can be given; the pull request goes to that repository's own main branch."""
    who = ("-c", "user.name=Test", "-c", "user.email=test@outlast.invalid")
    git("init", "--quiet", "--initial-branch=master", cwd=project)
    git("add", ".", cwd=project)
    git(*who, "commit", "--quiet", "--message", "first", cwd=project)
    before = git("for-each-ref", cwd=project)
    directory = tmp_path / "kept"
    done = demo(
        "--yes",
        "--json",
        "--osv",
        str(record),
        "--repository",
        str(project),
        "--directory",
        str(directory),
    )
    assert done.returncode == GOOD, done.stderr
    result = result_of(done)
    assert (result["pull_requests"], result["create_requests"]) == (1, 1)
    assert result["killed"]["signal"] == "SIGKILL"
    (pull,) = json.loads((directory / "forge" / "pulls.json").read_text())
    assert pull["base"] == "master"
    assert "example-templates from 3.0.1 to 3.1.3" in pull["title"]
    pushed = git("show", f"{pull['head']}:requirements.txt", cwd=directory / "remote.git")
    assert pushed == "example-templates==3.1.3\nother==1.0\n"
    assert git("for-each-ref", cwd=project) == before
    assert git("status", "--porcelain", cwd=project) == ""


def test_other_record_and_directory(project: Path, record: Path) -> None:
    """A plain directory will do; what is shown for approval is its own diff."""
    files = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    done = demo("--no", "--osv", str(record), "--repository", str(project))
    assert done.returncode == BAD
    assert "-example-templates==3.0.1" in done.stdout
    assert "+example-templates==3.1.3" in done.stdout
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == files


def test_repository_that_does_not_use_the_package(tmp_path: Path, project: Path) -> None:
    """The shipped record against a repository without the package: an end with a reason, and no pull request."""
    done = demo("--yes", "--json", "--repository", str(project))
    assert done.returncode == BAD
    result = result_of(done)
    assert result["status"] == "failed"
    assert "langgraph-checkpoint" in result["reason"]
    assert result["pull_requests"] == 0


@pytest.mark.parametrize("options", [("--osv", "missing.json"), ("--repository", "missing")])
def test_input_that_does_not_exist(options: tuple[str, ...]) -> None:
    """A wrong path is named in a sentence, without a traceback."""
    done = demo("--yes", *options)
    assert done.returncode in {BAD, USAGE}
    said = done.stdout + done.stderr
    assert options[1] in said
    assert "Traceback" not in said


def test_no_terminal_and_no_yes() -> None:
    """Without a terminal there is nobody to ask, and the demo says what to do."""
    done = demo()
    assert done.returncode == USAGE
    assert done.stdout == ""
    assert "no terminal" in done.stderr
    assert "--yes" in done.stderr


@pytest.mark.parametrize(
    ("typed", "status", "pulls"),
    [
        (b"y\n", GOOD, 1),
        (b"n\n", BAD, 0),
        (b"\xff\xfe\n" + b"x" * 1000 + b"\ny\n", GOOD, 1),
        (b"\x04", BAD, 0),
    ],
    ids=["yes", "no", "no text, too much, then yes", "no answer"],
)
def test_asks_at_the_terminal(typed: bytes, status: int, pulls: int) -> None:
    """At a terminal the diff is shown and a person decides; what is no answer is asked for again, and none at all is a no."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast.demo.show", "--json"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "200", "PYTHONIOENCODING": "utf-8:strict"},
    )
    os.close(theirs)
    try:
        shown = _read_until(ours, "Approve exactly this?")
        assert "+langgraph-checkpoint==3.0.0" in shown
        os.write(ours, typed)
        rest = _read_until(ours, "create requests: \\d")
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == status, rest
    assert json.loads(out.splitlines()[-1])["pull_requests"] == pulls
    assert ("approved by" if pulls else "denied by") in rest


def test_ctrl_c_at_the_prompt_ends_the_demo_at_once() -> None:
    """Nobody has to decide: Ctrl-C leaves at once, with the status that shells know, and nothing was opened."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast.demo.show"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "60"},
    )
    os.close(theirs)
    try:
        shown = _read_until(ours, "Approve exactly this?")
        process.send_signal(signal.SIGINT)
        _read_until(ours, "interrupted")
        assert process.wait(timeout=LIMIT_SECONDS) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    flat = re.sub(r"\s+", "", shown)
    assert "theassistant'sconversationsarekeptthroughit" in flat, "the diff is cut at the edge"


def _read_until(terminal: int, pattern: str) -> str:
    """Read from a terminal until a pattern is seen."""
    text, end = "", time.monotonic() + LIMIT_SECONDS
    while not re.search(pattern, text):
        assert time.monotonic() < end, f"{pattern!r} never came:\n{text}"
        if select.select([terminal], [], [], 1)[0]:
            text += os.read(terminal, 65536).decode(errors="replace")
    return text
