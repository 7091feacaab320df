"""The agent: from a vulnerability finding to one pull request, approved once.

Read the workflow at the end first. Everything above it is ordinary code; the decorators are what makes it durable.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import outlast
from outlast.demo import patch as making
from outlast.demo.github import GitHub, PullRequest
from outlast.demo.github_error import (
    ForbiddenError,
    RateLimitedError,
    UnauthorizedError,
    UnprocessableError,
)
from outlast.demo.model import make_plan
from outlast.demo.patch import Finding, Patch, Plan
from outlast.demo.repository import Pushed
from outlast.demo.setting import Setting

NOTHING_HAPPENED = (UnauthorizedError, ForbiddenError, RateLimitedError, UnprocessableError)
HOPELESS = outlast.RetryPolicy(
    non_retryable_error_types=("UnauthorizedError", "ForbiddenError", "UnprocessableError")
)
TRIES = outlast.RetryPolicy(
    maximum_attempts=3,
    non_retryable_error_types=(  # another attempt would read the same record and the same repository
        "MalformedRecordError",
        "WrongEcosystemError",
        "PackageNotAffectedError",
        "NoFixPublishedError",
        "PackageNotInManifestError",
        "ManifestError",
        "ProposalRefusedError",
        "PatchError",
        "SuiteFailedError",
    ),
)
EFFECT_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class Draft:
    """A pull request to be opened."""

    repo: str
    head: str
    base: str
    title: str
    body: str


@dataclass(frozen=True)
class Outcome:
    """What the agent came to."""

    finding: str
    pull_request: int
    url: str
    commit: str
    approved_by: str


@outlast.step(retry=TRIES)
async def plan(finding: Finding) -> Plan:
    """Read finding and manifest, and choose the version that fixes it."""
    setting = Setting.from_environment()
    with setting.body("plan"), _workspace() as path:
        return await make_plan(finding, path, setting.model)


@outlast.step(retry=TRIES)
def prepare_patch(finding: Finding, plan: Plan, when: datetime, deadline: datetime) -> Patch:
    """Move the pin in a working copy, run the repository's own tests, and return the exact change."""
    with Setting.from_environment().body("prepare_patch"), _workspace() as path:
        return making.prepare(finding, plan, path, when=when, deadline=deadline)


@outlast.effect(
    idempotent=True,  # the same commit on the same branch: pushed again, it changes nothing
    start_to_close_timeout=EFFECT_TIMEOUT,
    retry=outlast.RetryPolicy(
        maximum_attempts=6, non_retryable_error_types=("PatchError", "NonFastForwardError")
    ),
)
def push_branch(patch: Patch) -> Pushed:
    """Push the approved commit to a branch of its own."""
    with Setting.from_environment().body("push_branch"), _workspace() as path:
        return making.push(patch, path)


async def find_pull_request(
    draft: Draft, diff_sha256: str
) -> outlast.Applied[PullRequest] | outlast.NotApplied:
    """Ask the forge whether the pull request is there already."""
    setting = Setting.from_environment()
    with setting.body("find_pull_request"):
        if not setting.probe:
            return outlast.NotApplied()
        async with GitHub(draft.repo, token=setting.token, base_url=setting.forge_url) as github:
            owner = draft.repo.partition("/")[0]
            found = await github.find_pull_requests(owner, draft.head, draft.base)
    # The branch's name holds finding, package and version, and its pull request the hash that was approved.
    return outlast.Applied(found[0]) if found else outlast.NotApplied()


@outlast.effect(
    probe=find_pull_request,
    not_applied=NOTHING_HAPPENED,
    retry=HOPELESS,
    start_to_close_timeout=EFFECT_TIMEOUT,
)
async def open_pull_request(draft: Draft, diff_sha256: str) -> PullRequest:
    """Open the pull request, as a draft."""
    setting = Setting.from_environment()
    with setting.body("open_pull_request"):
        async with GitHub(draft.repo, token=setting.token, base_url=setting.forge_url) as github:
            return await github.create_pull_request(draft.title, draft.head, draft.base, draft.body)


@outlast.step
def record_outcome(outcome: Outcome) -> Outcome:
    """Write down what came of it."""
    setting = Setting.from_environment()
    with setting.body("record_outcome"):
        record = json.dumps(outcome.__dict__, indent=2, sort_keys=True)
        setting.record.write_text(record + "\n")
    return outcome


@outlast.workflow(name="fix_vulnerability")
async def fix(finding: Finding, expires_in: timedelta) -> Outcome:
    """Fix a vulnerable dependency, with one person's yes to exactly this change."""
    planned = await plan(finding)
    now = outlast.now()
    patch = await prepare_patch(finding, planned, now, now + expires_in)
    grant = await outlast.approval(
        {"title": patch.title, "diff": patch.diff, "diff_sha256": patch.diff_sha256,
         "base_commit": patch.base_commit, "tests": patch.suite.output},
        covers=[push_branch(patch), open_pull_request.where(diff_sha256=patch.diff_sha256)],
        role="maintainer",
        expires_in=expires_in,
    )  # fmt: skip
    pushed = await push_branch(patch)
    draft = Draft(patch.repo, pushed.branch, patch.base, patch.title, patch.body)
    pull_request = await open_pull_request(draft, patch.diff_sha256)
    return await record_outcome(
        Outcome(finding.id, pull_request.number, pull_request.url, pushed.sha, grant.by)
    )


@contextmanager
def _workspace() -> Generator[Path]:
    """A directory that does not exist yet, and is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as directory:
        yield Path(directory) / "copy"
