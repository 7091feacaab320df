"""Real git: commits that come again, pushes that never force."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import outlast.demo.repository
from outlast.demo.repository import (
    Identity,
    NonFastForwardError,
    RepositoryError,
    WorkingCopy,
    git,
    make_remote,
    remote_sha,
)

DATA = Path(outlast.demo.repository.__file__).parent / "data"
WHEN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def commit_one(
    copy: WorkingCopy, *, branch: str = "fix", text: str = "httpx==1\n", when: datetime = WHEN
) -> str:
    """Commit one change on a branch."""
    copy.branch(branch)
    (copy.path / "requirements.txt").write_text(text)
    return copy.commit("One change\n", files=("requirements.txt",), when=when)


def test_the_sample_remote_is_the_same_everywhere(remote: Path, tmp_path: Path) -> None:
    """The sample's commit depends on files and moment alone, and an existing remote is left alone."""
    first = git("rev-parse", "refs/heads/main", cwd=remote).strip()
    assert make_remote(DATA / "sample", tmp_path / "again.git", when=WHEN) == first
    assert make_remote(DATA / "sample", remote, when=WHEN + timedelta(days=1)) == first
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.git", "remote.git"]


def test_a_commit_made_again_has_the_same_sha(remote: Path, tmp_path: Path) -> None:
    """Same base, patch, identity and date: same sha; another second or identity: another one."""
    copies = [WorkingCopy.clone(str(remote), tmp_path / str(n)) for n in range(4)]
    first = commit_one(copies[0])
    diff = copies[0].diff(first)
    copies[1].branch("another-name")
    copies[1].apply(diff)
    assert copies[1].commit("One change\n", when=WHEN.astimezone()) == first
    assert commit_one(copies[2], when=WHEN + timedelta(seconds=1)) != first
    copies[3].branch("fix")
    copies[3].apply(diff)
    assert copies[3].commit("One change\n", when=WHEN, identity=Identity("Other")) != first
    assert git("log", "-1", "--format=%an|%cn|%aI|%cI", cwd=copies[0].path).strip() == (
        "Outlast demo agent|Outlast demo agent|2026-11-29T12:00:00+00:00|2026-11-29T12:00:00+00:00"
    )


def test_diff_shows_the_change_without_the_users_settings(remote: Path, tmp_path: Path) -> None:
    """Prefixes, colours and names are fixed, line ends are kept."""
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    sha = commit_one(copy, text="a==1\r\n")
    assert copy.diff(sha).startswith("diff --git a/requirements.txt b/requirements.txt\nindex ")
    assert "+a==1\r\n" in copy.diff(sha)


def test_a_repository_cannot_make_its_diff_unreadable(remote: Path, tmp_path: Path) -> None:
    """What is approved is read by a person, also where the repository calls its files binary."""
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    copy.branch("fix")
    (copy.path / ".gitattributes").write_text("* binary\n")
    (copy.path / "requirements.txt").write_text("httpx==1\n")
    sha = copy.commit("Two\n", files=(".gitattributes", "requirements.txt"), when=WHEN)
    diff = copy.diff(sha)
    assert "+httpx==1\n" in diff
    again = WorkingCopy.clone(str(remote), tmp_path / "again")
    again.branch("fix")
    again.apply(diff)
    assert again.commit("Two\n", when=WHEN) == sha


def test_push_creates_once_and_finds_itself_again(remote: Path, tmp_path: Path) -> None:
    """The second push of one commit changes nothing, from whichever copy it comes."""
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    sha = commit_one(copy)
    assert remote_sha(str(remote), "fix") is None
    assert not copy.push("fix", sha).already
    assert remote_sha(str(remote), "fix") == sha
    again = WorkingCopy.clone(str(remote), tmp_path / "again")
    assert commit_one(again) == sha
    assert again.push("fix", sha).already


@pytest.mark.parametrize("ahead", [True, False])
def test_another_commit_at_the_remote_is_never_overwritten(
    remote: Path, tmp_path: Path, add_branch: Callable[[str], str], ahead: bool
) -> None:
    """Neither a branch with other work nor one that could be fast-forwarded is touched."""
    base = git("rev-parse", "refs/heads/main", cwd=remote).strip()
    theirs = add_branch("fix") if ahead else base
    git("update-ref", "refs/heads/fix", theirs, cwd=remote)
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    with pytest.raises(NonFastForwardError, match="non-fast-forward"):
        copy.push("fix", commit_one(copy))
    assert remote_sha(str(remote), "fix") == theirs


def test_a_push_that_loses_the_race_does_not_force(
    remote: Path, tmp_path: Path, add_branch: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the branch appears between looking and pushing, what the remote has then decides."""
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    sha = commit_one(copy)
    looks: list[str | None] = [None]
    theirs = add_branch("fix")
    monkeypatch.setattr(
        "outlast.demo.repository.remote_sha",
        lambda *a, **k: looks.pop() if looks else remote_sha(*a, **k),
    )
    with pytest.raises(NonFastForwardError):
        copy.push("fix", sha)
    assert git("rev-parse", "refs/heads/fix", cwd=remote).strip() == theirs


def test_an_earlier_commit_of_the_base_can_be_cloned(remote: Path, tmp_path: Path) -> None:
    """The base commit of a plan is found again after the branch went on."""
    first = git("rev-parse", "refs/heads/main", cwd=remote).strip()
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    newer = commit_one(copy)
    git("push", "--quiet", str(remote), f"{newer}:refs/heads/main", cwd=copy.path)
    assert WorkingCopy.clone(str(remote), tmp_path / "tip").base_commit == newer
    assert WorkingCopy.clone(str(remote), tmp_path / "old", commit=first).base_commit == first


def test_a_relative_remote_means_one_place(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push from inside the clone reaches what the clone came from."""
    monkeypatch.chdir(tmp_path)
    copy = WorkingCopy.clone("remote.git", tmp_path / "deep" / "copy")
    assert copy.push("fix", commit_one(copy)).sha == remote_sha(str(remote), "fix")


def test_errors_say_what_git_said(remote: Path, tmp_path: Path) -> None:
    """A missing remote, an empty commit, a bad branch, a short sha, a naive date: one kind of error, with git's words."""
    with pytest.raises(RepositoryError, match="does not (exist|appear)"):
        WorkingCopy.clone(str(tmp_path / "missing.git"), tmp_path / "a")
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    with pytest.raises(RepositoryError, match="commit failed"):
        copy.commit("Nothing\n", when=WHEN)
    for name in ("--upload-pack=x", "a..b", "a b", ""):
        with pytest.raises(RepositoryError):
            copy.branch(name)
    with pytest.raises(RepositoryError, match="full commit id"):
        copy.push("fix", "HEAD")
    with pytest.raises(RepositoryError, match="time zone"):
        copy.commit("x\n", when=datetime(2026, 1, 1))
    with pytest.raises(RepositoryError, match="cannot be started"):
        git("status", cwd=tmp_path / "missing")
    with pytest.raises(RepositoryError, match="longer than 0 s"):
        git("hash-object", "--stdin", text="x" * 10_000_000, timeout=0)


def test_errors_show_no_password_of_a_url(tmp_path: Path) -> None:
    """What git repeats of a URL has no user information left."""
    with pytest.raises(RepositoryError, match="clone failed") as caught:
        WorkingCopy.clone("http://user:hunter2@127.0.0.1:1/a.git", tmp_path / "a")
    assert "hunter2" not in str(caught.value)


def test_foreign_transports_are_not_run(tmp_path: Path) -> None:
    """A remote that would run a command runs none."""
    trace = tmp_path / "trace"
    with pytest.raises(RepositoryError, match="not allowed"):
        WorkingCopy.clone(f"ext::sh -c touch% {trace}", tmp_path / "a")
    assert not trace.exists()
    assert WHEN.tzinfo is UTC


def test_git_gets_only_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that git starts finds neither tokens nor the user's settings, but the agent of ssh."""
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_secret")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    seen = {line.partition("=")[0] for line in git("-c", "alias.seen=!env", "seen").splitlines()}
    assert {"PATH", "SSH_AUTH_SOCK", "GIT_CONFIG_GLOBAL"} <= seen
    added_by_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {name for name in seen - added_by_shell if not name.startswith("GIT_")} <= {
        "PATH",
        "TMPDIR",
        "SSH_AUTH_SOCK",
        "LC_ALL",
    }
    assert not {"GIT_DIR", "GIT_AUTHOR_NAME"} & seen


def test_what_is_committed_is_exported(remote: Path, tmp_path: Path) -> None:
    """The export has the committed text and every tracked file, and no repository."""
    copy = WorkingCopy.clone(str(remote), tmp_path / "copy")
    sha = commit_one(copy)
    (copy.path / "untracked.py").touch()
    tree = copy.export(tmp_path / "tree")
    assert (tree / "requirements.txt").read_text() == "httpx==1\n"
    names = git("ls-files", cwd=copy.path).splitlines()
    assert sorted(str(f.relative_to(tree)) for f in tree.rglob("*") if f.is_file()) == sorted(names)
    assert copy.changed(sha) == ("requirements.txt",)
