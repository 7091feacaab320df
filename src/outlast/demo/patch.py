"""What the agent's steps make: the plan, the patch that is approved, and the text of the pull request.

Guards: a patch is made from its plan and two moments alone, so that making it again gives the same commit; what is pushed is
re-made from the approved diff and compared with it; and text that a model wrote is shown as such, and as nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from packaging.utils import canonicalize_name

from outlast.demo.manifest import find_pins, move_pins
from outlast.demo.osv import Record, packages
from outlast.demo.process import run
from outlast.demo.repository import MAIN, Pushed, WorkingCopy, left
from outlast.errors import OutlastError

SUITE = ("-m", "unittest", "discover", "-s", "tests", "-t", ".")
_OUTPUT_KEPT = 4_000  # characters of a suite's output that travel with the patch


class PatchError(OutlastError):
    """A patch that cannot be made, or is not the one that was approved."""

    code = "patch"


class SuiteFailedError(PatchError):
    """The repository's own tests do not pass with the fix."""

    code = "patch_suite_failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The agent's input: a vulnerability record and the repository to be fixed.

    `repo` is `owner/name` at the forge; `remote` is where git finds it (a path or URL); `package` narrows a record that names
    several packages.
    """

    record: Record
    repo: str
    remote: str
    base: str = MAIN
    package: str = ""

    @property
    def id(self) -> str:
        """The record's id."""
        return self.record.id


@dataclass(frozen=True, slots=True)
class Survey:
    """What a repository says about a package: the pinned version, and where it is pinned at which commit."""

    package: str
    version: str
    base_commit: str
    manifests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: one package from one version to another. `rationale` is a model's text where `planned_by` names one."""

    finding_id: str
    package: str
    from_version: str
    to_version: str
    base_commit: str
    manifests: tuple[str, ...]
    planned_by: str = ""
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """How the repository's own tests went. `ran` is None where the output does not say."""

    passed: bool
    ran: int | None
    command: str
    output: str


@dataclass(frozen=True, slots=True)
class Patch:
    """The exact change that is approved and pushed. `diff_sha256` covers base commit and diff."""

    finding_id: str
    package: str
    from_version: str
    to_version: str
    repo: str
    remote: str
    base: str
    branch: str
    base_commit: str
    diff: str
    diff_sha256: str
    commit: str
    message: str
    title: str
    body: str
    files: tuple[str, ...]
    suite: SuiteRun
    authored_at: datetime
    deadline: datetime


def digest(base_commit: str, diff: str) -> str:
    """Return the SHA-256 (hex) that names a change: the diff, bound to the commit that it is a change of."""
    return hashlib.sha256(f"{base_commit}\0{diff}".encode()).hexdigest()


def branch_name(plan: Plan) -> str:
    """Return the branch of a plan: the same plan always has the same branch."""
    words = f"{plan.finding_id}-{canonicalize_name(plan.package)}-{plan.to_version}".lower()
    return f"outlast/{re.sub(r'[^a-z0-9.-]+', '-', words).replace('..', '.').strip('.-')}"


def title_of(plan: Plan) -> str:
    """Return the title of the pull request and of the commit, in one line."""
    return f"Bump {plan.package} from {plan.from_version} to {plan.to_version} ({plan.finding_id})"


def message_of(plan: Plan, record: Record) -> str:
    """Return the commit's message. It holds nothing that differs from one making to the next."""
    known = ", ".join((record.id, *record.aliases))
    return f"{title_of(plan)}\n\nFixes: {known}\n"


def body_of(plan: Plan, record: Record, suite: SuiteRun, diff_sha256: str) -> str:
    """Return the pull request's text: the finding, the versions, how the tests went, and a model's words marked as such."""
    known = ", ".join((record.id, *record.aliases))
    rating = f" (rated {record.rating.lower()})" if record.rating else ""
    count = "" if suite.ran is None else f", {suite.ran} tests"
    facts = (
        f"Changed: {', '.join(f'`{plain(each)}`' for each in plan.manifests)}",
        f"Base commit: {plan.base_commit}",
        f"SHA-256 of base commit and diff, as approved: {diff_sha256}",
        f"The repository's own tests: {'passed' if suite.passed else 'FAILED'}{count} (`{suite.command}`)",
    )
    parts = [
        f"Moves `{plan.package}` from {plan.from_version} to {plan.to_version} because of {known}{rating}.",
        f"The record's own summary:\n\n{fenced(record.summary or 'none')}",
        "\n".join(f"- {fact}" for fact in facts),
    ]
    if plan.rationale:
        parts.append(
            f"**Written by a model ({plain(plan.planned_by)}), not checked by a person:**\n\n{fenced(plan.rationale)}"
        )
    parts.append("Opened as a draft by an agent, after a person approved exactly this change.")
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return text as one line whose control and direction characters are written out, so that it reads as it is."""
    return "".join(
        f"\\u{ord(c):04x}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c
        for c in text
    )


def fenced(text: str) -> str:
    """Return foreign text as a block that can neither format, mention, nor end itself."""
    lines = [plain(line) for line in re.split(r"\r\n|\r|\n", text)]
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def survey(finding: Finding, workspace: Path) -> Survey:
    """Find out which version of the package the repository's base branch uses.

    Args:
        workspace: A directory for the working copy, which must not exist yet.

    Raises:
        PatchError: The record names several packages and the finding does not choose.
        PackageNotInManifestError: The repository does not use the package.
    """
    copy = WorkingCopy.clone(finding.remote, workspace, base=finding.base)
    names = sorted({canonicalize_name(each.package.name) for each in packages(finding.record)})
    if not finding.package and len(names) > 1:
        raise PatchError(
            f"{finding.id} names several packages: {', '.join(names)}",
            hint="say which one is to be fixed",
        )
    package = finding.package or names[0]
    pins = find_pins(copy.path, package)
    return Survey(
        package, pins[0].version, copy.base_commit, tuple(dict.fromkeys(pin.path for pin in pins))
    )


def run_tests(root: Path, *, command: Sequence[str] = SUITE, timeout: float = 60.0) -> SuiteRun:
    """Run a repository's own tests with this Python, in a process of their own.

    The tests are somebody else's code: they get a bare environment, without the tokens of this process.

    Args:
        command: Arguments of the Python interpreter.
        timeout: Seconds until the whole process group is killed; that counts as not passed.
    """
    with tempfile.TemporaryDirectory(prefix="outlast-suite-") as home:
        bare = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "TMPDIR": home,
            "LC_ALL": "C.UTF-8",
        }
        done = run([sys.executable, "-B", "-I", *command], cwd=root, env=bare, timeout=timeout)
    said = (done.out + done.err).decode(errors="replace")
    if done.returncode is None:
        said += f"not finished after {timeout:g} s\n"
    output = re.sub(r"( in) \d+\.\d+s", r"\1 …", said)  # times would differ when made again
    ran = re.search(r"^Ran (\d+) tests?", output, re.MULTILINE)
    # unittest of 3.12 and later fails by itself when it finds no test; before, it calls that a success.
    passed = done.returncode == 0 and (ran is None or ran[1] != "0")
    return SuiteRun(
        passed, int(ran[1]) if ran else None, f"python {' '.join(command)}", output[-_OUTPUT_KEPT:]
    )


def prepare(
    finding: Finding, plan: Plan, workspace: Path, *, when: datetime, deadline: datetime
) -> Patch:
    """Make the patch of a plan in a new working copy, test what it commits elsewhere, and return it.

    Args:
        workspace: A directory for the working copy, which must not exist yet.
        when: The commit's date; from the journal.
        deadline: Until when the patch may be used.

    Raises:
        SuiteFailedError: The repository's tests fail with the fix.
        PatchError: The commit changes other files than the edited manifests.
        ManifestError, RepositoryError: The pin cannot be moved; git fails.
    """
    copy = WorkingCopy.clone(finding.remote, workspace, base=finding.base, commit=plan.base_commit)
    branch = branch_name(plan)
    copy.branch(branch)
    files = move_pins(copy.path, find_pins(copy.path, plan.package), plan.to_version)
    when = when.replace(microsecond=0)
    message = message_of(plan, finding.record)
    commit = copy.commit(message, files=files, when=when)
    diff = copy.diff(commit)
    diff_sha256 = digest(copy.base_commit, diff)
    _require_only(files, copy.changed(commit))
    suite = _test(copy, plan)  # last: after foreign code ran, nothing more is read from the copy
    return Patch(
        finding_id=plan.finding_id, package=plan.package, from_version=plan.from_version, to_version=plan.to_version,
        repo=finding.repo, remote=copy.remote, base=finding.base, branch=branch, base_commit=copy.base_commit,
        diff=diff, diff_sha256=diff_sha256, commit=commit, message=message, title=title_of(plan),
        body=body_of(plan, finding.record, suite, diff_sha256), files=files, suite=suite, authored_at=when, deadline=deadline,
    )  # fmt: skip


def _require_only(files: tuple[str, ...], changed: tuple[str, ...]) -> None:
    if set(changed) != set(files):
        raise PatchError(
            f"the commit changes {', '.join(changed) or 'nothing'}; edited were {', '.join(files)}",
            hint="check the repository's .gitattributes; no pull request was opened",
        )


def _test(copy: WorkingCopy, plan: Plan) -> SuiteRun:
    """Run the repository's tests on what was committed, in a directory without git that is thrown away."""
    # A test that left a process behind may still write there; what stays is rubbish, and no failure.
    with tempfile.TemporaryDirectory(prefix="outlast-tree-", ignore_cleanup_errors=True) as home:
        suite = run_tests(copy.export(Path(home) / "tree"))
    if not suite.passed:
        raise SuiteFailedError(
            f"the repository's tests fail with {plan.package} {plan.to_version}:\n{suite.output[-1_000:]}",
            hint="fix the repository by hand; no pull request was opened",
        )
    return suite


def push(patch: Patch, workspace: Path, *, timeout: float = 4.0) -> Pushed:
    """Push the patch, re-made from its approved diff in a new working copy.

    Args:
        workspace: A directory for the working copy, which must not exist yet.
        timeout: Seconds for what talks to the remote; it must be below the timeout of the effect.

    Raises:
        PatchError: Diff or commit are not the approved ones.
        NonFastForwardError: The branch exists with another commit.
    """
    if digest(patch.base_commit, patch.diff) != patch.diff_sha256:
        raise PatchError(
            "the diff is not the one that its hash names",
            hint="prepare the patch again and have it approved",
        )
    end = time.monotonic() + timeout
    copy = WorkingCopy.clone(
        patch.remote, workspace, base=patch.base, commit=patch.base_commit, timeout=timeout
    )
    copy.branch(patch.branch)
    copy.apply(patch.diff)
    commit = copy.commit(patch.message, when=patch.authored_at)
    if commit != patch.commit:
        raise PatchError(
            f"the commit made again is {commit[:12]}, not {patch.commit[:12]}",
            hint="prepare the patch again and have it approved",
        )
    return copy.push(patch.branch, commit, timeout=left(end))
