"""The demo agent's workflow, killed in simulation at every point. Its bodies have doubles: they need git and a forge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import outlast
import outlast.demo.osv
from outlast import testing
from outlast.demo import agent
from outlast.demo.github import PullRequest
from outlast.demo.model import DeterministicPlanner, make_plan
from outlast.demo.osv import read_record
from outlast.demo.patch import Finding, Patch, Plan, prepare
from outlast.demo.repository import Pushed, make_remote
from outlast.store.change import Status
from outlast.testing import CrashPoint

DATA = Path(outlast.demo.osv.__file__).parent / "data"
REPO = "org-example/payments-api"
WHEN = datetime(2026, 3, 1, tzinfo=UTC)
CODE = [
    *(agent.fix, agent.plan, agent.prepare_patch, agent.record_outcome),
    *(agent.push_branch, agent.open_pull_request),
]
receiver = testing.Receiver()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finding, Plan, Patch]:
    """The shipped finding, with the plan and the patch that git really makes of it, made once."""
    directory = tmp_path_factory.mktemp("demo")
    make_remote(DATA / "sample", directory / "remote.git", when=WHEN)
    record = read_record((DATA / "GHSA-wwqv-p2pp-99h5.json").read_bytes())
    finding = Finding(record, REPO, str(directory / "remote.git"))
    plan = asyncio.run(make_plan(finding, directory / "plan", DeterministicPlanner()))
    deadline = WHEN + timedelta(hours=1)
    return finding, plan, prepare(finding, plan, directory / "patch", when=WHEN, deadline=deadline)


def push(patch: Patch) -> Pushed:
    """Push to a remote that knows the commit."""
    return receiver.apply_once(outlast.idempotency_key(), Pushed(patch.branch, patch.commit, True))


async def create(draft: agent.Draft, diff_sha256: str) -> PullRequest:
    """Create a pull request at a forge that creates another one when asked again."""
    url = f"https://forge.invalid/{draft.repo}/pull/1"
    number = receiver.total
    return receiver.apply(
        outlast.idempotency_key(),
        PullRequest(
            *(number, url, draft.title, "open", True),
            *(draft.repo, draft.head, "0" * 40, draft.base),
        ),
    )


async def find(
    draft: agent.Draft, diff_sha256: str
) -> outlast.Applied[PullRequest] | outlast.NotApplied:
    """Ask the forge."""
    return receiver.find(outlast.idempotency_key())


@pytest.fixture(scope="module")
def work(world: tuple[Finding, Plan, Patch]) -> testing.Workload[agent.Outcome]:
    """The agent, approved."""
    finding, plan, patch = world

    async def planned(finding: Finding) -> Plan:
        return plan

    def prepared(finding: Finding, plan: Plan, when: datetime, deadline: datetime) -> Patch:
        return replace(patch, authored_at=when, deadline=deadline)

    same: Callable[[agent.Outcome], agent.Outcome] = lambda outcome: outcome  # noqa: E731
    return testing.Workload(
        lambda: agent.fix(finding, timedelta(hours=1)),
        receiver=receiver,
        meanwhile=testing.approve_everything,
        definitions=CODE,
        doubles=[
            testing.double(agent.plan, planned),
            testing.double(agent.prepare_patch, prepared),
            testing.double(agent.push_branch, push),
            testing.double(agent.open_pull_request, create, probe=find),
            testing.double(agent.record_outcome, same),
        ],
    )


def check(plain: testing.Trial[agent.Outcome], trial: testing.Trial[agent.Outcome]) -> None:
    """The undisturbed outcome; one branch, one pull request, created by one request."""
    assert trial.status is Status.COMPLETED, trial
    assert trial.result == plain.result, trial
    assert list(trial.changes.values()) == [1, 1], trial
    pushed, created = trial.changes
    assert trial.requests[created] == 1, trial
    assert trial.requests[pushed] <= 1 + len(trial.points), trial


def test_the_agent_opens_one_pull_request_wherever_it_is_killed(
    work: testing.Workload[agent.Outcome],
) -> None:
    """Before and after each of its commits, steps, effects; and the probe is asked only where the create's end is unknown."""
    plain = testing.undisturbed(work)
    points = plain.lives[0].points
    assert [call.what for call in plain.calls] == [
        *("step plan", "step prepare_patch"),
        *("effect push_branch", "effect open_pull_request", "step record_outcome"),
    ]
    asked: list[CrashPoint] = []
    trials = 0
    for trial in testing.every_crash(work):
        check(plain, trial)
        trials += 1
        if any(call.kind == "probe" for call in trial.calls):
            asked += trial.points
    assert trials == len(points) >= 30
    call = points.index(CrashPoint("before", "effect open_pull_request"))
    # After the intent was written, before and after the call, and before the outcome is written.
    assert asked == list(points[call - 1 : call + 3])


def test_the_agent_killed_again_while_it_recovers_the_pull_request(
    work: testing.Workload[agent.Outcome],
) -> None:
    """The process that comes after a lost answer is killed at each of its own points."""
    plain = testing.undisturbed(work)
    lost = CrashPoint("after", "effect open_pull_request")
    recovery = testing.crashed(work, lost)
    points = recovery.lives[1].points
    assert CrashPoint("after", "probe open_pull_request") in points
    for point in points:
        check(plain, testing.crashed(work, lost, point))


@pytest.mark.soak
def test_the_agent_killed_twice_at_every_pair_of_points(
    work: testing.Workload[agent.Outcome],
) -> None:
    """Each point, and each point of each recovery."""
    plain = testing.undisturbed(work)
    for trial in testing.every_crash(work, crashes=2):
        check(plain, trial)
