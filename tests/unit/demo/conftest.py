"""Fixtures of the demo agent's tests: a real bare remote, a real forge double, the shipped finding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import outlast.demo.osv
from outlast.demo.forge_process import ForgeProcess
from outlast.demo.osv import Record, read_record
from outlast.demo.patch import Finding
from outlast.demo.repository import git, make_remote

DATA = Path(outlast.demo.osv.__file__).parent / "data"
REPO = "org-example/payments-api"
WHEN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TOKEN = "ghs_" + "A1b2.C3d4-E5f6_" * 4


@pytest.fixture(autouse=True)
def hostile_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A user's git configuration that would spoil everything, and that must take no part."""
    home = tmp_path_factory.mktemp("home")
    hooks = home / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "pre-push", "post-checkout", "reference-transaction"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n[user]\n\tname = Somebody\n"
        "[diff]\n\tnoprefix = true\n\tmnemonicPrefix = true\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody Else")
    source = str(DATA.parent.parent.parent)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    )


@pytest.fixture
def record() -> Record:
    """The shipped record."""
    return read_record((DATA / "GHSA-wwqv-p2pp-99h5.json").read_bytes())


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A bare remote made from the shipped sample."""
    bare = tmp_path / "remote.git"
    make_remote(DATA / "sample", bare, when=WHEN)
    return bare


@pytest.fixture
def finding(record: Record, remote: Path) -> Finding:
    """The shipped record against the sample."""
    return Finding(record, REPO, str(remote))


@pytest.fixture
def forge(remote: Path, tmp_path: Path) -> Iterator[ForgeProcess]:
    """The forge double over the remote, in a process of its own."""
    with ForgeProcess.start(tmp_path / "forge", repo=REPO, bare=remote, token=TOKEN) as process:
        yield process


@pytest.fixture
def add_branch(remote: Path) -> Callable[[str], str]:
    """Put a branch with one commit of its own on the remote, by plumbing alone."""

    def add(name: str) -> str:
        base = git("rev-parse", "refs/heads/main", cwd=remote).strip()
        who = ("-c", "user.name=Test", "-c", "user.email=test@outlast.invalid")
        sha = git(
            *who, "commit-tree", f"{base}^{{tree}}", "-p", base, "-m", name, cwd=remote
        ).strip()
        git("update-ref", f"refs/heads/{name}", sha, cwd=remote)
        return sha

    return add
