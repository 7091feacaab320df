"""The authorisation point: what policy, roles and time say immediately before an effect begins, and before it is attempted again."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import (
    ApprovalRequested,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    from_row,
)
from outlast.policy import Deny, Narrow, Policy, PolicyFile, Predicate, Rule, ToolCall
from outlast.policy.authority import Held, Principal, StoreAuthority
from outlast.policy.binding import Bindings, RoleBinding, Verb, first_bindings
from outlast.store.change import PutControl, RunKey, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.executor import Executor
from outlast.worker.permit import Finder
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
SOON = timedelta(minutes=10)
OFTEN = outlast.RetryPolicy(initial_interval=timedelta(seconds=2), maximum_attempts=5)
receiver = Receiver()
calls: list[ToolCall] = []
failing: list[Exception] = []
"""What the next attempts raise, in turn."""
broken: list[Exception] = []
"""What the hook raises."""


class RefusedError(Exception):
    """Proves that nothing happened."""


async def attempt_to_pay(amount: int) -> int:
    if failing:
        raise failing.pop(0)
    return receiver.apply_once(outlast.idempotency_key(), amount)


@outlast.effect(idempotent=True, repeats=True, retry=OFTEN, not_applied=(RefusedError,))
async def pay(amount: int) -> int:
    return await attempt_to_pay(amount)


@outlast.effect(idempotent=True, start_to_close_timeout=timedelta(seconds=5), retry=OFTEN)
async def unbook(seat: int) -> None:
    receiver.apply_once(outlast.idempotency_key(), -seat)


@outlast.effect(
    idempotent=True, start_to_close_timeout=timedelta(seconds=5), compensate=unbook, retry=OFTEN
)
async def book(seat: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), seat)


@outlast.workflow
async def pay_once(amount: int) -> int:
    return await pay(amount)


@outlast.effect(
    idempotent=True,
    retry=OFTEN,
    not_applied=(RefusedError,),
    schedule_to_close_timeout=timedelta(seconds=60),
)
async def pay_soon(amount: int) -> int:
    return await attempt_to_pay(amount)


@outlast.workflow
async def soon(amount: int) -> int:
    return await pay_soon(amount)


@outlast.workflow
async def pay_after_yes_uncaught(amount: int) -> int:
    await outlast.approval("pay", covers=[pay(amount)], role="boss", expires_in=SOON)
    return await pay(amount)


@outlast.effect(idempotent=True)
def stamp(amount: int) -> str:
    receiver.apply_once(outlast.idempotency_key(), amount)
    return "stamped"


@outlast.workflow
async def stamp_once(amount: int) -> str:
    return await stamp(amount)


@outlast.workflow
async def pay_after_yes(amount: int) -> str:
    await outlast.approval("pay", covers=[pay(amount)], role="boss", expires_in=SOON)
    try:
        return str(await pay(amount))
    except outlast.OutlastError as error:
        return error.code


@outlast.workflow
async def pay_as(agent: str) -> list[str]:
    said: list[str] = []

    async def act(name: str, amount: int) -> None:
        try:
            with outlast.agent(name):
                said.append(str(await pay(amount)))
        except outlast.PermissionDeniedError as error:
            said.append(f"{error.reason} {error.rule}".strip())

    with outlast.agent(agent):
        tasks = [asyncio.create_task(pay_plain(said))]
    await asyncio.gather(*tasks)
    await act("other", 2)
    said.append(str(await pay(3)))
    return said


async def pay_plain(said: list[str]) -> None:
    try:
        said.append(str(await pay(1)))
    except outlast.PermissionDeniedError as error:
        said.append(f"{error.reason} {error.rule}".strip())


@outlast.workflow
async def book_and_fall() -> None:
    async with outlast.saga():
        await book(7)
        raise ValueError("changed my mind")


@outlast.workflow
async def pay_many(count: int) -> int:
    results = await asyncio.gather(*(pay(one) for one in range(count)), return_exceptions=True)
    return sum(isinstance(one, outlast.PermissionDeniedError) for one in results)


CODE = [
    pay,
    pay_soon,
    soon,
    pay_after_yes_uncaught,
    stamp,
    stamp_once,
    book,
    unbook,
    pay_once,
    pay_after_yes,
    pay_as,
    book_and_fall,
    pay_many,
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    calls.clear()
    failing.clear()
    broken.clear()


def watch(call: ToolCall) -> None:
    """Remember what hooks are asked."""
    calls.append(call)


def halve(call: ToolCall) -> Narrow:
    """Let only half of it be paid."""
    return Narrow({"amount": call.arguments["amount"] // 2})


def fall(call: ToolCall) -> None:
    """Raise, if the test wants that."""
    if broken:
        raise broken[0]


async def sleep_long(call: ToolCall) -> None:
    """Answer too late."""
    await asyncio.sleep(11)


def played(
    scenario: Callable[[Simulation], Awaitable[Any]],
    policy: Policy | PolicyFile | None,
    **more: Any,
) -> Any:
    """Play a scenario whose worker has a policy."""
    options = WorkerOptions(library="simulated", policy=policy, **more)
    return Simulation(CODE, options=options).run(scenario)


async def entries(sim: Simulation) -> list[Entry]:
    """Return the run's journal."""
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


async def intent(sim: Simulation) -> EffectIntended:
    """Return the first intent of the run."""
    return next(one for one in await entries(sim) if isinstance(one, EffectIntended))


async def run_once(sim: Simulation, amount: int = 8) -> Any:
    """Run one payment to its end; raise what its workflow raised."""
    await sim.start_worker()
    return await outcome(await sim.client.start(pay_once(amount), id="r"))


async def run_soon(sim: Simulation) -> Any:
    """Run one payment that has a minute; raise what its workflow raised."""
    await sim.start_worker()
    return await outcome(await sim.client.start(soon(8), id="r"))


async def outcome(handle: RunHandle[Any]) -> Any:
    """Return what a run came to, or raise what its workflow raised."""
    try:
        return await handle.result()
    except outlast.WorkflowFailedError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


async def decide(sim: Simulation) -> None:
    """Say yes to the one request of the run when it is there."""
    while not (views := await sim.client.approvals.list()):
        await asyncio.sleep(0.1)
    (view,) = views
    await sim.client.approvals.approve("r", view.approval_id, seen_sha256=view.subject_sha256)


def roles(*bindings: RoleBinding) -> bytes:
    """Return the body of a row of roles."""
    first = first_bindings("root")
    guarded = tuple(sorted({*first.guarded, *(b.role for b in bindings if ":" in b.role)}))
    return Bindings((*first.bindings, *bindings), guarded).encode()


async def put(sim: Simulation, name: str, body: bytes, *, tenant: str = "default") -> None:
    """Write a control row, whatever its version is."""
    row = await sim.store.control(tenant, name)
    await sim.store.commit([PutControl(tenant, name, row[0] if row else 0, body)])


# Policy


def test_a_rule_denies_an_effect() -> None:
    """The workflow gets what denied it; nothing is intended."""

    async def scenario(sim: Simulation) -> list[Entry]:
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await run_once(sim)
        error = caught.value
        assert (error.reason, error.rule, error.policy_version) == ("rule", "big", policy.version)
        return await entries(sim)

    rule = Rule("deny", "pay", (Predicate("amount", "greater", 5),), name="big", reason="too much")
    policy = Policy(rules=(rule,))
    found = played(scenario, policy)
    assert not any(isinstance(one, EffectIntended) for one in found)
    assert any(isinstance(one, EffectRefused) for one in found)
    assert receiver.total == 0


def test_what_may_begin_names_the_policy_that_let_it() -> None:
    """The intent holds the policy's version and the time of the question, and hooks see the whole call."""

    async def scenario(sim: Simulation) -> EffectIntended:
        assert await run_once(sim) == 8
        return await intent(sim)

    policy = Policy(hooks=(watch,))
    found = played(scenario, policy)
    assert found.policy_version == policy.version
    assert found.checked_at is not None
    (call,) = calls
    told = (
        call.name,
        dict(call.arguments),
        call.tenant,
        call.workflow,
        call.principal,
        call.writes,
    )
    assert told == ("pay", {"amount": 8}, "default", "pay_once", "tester", True)


def test_case_064_a_hook_halves_the_amount() -> None:
    """What is intended, hashed and run is what the hook has left; the journal keeps what was asked for beside it."""

    async def scenario(sim: Simulation) -> EffectIntended:
        assert await run_once(sim) == 4
        return await intent(sim)

    found = played(scenario, Policy(hooks=(halve,)))
    assert (bytes(found.requested), bytes(found.effective)) == (b'{"amount":8}', b'{"amount":4}')
    assert found.requested_sha256 == pay.request((8,), {}).action_sha256
    assert found.action_sha256 == pay.request((4,), {}).action_sha256
    assert [value for _, value in receiver.log] == [4]


def test_case_064_a_hook_that_rewrites_what_was_approved() -> None:
    """A yes to 8 pays no 4: the grant is for another action."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(pay_after_yes(8), id="r")
        await decide(sim)
        return await handle.result()

    assert played(scenario, Policy(hooks=(halve,))) == "approval_mismatch"
    assert receiver.total == 0


@pytest.mark.parametrize(
    ("hook", "what"),
    [(fall, "ZeroDivisionError"), (sleep_long, "TimeoutError"), (lambda _: 7, "TypeError")],
)
def test_case_070_a_hook_that_fails_denies(hook: Any, what: str) -> None:
    """Whatever a hook does but answer, in time and in kind, the effect does not run."""
    broken.append(ZeroDivisionError("no"))

    async def scenario(sim: Simulation) -> str:
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await run_once(sim)
        assert caught.value.reason == "error"
        return caught.value.message

    assert what in played(scenario, Policy(hooks=(hook,)))
    assert receiver.total == 0


@pytest.mark.parametrize(("seconds", "is_late"), [(9, False), (11, True)])
def test_a_hook_has_its_time_once_it_has_a_thread(seconds: int, is_late: bool) -> None:
    """How long no thread is free says nothing of a plain hook; how long it takes then does."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        worker.threads.crowded = 30

        def take_long(call: ToolCall) -> None:
            worker.threads.busy(seconds)

        hooks.append(take_long)
        handle = await worker.client.start(pay_once(8), id="r")
        try:
            return str(await outcome(handle))
        except outlast.PermissionDeniedError as error:
            return error.message

    hooks = list[Any]()

    def ask(call: ToolCall) -> None:
        hooks[0](call)

    said = played(scenario, Policy(hooks=(ask,)), recheck_within=timedelta(minutes=5))
    assert ("TimeoutError" in said) == is_late
    assert receiver.total == (0 if is_late else 1)


def test_a_hook_that_nobody_waits_for_any_more_does_not_begin() -> None:
    """Neither does one in a thread that is free only then."""

    async def scenario(sim: Simulation) -> Status:
        worker = await sim.start_worker()
        worker.threads.crowded = 30
        handle = await worker.client.start(pay_once(8), id="r")
        await asyncio.sleep(5)
        await handle.cancel()
        head = await sim.closed("r")
        await asyncio.sleep(60)
        return head.status

    assert played(scenario, Policy(hooks=(watch,))) is Status.CANCELLED
    assert not calls


def test_a_hook_that_makes_no_call_of_it_denies() -> None:
    """Arguments that the effect cannot be called with are not run."""

    async def scenario(sim: Simulation) -> str:
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await run_once(sim)
        return caught.value.message

    policy = Policy(hooks=(lambda _: Narrow({"amount": "many"}),))
    assert "does not fit" in played(scenario, policy)
    assert receiver.total == 0


def test_case_061_an_agent_has_its_own_tools() -> None:
    """An agent that does not have the effect is told so; others and the workflow itself have it. Tasks take the agent along."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[str]]:
        await sim.start_worker()
        handle = await sim.client.start(pay_as("researcher"), id="r")
        said = await handle.result()
        agents = [one.agent for one in await entries(sim) if isinstance(one, EffectIntended)]
        return said, agents

    policy = Policy(agents={"researcher": ("search",), "other": ("pay",)}, hooks=(watch,))
    said, agents = played(scenario, policy)
    assert said == ["unlisted", "2", "3"]
    assert agents == ["other", ""]


def test_a_demand_of_the_policy_is_not_met_by_silence() -> None:
    """An effect for which a person must be asked never runs just so."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        await sim.client.start(pay_once(8), id="r")
        await asyncio.sleep(30)
        worker.kill()

    played(scenario, Policy(rules=(Rule("ask", "pay", role="boss"),)))
    assert receiver.total == 0


def test_a_policy_file_is_looked_at_again(tmp_path: Path) -> None:
    """A file that changes counts a second later; one that cannot be used changes nothing, and a replay asks no policy."""
    path = tmp_path / "policy.toml"
    path.write_text('mode = "default"\n')
    file = PolicyFile(path)

    async def scenario(sim: Simulation) -> tuple[list[Any], set[str]]:
        said: list[Any] = []
        versions: set[str] = set()
        worker = await sim.start_worker()
        for run, text in enumerate(("", "mode = 7\n", '[[deny]]\ntool = "pay"\n')):
            if text:
                path.write_text(text)
            await asyncio.sleep(2)
            handle = await sim.client.start(pay_once(run), id=f"r{run}")
            head = await sim.closed(f"r{run}")
            said.append(head.status)
            for one in await sim.store.journal(RunKey("default", f"r{run}")):
                if isinstance(entry := from_row(one.row), EffectIntended):
                    versions.add(entry.policy_version)
            del handle
        await worker.stop()
        return said, versions

    said, versions = played(scenario, file)
    assert said == [Status.COMPLETED, Status.COMPLETED, Status.FAILED]
    assert len(versions) == 1


def test_bypass_needs_a_permission_of_its_own() -> None:
    """The mode is honoured for who may bypass, and for nobody else; without an authority nobody may."""
    verdicts: list[str] = []

    def ask(call: ToolCall) -> Deny:
        return Deny("the callback is asked")

    policy = Policy(mode="bypass", callback=ask)

    async def scenario(sim: Simulation) -> None:
        try:
            verdicts.append(str(await run_once(sim)))
        except outlast.PermissionDeniedError as error:
            verdicts.append(error.reason)

    played(scenario, policy)
    played(scenario, policy, authority=Directory(verbs={"act"}))
    played(scenario, policy, authority=Directory(verbs={"act", "bypass"}))
    assert verdicts == ["callback", "callback", "8"]


# Authority


class Directory:
    """A directory of the user's.

    Args:
        verbs: What everybody may do.
        raises: What it does in place of an answer.
    """

    def __init__(self, verbs: set[str], raises: Exception | None = None) -> None:
        self.verbs = verbs
        self.raises = raises
        self.bosses = {"tester"}

    async def holds(self, principal: Principal, role: str, resource: str) -> Held | None:
        """Say whether somebody is a boss."""
        await asyncio.sleep(0)
        return Held() if principal.subject in self.bosses and role == "boss" else None

    async def may(self, principal: Principal, verb: Verb, resource: str) -> bool:
        """Say whether everybody may."""
        if self.raises is not None:
            raise self.raises
        return verb in self.verbs

    async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
        """Return who is a boss."""
        return sorted(self.bosses)


@pytest.mark.parametrize(
    "authority", [Directory(verbs=set()), Directory({"act"}, raises=OSError("down"))]
)
def test_who_started_the_run_must_be_allowed_to_act(authority: Directory) -> None:
    """A no of the directory, and an error in it, keep the effect from running."""

    async def scenario(sim: Simulation) -> tuple[str, str]:
        with pytest.raises(outlast.ApprovalUnauthorisedError) as caught:
            await run_once(sim)
        return caught.value.who, caught.value.role

    assert played(scenario, None, authority=authority) == ("tester", "outlast:act")
    assert receiver.total == 0


def test_an_approver_who_lost_the_role_approves_nothing() -> None:
    """Who said yes is asked for again when the effect is about to begin."""
    directory = Directory({"act"})

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(pay_after_yes(8), id="r")
        sim.workers[0].freeze()
        sim.workers[0].thaw()
        await asyncio.sleep(1)
        (view,) = await sim.client.approvals.list()
        directory.bosses = set()
        await sim.client.approvals.approve("r", view.approval_id, seen_sha256=view.subject_sha256)
        return await handle.result()

    assert played(scenario, None, authority=directory) == "approval_unauthorised"
    assert receiver.total == 0


def own_roles(sim: Simulation) -> WorkerOptions:
    """Return the options of a worker that knows the roles in the store."""
    authority = StoreAuthority(sim.store, "tester")
    return WorkerOptions(library="simulated", authority=authority)


def test_a_role_that_is_revoked_before_the_question() -> None:
    """Who approved it held the role then, and does not when the effect is about to begin."""

    async def scenario(sim: Simulation) -> str:
        await put(sim, "roles", roles(RoleBinding(subject="tester", role="boss")))
        worker = await sim.start_worker(options=own_roles(sim))
        handle = await sim.client.start(pay_after_yes(8), id="r")
        await asyncio.sleep(1)
        worker.freeze()
        await decide(sim)
        await put(sim, "roles", roles())
        worker.thaw()
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "approval_unauthorised"
    assert receiver.total == 0


def test_a_role_that_is_revoked_between_answer_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store notices that the row is another one than the answer rested on; the fresh answer is a no."""

    async def scenario(sim: Simulation) -> str:
        await put(sim, "roles", roles(RoleBinding(subject="tester", role="boss")))
        answers = after_answer(monkeypatch, lambda: put(sim, "roles", roles()))
        await sim.start_worker(options=own_roles(sim))
        handle = await sim.client.start(pay_after_yes(8), id="r")
        await decide(sim)
        said = await handle.result()
        assert [type(one).__name__ for one in answers] == ["Found", "ApprovalUnauthorisedError"]
        return said

    assert Simulation(CODE).run(scenario) == "approval_unauthorised"
    assert receiver.total == 0


def test_a_policy_that_changes_between_answer_and_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An answer counts for as long as it says, and the intent names the policy that gave it; the next effect is judged by the new one."""
    path = tmp_path / "policy.toml"
    path.write_text('mode = "default"\n')
    file = PolicyFile(path)
    former = file.policy.version

    async def forbid() -> None:
        path.write_text('[[deny]]\ntool = "pay"\n')

    async def scenario(sim: Simulation) -> EffectIntended:
        after_answer(monkeypatch, forbid)
        assert await run_once(sim) == 8
        await asyncio.sleep(2)
        with pytest.raises(outlast.PermissionDeniedError):
            await outcome(await sim.client.start(pay_once(9), id="r9"))
        return await intent(sim)

    assert played(scenario, file).policy_version == former


def after_answer(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]]) -> list[Any]:
    """Do something once, between the first answer and the commit that rests on it; return the list of all answers."""
    find, answers = Finder.find, list[Any]()

    async def found(self: Finder, *asked: Any) -> Any:
        answers.append(await find(self, *asked))
        if len(answers) == 1:
            await act()
        return answers[-1]

    monkeypatch.setattr(Finder, "find", found)
    return answers


def test_roles_that_change_without_a_no_let_it_begin() -> None:
    """A row that was changed is read again, and the yes that it still gives counts."""

    async def scenario(sim: Simulation) -> list[Any]:
        await sim.start_worker(options=own_roles(sim))
        said: list[Any] = []
        for run in range(3):
            handle = await sim.client.start(pay_once(run), id=f"r{run}")
            said.append(await handle.result())
            await put(sim, "roles", roles(RoleBinding(subject=f"p{run}", role="boss")))
        return said

    assert Simulation(CODE).run(scenario) == [0, 1, 2]


def test_act_that_is_granted_to_others_is_free_no_more() -> None:
    """Once `outlast:act` was granted to somebody, who started a run needs it; who has no policy and no grant, too."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker(options=own_roles(sim))
        handle = await sim.client.start(pay_once(1), id="r1")
        assert await handle.result() == 1
        await put(sim, "roles", roles(RoleBinding(subject="ann", role="outlast:act")))
        with pytest.raises(outlast.ApprovalUnauthorisedError) as caught:
            await outcome(await sim.client.start(pay_once(2), id="r2"))
        return caught.value.who

    assert Simulation(CODE).run(scenario) == "tester"
    assert receiver.total == 1


def test_roles_that_cannot_be_read_are_nobodys() -> None:
    """A damaged row lets nobody act."""

    async def scenario(sim: Simulation) -> None:
        await put(sim, "roles", b"\xff")
        await sim.start_worker(options=own_roles(sim))
        with pytest.raises(outlast.ApprovalUnauthorisedError):
            await outcome(await sim.client.start(pay_once(2), id="r2"))

    Simulation(CODE).run(scenario)
    assert receiver.total == 0


# Time, crashes, many


def test_answers_that_are_too_old_are_given_again() -> None:
    """A store that is slower than answers count has them given again, and the effect happens once."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        worker = await sim.start_worker(faults=Faults(latency=2.0))
        handle = await worker.client.start(pay_once(8), id="r")
        result = await handle.result()
        assert (await intent(sim)).checked_at is not None
        return result, len(calls)

    short = timedelta(seconds=1)
    result, asked = played(scenario, Policy(hooks=(watch,)), recheck_within=short)
    assert result == 8
    assert asked > 1
    assert receiver.total == 1


def test_a_grant_that_runs_out_while_answers_are_given_again_ends_it() -> None:
    """A store that never is fast enough lets nothing begin; the end of the grant is the end of asking."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        worker = await sim.start_worker()
        handle = await sim.client.start(pay_after_yes(8), id="r")
        await decide(sim)

        def be_slow(moment: str, _: int) -> None:
            if moment == "before":
                sim.clock.advance(2)

        worker.store.at_commit = be_slow
        return await handle.result(), len(calls)

    said, asked = played(scenario, Policy(hooks=(watch,)), recheck_within=timedelta(seconds=1))
    assert said == "approval_expired"
    assert 10 < asked < 2000
    assert receiver.total == 0


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 5))
def test_a_worker_that_dies_at_the_intent(moment: str, number: int) -> None:
    """Whatever commit a worker dies at, the effect happens once, and the next worker asks again where nothing was intended."""

    async def scenario(sim: Simulation) -> int:
        first = await sim.start_worker()

        def die(when: str, count: int) -> None:
            if (when, count) == (moment, number):
                first.kill()

        first.store.at_commit = die
        await sim.client.start(pay_once(8), id="r")
        await asyncio.sleep(5)
        await sim.start_worker()
        await sim.closed("r")
        return len([one for one in await entries(sim) if isinstance(one, EffectIntended)])

    assert played(scenario, Policy(hooks=(watch,))) == 1
    assert receiver.total == 1
    assert calls


@pytest.mark.without_always_replay("each of a thousand turns would be replayed")
def test_many_effects_at_once() -> None:
    """A thousand effects are asked about at once, and the half that is denied is refused."""
    rule = Rule("deny", "pay", (Predicate("amount", "at_least", 500),))

    async def main() -> None:
        policy = Policy(rules=(rule,))
        async with outlast.open("memory://", workflows=[pay_many], policy=policy) as app:
            assert await app.run(pay_many(1000), id="r") == 500

    asyncio.run(main())
    assert receiver.total == 500


def test_where_nobody_can_say_no_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without policy, grant, stop and guarded verb an effect is intended without a task, and rests on the kill switch alone; once the rows are known."""

    async def never(*_: Any) -> None:
        raise AssertionError("somebody was asked")

    async def scenario(sim: Simulation) -> tuple[int, EffectIntended]:
        await sim.start_worker(options=own_roles(sim))
        # The worker knows the rows since the first effect.
        assert await (await sim.client.start(pay_once(9), id="before")).result() == 9
        monkeypatch.setattr(Finder, "find", never)
        return await (await sim.client.start(pay_once(8), id="r")).result(), await intent(sim)

    result, found = Simulation(CODE).run(scenario)
    assert result == 8
    assert (found.checked_at, found.policy_version) == (None, "")


# Answers that are too slow


async def wait_long(call: ToolCall) -> None:
    """Answer when the answer counts no more."""
    calls.append(call)
    await asyncio.sleep(7)


async def wait(call: ToolCall) -> None:
    """Take three seconds."""
    calls.append(call)
    await asyncio.sleep(3)


async def wait_too(call: ToolCall) -> None:
    """Take two and a half."""
    await asyncio.sleep(2.5)


SLOW = (wait_too, wait)
"""Each of them is fast enough, and both are not."""


def test_a_hook_that_is_slower_than_its_answer_counts_denies() -> None:
    """It is not asked again and again: the error names it and the limit."""

    async def scenario(sim: Simulation) -> str:
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await run_once(sim)
        assert "recheck_within" in (caught.value.hint or "")
        return caught.value.message

    said = played(scenario, Policy(hooks=(wait_long,)))
    assert "wait_long has not answered within 0:00:05 (recheck_within)" in said
    assert len(calls) == 1
    assert "within 0:00:10" in played(
        scenario, Policy(hooks=(sleep_long,)), recheck_within=timedelta(hours=1)
    )


class SlowDirectory(Directory):
    """Takes seven seconds to say one thing."""

    def __init__(self, slow: str) -> None:
        super().__init__({"act"})
        self.slow = slow
        self.is_asked = False

    async def holds(self, principal: Principal, role: str, resource: str) -> Held | None:
        """Take long where that is the thing, and it was not the client who asked."""
        if self.slow == "holds" and self.is_asked:
            await asyncio.sleep(7)
        return await super().holds(principal, role, resource)

    async def may(self, principal: Principal, verb: Verb, resource: str) -> bool:
        """Take long where that is the thing."""
        self.is_asked = self.is_asked or verb == "act"
        if self.slow == "may" and verb == "act":
            await asyncio.sleep(7)
        return await super().may(principal, verb, resource)


@pytest.mark.parametrize(
    ("slow", "what", "role"),
    [
        ("may", "tester, who started the run, may act", "outlast:act"),
        ("holds", "tester holds the role boss", "boss"),
    ],
)
def test_a_directory_that_is_slower_than_its_answer_counts(slow: str, what: str, role: str) -> None:
    """Nobody knows in time, so it is a no, which says who was too slow."""

    async def scenario(sim: Simulation) -> tuple[str, str]:
        await sim.start_worker()
        handle = await sim.client.start(pay_after_yes_uncaught(8), id="r")
        await decide(sim)
        with pytest.raises(outlast.ApprovalUnauthorisedError) as caught:
            await outcome(handle)
        return caught.value.message, caught.value.role

    said, named = played(scenario, None, authority=SlowDirectory(slow))
    late = f"SlowDirectory.{slow}() has not answered within 0:00:05 (recheck_within)"
    assert said == f"nobody could find out in time whether {what}: the authority {late}"
    assert named == role
    assert receiver.total == 0


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of answers that are too old."""
    return [one.message for one in caplog.records if "older than recheck_within" in one.message]


def test_answers_that_are_too_old_each_time_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """From the third time on, with what takes the longest; the end of the effect's time ends it."""

    async def scenario(sim: Simulation) -> float:
        began = sim.clock.monotonic()
        with pytest.raises(TimeoutError, match="not begun"):
            await run_soon(sim)
        return sim.clock.monotonic() - began

    seconds = played(scenario, Policy(hooks=SLOW))
    assert seconds == pytest.approx(60, abs=1)
    said = warnings_of(caplog)
    assert len(said) >= len(calls) - 3 > 3
    assert said[0].startswith("run r: effect pay_soon (r:1) does not begin: 3 times")
    assert "(0:00:05); the hook tests" in said[0]
    assert ".wait took 3.0 s" in said[0]
    assert receiver.total == 0


def test_a_store_that_is_too_slow_each_time_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Where everybody answers at once, it is the store that takes too long."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()

        def be_slow(moment: str, _: int) -> None:
            if moment == "before":
                sim.clock.advance(6)

        worker.store.at_commit = be_slow
        with pytest.raises(TimeoutError, match="not begun"):
            await outcome(await sim.client.start(soon(8), id="r"))

    played(scenario, Policy(hooks=(watch,)))
    assert "the store took 6.0 s" in warnings_of(caplog)[0]


def test_asking_ends_with_the_time_of_the_effect() -> None:
    """Also in the middle of a question: a hook that waits for a thread for ever, say."""

    async def scenario(sim: Simulation) -> float:
        worker = await sim.start_worker()
        worker.threads.crowded = 1000
        handle = await worker.client.start(soon(8), id="r")
        began = sim.clock.monotonic()
        with pytest.raises(TimeoutError, match="not begun"):
            await outcome(handle)
        return sim.clock.monotonic() - began

    assert played(scenario, Policy(hooks=(watch,))) == pytest.approx(60, abs=1)
    assert receiver.total == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_asking_before_a_later_attempt_ends_too(
    is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing has happened the effect fails for its time; where something may have, an operator is asked."""
    failing.append(RefusedError("try later") if is_known else OSError("the answer was lost"))

    async def later(call: ToolCall) -> None:
        calls.append(call)
        if len(calls) > 1:
            await asyncio.sleep(3)

    async def later_too(call: ToolCall) -> None:
        if len(calls) > 1:
            await asyncio.sleep(2.5)

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        await sim.client.start(soon(8), id="r")
        await sim.until("r", lambda head: head.status.closed or head.status is Status.BLOCKED)
        return [
            one.failure.type if isinstance(one, EffectFailed) else one.why
            for one in await entries(sim)
            if isinstance(one, EffectFailed | EffectInDoubt)
        ]

    (said,) = played(scenario, Policy(hooks=(later, later_too)))
    assert said == "TimeoutError" if is_known else "could not be found out before" in said
    assert warnings_of(caplog)
    assert receiver.total == 0


def test_threads_that_are_never_free_in_time_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Answers that are too old each time a thread is free are asked for again after ever longer pauses."""
    asked: list[float] = []

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        worker.threads.crowded = 6
        handle = await worker.client.start(stamp_once(8), id="r")
        while len(warnings_of(caplog)) < 3:
            await asyncio.sleep(1)
        worker.threads.crowded = 0
        return await handle.result()

    async def watch_here(call: ToolCall) -> None:
        asked.append(asyncio.get_running_loop().time())

    assert played(scenario, Policy(hooks=(watch_here,))) == "stamped"
    gaps = [later - former for former, later in pairwise(asked)]
    assert gaps[:2] == pytest.approx([6, 6.05], abs=0.02)
    assert gaps[:5] == sorted(gaps[:5])
    assert gaps[4] > 6.3
    assert "3 times in a row" in warnings_of(caplog)[0]
    assert "a free thread took 6.0 s" in warnings_of(caplog)[0]
    assert receiver.total == 1


# Later attempts


def test_a_later_attempt_is_asked_about_again() -> None:
    """A rule that came after the first attempt keeps the second from being made; nothing had happened, and the effect has failed."""
    failing.extend([RefusedError("try later")] * 2)
    rule = Rule("deny", "pay", name="late")

    def forbid(call: ToolCall) -> Deny | None:
        calls.append(call)
        return Deny("no more") if len(calls) > 2 else None

    async def scenario(sim: Simulation) -> EffectFailed:
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await run_once(sim)
        assert caught.value.reason == "hook"
        return next(one for one in await entries(sim) if isinstance(one, EffectFailed))

    found = played(scenario, Policy(rules=(rule,) if not rule else (), hooks=(forbid,)))
    assert not found.unknown
    assert len(calls) == 3
    assert receiver.total == 0


def test_a_no_after_an_unknown_end_leaves_a_doubt() -> None:
    """What may have happened is neither attempted again nor called failed: an operator is told what forbids it."""
    failing.append(OSError("the answer was lost"))

    def forbid(call: ToolCall) -> Deny | None:
        calls.append(call)
        return Deny("no more") if len(calls) > 1 else None

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        await sim.client.start(pay_once(8), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        return [one.why for one in await entries(sim) if type(one).__name__ == "EffectInDoubt"]

    (why,) = played(scenario, Policy(hooks=(forbid,)))
    assert "must not be attempted again" in why
    assert "no more" in why


def test_nobody_is_asked_to_approve_a_later_attempt() -> None:
    """Narrowing and asking end with the intent: a hook that halves leaves later attempts as they are."""
    failing.append(RefusedError("try later"))

    async def scenario(sim: Simulation) -> int:
        return await run_once(sim)

    assert played(scenario, Policy(hooks=(halve,))) == 4
    assert [value for _, value in receiver.log] == [4]


def test_a_later_attempt_is_judged_by_what_would_run() -> None:
    """A rule that came since is held against the arguments of the intent, and not against what hooks would make of them once more."""
    rule = Rule("deny", "pay", (Predicate("amount", "at_least", 3),), name="dear")

    async def scenario(sim: Simulation) -> list[str]:
        failing.append(RefusedError("try later"))
        first = await sim.start_worker()
        handle = await sim.client.start(pay_once(8), id="r")
        while failing:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        first.kill()
        options = WorkerOptions(library="simulated", policy=Policy((rule,), hooks=(halve, watch)))
        await sim.start_worker(options=options)
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await outcome(handle)
        return [caught.value.rule, str((await intent(sim)).effective, "utf-8")]

    assert played(scenario, Policy(hooks=(halve,))) == ["dear", '{"amount":4}']
    assert [dict(one.arguments) for one in calls] == [{"amount": 4}]
    assert receiver.total == 0


@pytest.mark.parametrize(("seconds", "asked"), [(1, 1), (30, 2)])
def test_a_first_attempt_that_begins_late_is_asked_about_again(
    monkeypatch: pytest.MonkeyPatch, seconds: int, asked: int
) -> None:
    """What was intended, and waits for longer than answers count, is asked about before it begins."""

    async def wait(*_: Any) -> None:
        await asyncio.sleep(seconds)

    # What a thread of a former life of the worker is waited for with.
    monkeypatch.setattr(Executor, "returned", wait)
    assert played(run_once, Policy(hooks=(watch,))) == 8
    assert len(calls) == asked
    assert receiver.total == 1


@pytest.mark.parametrize(("crowded", "asked"), [(4, 1), (6, 2)])
def test_an_attempt_that_waits_for_a_thread_begins_on_no_old_answers(
    crowded: int, asked: int
) -> None:
    """What was answered when it began to wait is too old when a thread is free; it is asked again, and happens once."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        worker.threads.crowded = crowded

        def be_free() -> None:
            worker.threads.crowded = 0

        asyncio.get_running_loop().call_later(1, be_free)
        handle = await worker.client.start(stamp_once(8), id="r")
        return await handle.result()

    async def watch_here(call: ToolCall) -> None:
        calls.append(call)

    assert played(scenario, Policy(hooks=(watch_here,))) == "stamped"
    assert len(calls) == asked
    assert receiver.total == 1


def test_an_attempt_that_was_forbidden_while_it_waited_for_a_thread() -> None:
    """The answer that is given again counts: it does not begin, and nothing has happened."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        worker.threads.crowded = 6
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await outcome(await worker.client.start(stamp_once(8), id="r"))
        return caught.value.reason

    async def forbid(call: ToolCall) -> Deny | None:
        calls.append(call)
        return Deny("no more") if len(calls) > 1 else None

    assert played(scenario, Policy(hooks=(forbid,))) == "hook"
    assert receiver.total == 0


# Compensations


def test_a_compensation_is_denied_by_rules_alone() -> None:
    """Hooks, tool lists and modes hold no undoing up; a deny rule does, and leaves it to an operator."""

    def no_undoing(call: ToolCall) -> Deny | None:
        return Deny("never") if call.name == "unbook" else None

    async def scenario(sim: Simulation) -> Status:
        await sim.start_worker()
        await sim.client.start(book_and_fall(), id="r")
        head = await sim.until(
            "r", lambda head: head.status.closed or head.status is Status.BLOCKED
        )
        return head.status

    assert played(scenario, Policy(hooks=(no_undoing,))).closed
    assert [value for _, value in receiver.log] == [7, -7]
    receiver.forget()
    ask = Policy(rules=(Rule("ask", "unbook", role="boss"),))
    assert played(scenario, ask).closed
    receiver.forget()
    assert played(scenario, Policy(rules=(Rule("deny", "unbook"),))) is Status.BLOCKED
    assert [value for _, value in receiver.log] == [7]


# What a person is asked


def test_the_policy_asks_a_person() -> None:
    """An ask rule makes a request of the effect, which names the rule; after the yes all is asked again, and the effect happens once."""

    async def scenario(sim: Simulation) -> tuple[int, ApprovalRequested, EffectIntended]:
        await sim.start_worker()
        handle = await sim.client.start(pay_once(8), id="r")
        await decide(sim)
        result = await handle.result()
        requested = next(one for one in await entries(sim) if isinstance(one, ApprovalRequested))
        return result, requested, await intent(sim)

    rule = Rule("ask", "pay", role="boss", expires_in=SOON, name="money", reason="it is money")
    policy = Policy(rules=(rule,), hooks=(halve, watch))
    result, asked, found = played(scenario, policy)
    assert (result, receiver.total) == (4, 1)
    told = (asked.operation, asked.role, asked.source, asked.rule, asked.policy_version)
    assert told == ("r:1", "boss", "policy", "money", policy.version)
    assert bytes(asked.effective) == b'{"amount":4}'
    assert found.asked == (asked.approval_id,)
    assert len(calls) == 2


def test_what_was_approved_is_what_hooks_come_to_again() -> None:
    """A hook that makes something else of the call after the yes refuses it."""

    def shrink(call: ToolCall) -> Narrow:
        calls.append(call)
        return Narrow({"amount": call.arguments["amount"] // (1 + len(calls))})

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(pay_once(8), id="r")
        await decide(sim)
        with pytest.raises(outlast.ApprovalMismatchError):
            await outcome(handle)

    rule = Rule("ask", "pay", role="boss", expires_in=SOON)
    played(scenario, Policy(rules=(rule,), hooks=(shrink,)))
    assert receiver.total == 0
