"""Git, run as a process: working copies, commits that can be made again, and pushes that never force.

Guards: the same base, patch, identity and moment give the same commit, byte for byte; a remote branch is created or found as
it should be, and never overwritten. No configuration, hook or prompt of the user takes part, and of the environment only
what git needs: a filter or transport that it starts finds no token there.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from outlast.demo.process import run
from outlast.errors import OutlastError

MAIN = "main"
_KEPT = ("PATH", "TMPDIR", "SSH_AUTH_SOCK")
_USERINFO = re.compile(r"://[^/@\s]+@")
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "advice.detachedHead=false",
    "diff.algorithm=myers",
    f"init.defaultBranch={MAIN}",
)


class RepositoryError(OutlastError):
    """Git could not do what was asked."""

    code = "repository"


class NonFastForwardError(RepositoryError):
    """The remote branch exists and is not the commit to be pushed."""

    code = "repository_non_fast_forward"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a commit is by."""

    name: str = "Outlast demo agent"
    email: str = "agent@outlast.invalid"


@dataclass(frozen=True, slots=True)
class Pushed:
    """A branch as it stands at the remote; `already` when it stood there before."""

    branch: str
    sha: str
    already: bool


def git(
    *words: str,
    cwd: Path | None = None,
    text: str = "",
    extra: dict[str, str] | None = None,
    timeout: float = 20.0,
) -> str:
    """Run git and return what it printed.

    Args:
        text: What it reads from its standard input.
        extra: Environment for this call, as the dates of a commit.
        timeout: Seconds until it is killed, with all that it started.

    Raises:
        RepositoryError: It is not installed, failed, or took too long.
    """
    command = ["git", *(part for setting in _SETTINGS for part in ("-c", setting)), *words]
    try:
        done = run(command, cwd=cwd, env=_environment() | (extra or {}), text=text, timeout=timeout)
    except OSError as error:
        raise RepositoryError(
            f"git cannot be started: {error}",
            hint="install git, and check that the directory exists",
        ) from error
    if done.returncode is None:
        raise RepositoryError(
            f"git {words[0]} took longer than {timeout:g} s",
            hint="check the remote, then try again",
        )
    if done.returncode:
        said = _USERINFO.sub(
            "://***@", (done.err.strip() or done.out.strip()).decode(errors="replace")
        )
        raise RepositoryError(f"git {words[0]} failed: {said}", hint="read git's own words above")
    try:
        return done.out.decode()
    except UnicodeDecodeError as error:  # such text could be neither shown nor journaled
        raise RepositoryError(
            f"git {words[0]} printed what is not UTF-8", hint="convert the file to UTF-8"
        ) from error


def _environment() -> dict[str, str]:
    # Without HOME neither ~/.config/git/attributes nor ~/.config/git/ignore is found; ssh asks the user database.
    kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
    kept.setdefault("PATH", os.defpath)
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }


def check_branch(name: str) -> str:
    """Return the name if git takes it for a branch.

    Raises:
        RepositoryError: It does not, or it could be taken for an option.
    """
    if name.startswith("-"):
        raise RepositoryError(
            f"{name!r} is no branch name", hint="a branch name does not begin with a dash"
        )
    git("check-ref-format", f"refs/heads/{name}")
    return name


def remote_sha(remote: str, branch: str, *, timeout: float = 20.0) -> str | None:
    """Return the commit of a branch at the remote, or None if it has no such branch."""
    ref = f"refs/heads/{check_branch(branch)}"
    for line in git("ls-remote", "--", remote, ref, timeout=timeout).splitlines():
        sha, _, name = line.partition("\t")
        if name == ref:
            return sha
    return None


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """A clone that commits are made in. Its directory is the caller's to remove."""

    path: Path
    remote: str
    base_commit: str

    @classmethod
    def clone(
        cls,
        remote: str,
        path: Path,
        *,
        base: str = MAIN,
        commit: str | None = None,
        timeout: float = 60.0,
    ) -> WorkingCopy:
        """Clone a remote's branch into a new directory, at its tip or at a given commit of it.

        Raises:
            RepositoryError: The remote, branch or commit cannot be had.
        """
        check_branch(base)
        if Path(remote).exists():
            # Pushes run inside the clone, where a relative path means another place.
            remote = str(Path(remote).resolve())
        git("clone", "--quiet", "--no-hardlinks", "--no-tags", "--template=", "--single-branch", "--branch", base,
            "--no-recurse-submodules", "--", remote, str(path), timeout=timeout)  # fmt: skip
        if commit is not None:
            git("checkout", "--quiet", "--detach", _sha(commit), "--", cwd=path)
        return cls(path, remote, git("rev-parse", "--verify", "HEAD", cwd=path).strip())

    def branch(self, name: str) -> None:
        """Start a branch here, at the base commit."""
        git("checkout", "--quiet", "-b", check_branch(name), self.base_commit, "--", cwd=self.path)

    def apply(self, diff: str) -> None:
        """Apply a diff to the files and the index; it fits as a whole or raises."""
        git("apply", "--index", "--whitespace=nowarn", "-", cwd=self.path, text=diff)

    def commit(
        self,
        message: str,
        *,
        files: tuple[str, ...] = (),
        when: datetime,
        identity: Identity | None = None,
    ) -> str:
        """Commit the index and the given files, and return the commit's sha.

        Args:
            when: Author's and committer's date, to the second; it must come from the journal for the sha to come again.

        Raises:
            RepositoryError: There is nothing to commit.
        """
        if when.tzinfo is None:
            raise RepositoryError(
                "the date of a commit needs a time zone", hint="pass an aware datetime, in UTC"
            )
        who = identity or Identity()
        date = f"@{int(when.timestamp())} +0000"
        if files:
            # A manifest is committed even where .gitignore names it.
            git("add", "--force", "--", *files, cwd=self.path)
        git("commit", "--quiet", "--no-verify", "--cleanup=verbatim", "--file=-", cwd=self.path, text=message, extra={
            "GIT_AUTHOR_NAME": who.name, "GIT_AUTHOR_EMAIL": who.email, "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_NAME": who.name, "GIT_COMMITTER_EMAIL": who.email, "GIT_COMMITTER_DATE": date,
        })  # fmt: skip
        return git("rev-parse", "--verify", "HEAD", cwd=self.path).strip()

    def diff(self, sha: str = "HEAD") -> str:
        """Return what a commit changes against the base, the same text on every machine."""
        return git("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames",
                   "--full-index", "--text", "--src-prefix=a/", "--dst-prefix=b/", self.base_commit, sha, "--", cwd=self.path)  # fmt: skip

    def changed(self, sha: str = "HEAD") -> tuple[str, ...]:
        """Return the paths that a commit changes against the base, sorted."""
        names = git("diff", "--name-only", "-z", "--no-renames", self.base_commit, sha, "--", cwd=self.path)  # fmt: skip
        return tuple(sorted(name for name in names.split("\0") if name))

    def export(self, target: Path) -> Path:
        """Write the index's files, without a repository, into a new directory, and return it."""
        target.mkdir()
        # `git archive` would leave out what .gitattributes marks as export-ignore; often that is the tests.
        git("checkout-index", "--all", f"--prefix={target.resolve()}/", cwd=self.path)
        return target

    def push(self, branch: str, sha: str, *, timeout: float = 4.0) -> Pushed:
        """Create the branch at the remote; a branch that is there already, at this commit, is done.

        Args:
            timeout: Seconds for all of it: looking, pushing, and looking again after a failure.

        Raises:
            NonFastForwardError: The remote branch is another commit. It is left as it is.
            RepositoryError: The remote cannot be reached or refuses.
        """
        ref = f"refs/heads/{check_branch(branch)}"
        end = time.monotonic() + timeout
        if (there := remote_sha(self.remote, branch, timeout=timeout)) is not None:
            return Pushed(branch, _same(branch, there, sha), already=True)
        try:
            git(
                "push",
                "--quiet",
                "--no-verify",
                "--",
                self.remote,
                f"{_sha(sha)}:{ref}",
                cwd=self.path,
                timeout=left(end),
            )
        except RepositoryError:
            # Somebody may have been faster, or the answer was lost: what the remote has now decides.
            if (there := remote_sha(self.remote, branch, timeout=left(end))) is None:
                raise
            return Pushed(branch, _same(branch, there, sha), already=True)
        return Pushed(branch, sha, already=False)


def make_remote(sample: Path, bare: Path, *, when: datetime) -> str:
    """Make a bare repository that holds a directory's files as one commit on `main`, and return its sha.

    A directory that is there already is left as it is. It appears whole or not at all.
    """
    if bare.exists():
        return git("rev-parse", "--verify", f"refs/heads/{MAIN}", cwd=bare).strip()
    building = bare.with_name(f"{bare.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    tree = building / "tree"
    shutil.copytree(sample, tree, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".git"))
    git("init", "--quiet", "--template=", cwd=tree)
    copy = WorkingCopy(tree, str(bare), "")
    sha = copy.commit(
        "A small ledger\n",
        files=(".",),
        when=when,
        identity=Identity("Sample author", "author@outlast.invalid"),
    )
    git(
        "clone",
        "--quiet",
        "--bare",
        "--no-hardlinks",
        "--template=",
        "--",
        str(tree),
        str(building / "bare"),
    )
    (building / "bare").rename(bare)
    shutil.rmtree(building)
    return sha


def left(end: float) -> float:
    """Return the seconds until a moment of the monotonic clock; never less than none."""
    return max(0.0, end - time.monotonic())


def _same(branch: str, there: str, sha: str) -> str:
    if there != sha:
        raise NonFastForwardError(
            f"the remote branch {branch} is at {there[:12]}, not at {sha[:12]} (non-fast-forward)",
            hint="somebody else works on that branch; it is never forced. Delete or rename it, then start a new run",
        )
    return sha


def _sha(text: str) -> str:
    if len(text) not in (40, 64) or not set(text) <= set("0123456789abcdef"):
        raise RepositoryError(
            f"{text!r} is not a full commit id", hint="pass the whole sha in lower case"
        )
    return text
