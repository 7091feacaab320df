"""The patch: made from its plan alone, tested, pushed as approved, described truthfully."""

from __future__ import annotations

import dataclasses
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast.demo.patch
from outlast.demo.osv import Record
from outlast.demo.patch import (
    Finding,
    PatchError,
    Plan,
    SuiteFailedError,
    SuiteRun,
    body_of,
    branch_name,
    digest,
    fenced,
    plain,
    prepare,
    push,
    run_tests,
    survey,
)
from outlast.demo.repository import RepositoryError, WorkingCopy, git, make_remote, remote_sha
from outlast.journal.codec import codec_for

DATA = Path(outlast.demo.patch.__file__).parent / "data"
WHEN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

DEADLINE = WHEN + timedelta(hours=72)


@pytest.fixture
def plan(finding: Finding, tmp_path: Path) -> Plan:
    """The plan for the shipped finding and sample."""
    seen = survey(finding, tmp_path / "survey")
    return Plan(finding.id, seen.package, seen.version, "3.0.0", seen.base_commit, seen.manifests)


def test_survey_reads_the_sample(finding: Finding, tmp_path: Path) -> None:
    """The sample pins an affected version in one manifest."""
    seen = survey(finding, tmp_path / "copy")
    assert (seen.package, seen.version, seen.manifests) == (
        "langgraph-checkpoint",
        "2.1.1",
        ("requirements.txt",),
    )


def test_prepared_patch_is_the_one_line(finding: Finding, plan: Plan, tmp_path: Path) -> None:
    """One line changes, the comment stays, the sample's tests ran and passed."""
    patch = prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE)
    changed = [line for line in patch.diff.splitlines() if re.match(r"[+-](?![+-])", line)]
    comment = "  # the assistant's conversations are kept through it"
    assert changed == [
        f"-langgraph-checkpoint==2.1.1{comment}",
        f"+langgraph-checkpoint==3.0.0{comment}",
    ]
    assert (patch.suite.passed, patch.suite.ran, patch.files) == (True, 4, ("requirements.txt",))
    assert patch.branch == "outlast/ghsa-wwqv-p2pp-99h5-langgraph-checkpoint-3.0.0"
    assert patch.diff_sha256 == digest(patch.base_commit, patch.diff)
    assert patch.title == "Bump langgraph-checkpoint from 2.1.1 to 3.0.0 (GHSA-wwqv-p2pp-99h5)"


def test_preparing_again_gives_the_same_patch(finding: Finding, plan: Plan, tmp_path: Path) -> None:
    """A step that ran twice after a crash has one outcome: every field is equal."""
    first = prepare(
        finding, plan, tmp_path / "one", when=WHEN.replace(microsecond=5), deadline=DEADLINE
    )
    assert prepare(finding, plan, tmp_path / "two", when=WHEN, deadline=DEADLINE) == first


def test_push_sends_the_approved_commit_and_once(
    finding: Finding, plan: Plan, tmp_path: Path
) -> None:
    """The commit is made again from the diff in a new place, and the second push finds it."""
    patch = prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE)
    assert not push(patch, tmp_path / "push").already
    assert remote_sha(finding.remote, patch.branch) == patch.commit
    assert push(patch, tmp_path / "again").already


def test_a_patch_that_was_changed_is_not_pushed(
    finding: Finding, plan: Plan, tmp_path: Path
) -> None:
    """Neither another diff under the hash, nor another diff with its own hash, reaches the remote."""
    patch = prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE)
    other = patch.diff.replace("==3.0.0", "==3.0.1")
    with pytest.raises(PatchError, match="hash"):
        push(dataclasses.replace(patch, diff=other), tmp_path / "a")
    with pytest.raises(PatchError, match="made again"):
        push(
            dataclasses.replace(patch, diff=other, diff_sha256=digest(patch.base_commit, other)),
            tmp_path / "b",
        )
    assert remote_sha(finding.remote, patch.branch) is None


def test_failing_tests_stop_the_patch(finding: Finding, plan: Plan, tmp_path: Path) -> None:
    """A version that the sample's own manifest test does not take raises, with the output."""
    with pytest.raises(SuiteFailedError, match="test_each_line_is_a_pin"):
        prepare(
            finding,
            dataclasses.replace(plan, to_version="3.0.0rc1"),
            tmp_path / "copy",
            when=WHEN,
            deadline=DEADLINE,
        )


def test_the_suite_runs_bare_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of this process is visible to it, no test at all is no success, and a hang ends."""
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_secret")
    suite = tmp_path / "tests"
    suite.mkdir()
    (suite / "__init__.py").touch()
    assert not run_tests(tmp_path).passed
    (suite / "test_a.py").write_text(
        "import os, unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(sorted(os.environ), ['HOME', 'LC_ALL', 'PATH', 'TMPDIR'])\n"
    )
    first = run_tests(tmp_path)
    assert (first.passed, first.ran) == (True, 1), first.output
    assert "in …" in first.output
    assert not list(tmp_path.rglob("*.pyc"))
    hanging = run_tests(tmp_path, command=("-c", "import time; time.sleep(600)"), timeout=0.5)
    assert not hanging.passed
    assert "not finished after 0.5 s" in hanging.output


def test_several_packages_need_a_choice(record: Record, tmp_path: Path) -> None:
    """A record about two packages is not guessed at; naming one is enough."""
    two = dataclasses.replace  # the sample pins pydantic too
    affected = record.affected[0]
    second = type(affected)(type(affected.package)("PyPI", "pydantic"), affected.ranges)
    both = type(record)(record.id, (affected, second))
    bare = tmp_path / "remote.git"
    make_remote(DATA / "sample", bare, when=WHEN)
    finding = Finding(both, "org-example/payments-api", str(bare))
    with pytest.raises(PatchError, match="langgraph-checkpoint, pydantic"):
        survey(finding, tmp_path / "a")
    assert survey(two(finding, package="Pydantic"), tmp_path / "b").version == "2.12.4"


def test_branch_names_are_branches(plan: Plan) -> None:
    """Whatever ids and versions look like, git takes the name, and equal plans share it."""
    for version in ("3.0.0+local.1", "1!2.0"):
        name = branch_name(
            dataclasses.replace(plan, to_version=version, finding_id="PYSEC..2026:1")
        )
        git("check-ref-format", f"refs/heads/{name}")


def test_body_says_what_was_done_and_by_whom(record: Record, plan: Plan) -> None:
    """Finding, versions, hash and tests stand there; a model's words only under their own heading."""
    suite = SuiteRun(True, 4, "python -m unittest", "")
    body = body_of(plan, record, suite, "d" * 64)
    for fact in (
        "GHSA-wwqv-p2pp-99h5, CVE-2025-64439 (rated high)",
        "from 2.1.1 to 3.0.0",
        "d" * 64,
        "passed, 4 tests",
    ):
        assert fact in body
    assert "model" not in body.lower()
    written = body_of(
        dataclasses.replace(plan, planned_by="m-1", rationale="ok ``` @all\u202e"),
        record,
        suite,
        "",
    )
    assert (
        "**Written by a model (m-1), not checked by a person:**\n\n````text\nok ``` @all\\u202e\n````"
        in written
    )
    assert "FAILED" in body_of(plan, record, SuiteRun(False, None, "x", ""), "")


@given(
    st.text(alphabet=st.sampled_from(["`", "~", "\n", "\r", "\u2028", "\u202e", "\x1b", "a", "@"]))
)
def test_foreign_text_cannot_leave_its_block(text: str) -> None:
    """No line inside is a fence as long as the block's own, and nothing invisible stays invisible."""
    opening, *lines, closing = fenced(text).split("\n")
    assert opening == f"{closing}text"
    assert all(closing not in line for line in lines)
    assert all(plain(line) == line for line in lines)


def test_values_survive_the_journal(finding: Finding, plan: Plan, tmp_path: Path) -> None:
    """Finding, plan and patch come back equal from the bytes that a journal keeps."""
    patch = prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE)
    for value in (finding, plan, patch, push(patch, tmp_path / "push")):
        codec = codec_for(type(value), where="a value of the demo")
        assert codec.decode(codec.encode(value)) == value


def test_a_push_has_one_time_for_all_of_it(finding: Finding, plan: Plan, tmp_path: Path) -> None:
    """With no time left nothing reaches the remote, and the error says what took too long."""
    patch = prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE)
    with pytest.raises(RepositoryError, match="longer than 0 s"):
        push(patch, tmp_path / "push", timeout=0)
    assert remote_sha(finding.remote, patch.branch) is None


def sample_with(path: Path, **files: str) -> Path:
    """Return a copy of the sample with more files; `__` in a name stands for a slash, and `dot_` for a dot."""
    shutil.copytree(DATA / "sample", path, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in files.items():
        (path / name.replace("__", "/").replace("dot_", ".").replace("_py", ".py")).write_text(text)
    return path


HOSTILE = """
import pathlib, subprocess, unittest
class A(unittest.TestCase):
    def test_a(self):
        git = pathlib.Path(".git")
        (git / "info").mkdir(parents=True, exist_ok=True)
        with (git / "config").open("a") as config:
            config.write('[filter "x"]\\n\\tclean = "env > TRACE; cat"\\n')
        (git / "info" / "attributes").write_text("* filter=x\\n")
        pathlib.Path("evil.py").write_text("x")
        pathlib.Path("requirements.txt").write_text("evil==1")
        subprocess.run(["git", "add", "-f", "evil.py"], capture_output=True)
"""


def test_a_suite_has_no_hand_in_the_commit(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters, attributes, index entries and files that the tests write take no part in the patch or its push."""
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_secret")
    trace = tmp_path / "trace"
    sample = sample_with(
        tmp_path / "sample", tests__test_hostile_py=HOSTILE.replace("TRACE", str(trace))
    )
    make_remote(sample, tmp_path / "remote.git", when=WHEN)
    finding = Finding(record, "org-example/payments-api", str(tmp_path / "remote.git"))
    seen = survey(finding, tmp_path / "survey")
    plan = Plan(finding.id, seen.package, seen.version, "3.0.0", seen.base_commit, seen.manifests)
    patch = prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE)
    assert (patch.suite.ran, patch.files) == (5, ("requirements.txt",))
    assert not trace.exists()
    assert "evil" not in patch.diff
    assert push(patch, tmp_path / "push").sha == patch.commit
    assert not (tmp_path / "copy" / "evil.py").exists()


def test_a_commit_of_other_files_is_refused(
    finding: Finding, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the index besides the edited manifests does not become a patch."""
    branch = WorkingCopy.branch

    def branch_and_more(copy: WorkingCopy, name: str) -> None:
        branch(copy, name)
        (copy.path / "more.py").touch()
        git("add", "more.py", cwd=copy.path)

    monkeypatch.setattr(WorkingCopy, "branch", branch_and_more)
    with pytest.raises(PatchError, match=r"changes more\.py, requirements\.txt; edited were"):
        prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE)


def test_tests_that_archives_leave_out_are_run(record: Record, tmp_path: Path) -> None:
    """The suite sees all that is committed, whatever .gitattributes says of archives."""
    sample = sample_with(tmp_path / "sample", dot_gitattributes="tests export-ignore\n")
    make_remote(sample, tmp_path / "remote.git", when=WHEN)
    finding = Finding(record, "org-example/payments-api", str(tmp_path / "remote.git"))
    seen = survey(finding, tmp_path / "survey")
    plan = Plan(finding.id, seen.package, seen.version, "3.0.0", seen.base_commit, seen.manifests)
    assert prepare(finding, plan, tmp_path / "copy", when=WHEN, deadline=DEADLINE).suite.ran == 4
