"""Cases of section D: what others took for a yes, and who was never asked."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import outlast
from outlast.approvals.decision import Decision
from outlast.client import ApprovalView, Client, RunHandle
from outlast.errors import DecisionRefusedError, DefinitionError, NotAuthorisedError, PolicyError
from outlast.policy import Deny, Narrow, Policy, Predicate, Rule, ToolCall, check, strict
from outlast.policy.authority import StoreAuthority
from outlast.store.change import Message, MessageKind, PutMessage, RunKey
from outlast.testing import Receiver, SeededRandom, Simulation, replay_run
from outlast.worker.worker import WorkerOptions
from outlast.workflows.registry import Registry

HOUR = timedelta(hours=1)
RUN = RunKey("default", "r")
receiver = Receiver()
bodies: list[str] = []
seen: list[str] = []
"""What hooks were asked about."""


def apply(what: str) -> str:
    """Let something happen in the world."""
    return receiver.apply_once(outlast.idempotency_key(), what)


@outlast.step
async def look(what: str) -> str:
    bodies.append(what)
    return what


@outlast.effect(idempotent=True)
async def remove(path: str) -> str:
    return apply(f"removed {path}")


@outlast.effect(idempotent=True, repeats=True)
async def pay(amount: int) -> str:
    return apply(f"paid {amount}")


@outlast.effect(
    idempotent=True, repeats=True, approval=outlast.Approval("boss", expires_in=24 * HOUR)
)
async def send(to: str) -> str:
    return apply(f"sent to {to}")


@outlast.workflow
async def send_all(people: list[str]) -> list[str]:
    """Send to each in a branch of its own; a refusal is what a model would be told."""
    return await asyncio.gather(*(told(send(one)) for one in people))


async def told(call: Awaitable[str]) -> str:
    """Return what became of a call, in words."""
    try:
        return await call
    except outlast.ApprovalDeniedError as no:
        return f"refused: {no.reason}"
    except outlast.OutlastError as error:
        return error.code


@outlast.workflow
async def look_and_send(to: str) -> str:
    await look("A")
    return await told(send(to))


@outlast.workflow
async def send_as(agents: list[str]) -> list[str]:
    said: list[str] = []
    for name in agents:
        with outlast.agent(name):
            said.append(await told(send("ann")))
    return said


@outlast.workflow
async def drift() -> list[str]:
    await outlast.approval("10?", covers=[pay(10)], role="boss", expires_in=24 * HOUR)
    return [await told(pay(1000)), await told(pay(10))]


@outlast.workflow
async def pay_once(amount: int) -> str:
    return await told(pay(amount))


@outlast.workflow
async def tidy(paths: list[str]) -> list[str]:
    return [await told(remove(one)) for one in paths]


CODE = [look, remove, pay, send, send_all, look_and_send, send_as, drift]
CODE += [pay_once, tidy]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    bodies.clear()
    seen.clear()


def played(scenario: Callable[[Simulation], Awaitable[Any]], policy: Policy | None = None) -> Any:
    """Play a scenario whose workers have a policy."""
    options = WorkerOptions(library="simulated", policy=policy)
    return Simulation(CODE, options=options).run(scenario)


async def waiting(sim: Simulation, count: int = 1) -> list[ApprovalView]:
    """Return the requests that wait, when so many do."""
    while len(found := await sim.client.approvals.list()) < count:
        await asyncio.sleep(0.1)
    assert len(found) == count
    return found


async def approve(sim: Simulation, view: ApprovalView) -> None:
    await sim.client.approvals.approve(
        view.run_id, view.approval_id, seen_sha256=view.subject_sha256
    )


async def deny(sim: Simulation, view: ApprovalView, reason: str) -> None:
    await sim.client.approvals.deny(
        view.run_id, view.approval_id, seen_sha256=view.subject_sha256, reason=reason
    )


async def started(sim: Simulation, call: Any, id: str = "r") -> RunHandle[Any]:
    """Start a run in a worker."""
    await sim.start_worker()
    return await sim.client.start(call, id=id)


def asked_of(view: ApprovalView) -> Any:
    """Return the arguments that a request shows."""
    return view.subject["covers"][0]["arguments"]


def test_case_046_an_answer_that_names_no_request_is_refused_where_two_wait() -> None:
    """The error names both; a decision on one with the hash of the other is none, either."""

    async def scenario(sim: Simulation) -> None:
        await started(sim, send_all(["ann", "bob"]))
        first, second = await waiting(sim, 2)
        with pytest.raises(DecisionRefusedError) as refused:
            await sim.client.approvals.get("r")
        assert first.approval_id in refused.value.message
        assert second.approval_id in refused.value.message
        with pytest.raises(DecisionRefusedError) as refused:
            await sim.client.approvals.approve(
                "r", first.approval_id, seen_sha256=second.subject_sha256
            )
        assert refused.value.reason == "mismatch"
        assert len(await waiting(sim, 2)) == 2

    played(scenario)


def test_case_056_a_yes_to_one_agent_is_none_to_another() -> None:
    """Two agents call the same tool with the same arguments: each is asked for, and a no to one is no business of the other."""

    async def scenario(sim: Simulation) -> list[str]:
        handle = await started(sim, send_as(["a", "b"]))
        (view,) = await waiting(sim)
        await approve(sim, view)
        while (views := await waiting(sim))[0].approval_id == view.approval_id:
            await asyncio.sleep(0.1)
        await deny(sim, views[0], "not b")
        return await handle.result()

    assert played(scenario) == ["sent to ann", "refused: not b"]


def watch(call: ToolCall) -> None:
    """Remember what was asked about."""
    seen.append(call.name)


def test_case_061_a_decision_stands_whatever_the_rule_would_say_now() -> None:
    """A hook looks once before the question and once at the call; nobody is asked again, and replay asks no rule."""
    policy = Policy((Rule("ask", "pay", role="boss", expires_in=24 * HOUR),), hooks=(watch,))

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        handle = await sim.client.start(pay_once(5), id="r")
        (view,) = await waiting(sim)
        assert len(seen) == 1
        worker.kill()
        await approve(sim, view)
        await sim.start_worker()
        result = await handle.result()
        assert len(await sim.client.approvals.list(pending=False)) == 1
        looks = len(seen)
        assert await replay_run(sim.store, Registry(CODE), sim.clock, RUN) is not None
        assert len(seen) == looks == 2
        return result

    assert played(scenario, policy) == "paid 5"


def halve(call: ToolCall) -> Narrow:
    """Let only half of it be paid."""
    seen.append(call.name)
    return Narrow({"amount": call.arguments["amount"] // 2})


def halve_later(call: ToolCall) -> Narrow | None:
    """The same, but not at the first look."""
    seen.append(call.name)
    return halve(call) if len(seen) > 1 else None


@pytest.mark.parametrize(
    ("hook", "shown", "said"), [(halve, 50, "paid 50"), (halve_later, 100, "approval_mismatch")]
)
def test_case_064_what_is_shown_is_what_runs(hook: Any, shown: int, said: str) -> None:
    """A hook halves the amount: half of it is shown and paid; one that does so after the yes has the call refused."""
    policy = Policy((Rule("ask", "pay", role="boss", expires_in=24 * HOUR),), hooks=(hook,))

    async def scenario(sim: Simulation) -> str:
        handle = await started(sim, pay_once(100))
        (view,) = await waiting(sim)
        assert asked_of(view) == {"amount": shown}
        await approve(sim, view)
        return await handle.result()

    assert played(scenario, policy) == said


@pytest.mark.parametrize("given", [None, 0, "", "false", {}, False])
def test_case_065_what_is_no_decision_decides_nothing(given: Any) -> None:
    """In the place of the request, or of the hash: refused with an error, and the request goes on waiting."""

    async def scenario(sim: Simulation) -> None:
        await started(sim, look_and_send("ann"))
        (view,) = await waiting(sim)
        for words in ((given, view.subject_sha256), (view.approval_id, given), (given, given)):
            with pytest.raises((DefinitionError, DecisionRefusedError)):
                await sim.client.approvals.approve("r", words[0], seen_sha256=words[1])
        assert await waiting(sim) == [view]

    played(scenario)
    assert receiver.total == 0


def test_case_068_a_yes_that_nobody_had_the_right_to_say_permits_nothing() -> None:
    """Neither by a client of somebody without the role, nor written into the run's mail beside the row of the request."""

    async def main() -> list[str]:
        async with outlast.open("memory://", workflows=[drift]) as app:
            handle = await app.start(drift(), id="r")
            while not (views := await app.approvals.list()):
                await asyncio.sleep(0.01)
            (view,) = views
            authority = StoreAuthority(app.store, "somebody else")
            eve = Client(
                app.store, random=SeededRandom("eve"), principal="eve", authority=authority
            )
            with pytest.raises(NotAuthorisedError):
                await eve.approvals.approve("r", view.approval_id, seen_sha256=view.subject_sha256)
            me, id = app.principal, view.approval_id
            said = Decision(id, view.operation, True, me, "", view.subject_sha256)
            message = Message("forged", MessageKind.DECISION, id, me, msgspec.json.encode(said))
            await app.store.commit([PutMessage(RUN, message)])
            return await handle.result()

    assert asyncio.run(main()) == ["approval_mismatch", "approval_mismatch"]
    assert receiver.total == 0


async def broken(call: ToolCall) -> None:
    raise TimeoutError


def test_case_070_a_hook_that_fails_lets_nothing_run() -> None:
    """Whatever failed: the call is denied."""

    async def scenario(sim: Simulation) -> str:
        return await (await started(sim, pay_once(5))).result()

    for policy in (Policy(hooks=(broken,)), Policy(callback=broken, callback_tools=("pay",))):
        assert played(scenario, policy) == "permission_denied"
    assert receiver.total == 0


def jail(call: ToolCall) -> Deny | None:
    """Let files be removed in one folder alone."""
    inside = Predicate("path", "inside", "/srv/project").holds(call.arguments)
    return None if inside else Deny("outside the project")


def test_case_071_a_check_that_could_not_fire_is_reported() -> None:
    """An allow rule beside a callback: check() says that it is shadowed, and strict() does not start with it."""
    policy = Policy((Rule("allow", "remove"),), callback=jail)
    assert [one.kind for one in check(policy)] == ["callback"]
    with pytest.raises(PolicyError, match="never asked"):
        strict(policy)


def test_case_071_a_hook_comes_before_every_permissive_answer() -> None:
    """The same check as a hook: an allow rule does not answer before it, and a path that leads out is outside."""
    policy = Policy((Rule("allow", "remove"),), hooks=(jail,))
    assert check(policy) == []

    async def scenario(sim: Simulation) -> list[str]:
        paths = ["/etc/passwd", "/srv/project/../x", "/srv/project/x"]
        return await (await started(sim, tidy(paths))).result()

    refused = "permission_denied"
    assert played(scenario, policy) == [refused, refused, "removed /srv/project/x"]


def test_case_074_one_yes_is_for_one_call() -> None:
    """Approved for one path, called with another: somebody is asked again."""
    policy = Policy((Rule("ask", "remove", role="boss", expires_in=24 * HOUR),))

    async def scenario(sim: Simulation) -> list[str]:
        handle = await started(sim, tidy(["a", "b"]))
        (view,) = await waiting(sim)
        assert asked_of(view) == {"path": "a"}
        await approve(sim, view)
        while asked_of((views := await waiting(sim))[0]) == {"path": "a"}:
            await asyncio.sleep(0.1)
        assert asked_of(views[0]) == {"path": "b"}
        await deny(sim, views[0], "not that")
        return await handle.result()

    assert played(scenario, policy) == ["removed a", "refused: not that"]
