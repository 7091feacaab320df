"""Decisions that stick, as runs meet them: what each answers and what it does not, and what stops an effect that it has let through."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from asking_bench import entries
from msgspec.structs import replace

import outlast
from outlast.approvals.proof import prove
from outlast.client import ApprovalView, Client
from outlast.errors import PermissionDeniedError, StoreCorruptError
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalRequested,
    EffectIntended,
)
from outlast.policy import Narrow, Policy, Predicate, Rule, ToolCall
from outlast.policy.authority import StoreAuthority
from outlast.policy.binding import Bindings, RoleBinding, first_bindings
from outlast.replay.context import EffectRequest
from outlast.store.change import ApprovalPut, Change, PutControl, RunChange, RunKey
from outlast.store.sticky import StickyPut, StickyRow
from outlast.testing import SeededRandom, Simulation
from outlast.worker.sticky import Sticking
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions
from outlast.workflows.registry import Registry

DAY, SOON = timedelta(days=1), timedelta(seconds=5)
NEXT = outlast.Signal("next", int)
ANY = outlast.Sticky("run", same=())
done: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    done.clear()


async def act(to: str, n: int = 0) -> str:
    done.append(f"{to} {n}")
    return f"{to} {n}"


def effect(name: str, **terms: Any) -> Any:
    """Return an effect of these terms."""
    version = terms.pop("version", "")
    approval = outlast.Approval("boss", **{"expires_in": DAY, **terms})
    rules = EffectOptions(idempotent=True, repeats=True, approval=approval, version=version)
    return Effect(act, name, AttemptOptions(), rules)


EFFECTS: dict[str, Any] = {
    "send": effect("send", sticky="workflow"),
    "near": effect("near", sticky="turn"),
    "eyes": effect("eyes", sticky="workflow", four_eyes=True),
    "later": effect("later", sticky="run", expires_in=SOON, escalate=(outlast.Rung("chief", DAY),)),
    "second": effect("second", sticky="run", edits="second"),
    "other": effect("other", sticky="run"),
}


@outlast.effect(idempotent=True, repeats=True)
async def plain(to: str, n: int = 0) -> str:
    return await act(to, n)


async def told(call: Awaitable[str]) -> str:
    """Return what became of a call, in words."""
    try:
        return await call
    except outlast.ApprovalDeniedError as no:
        return f"denied by {no.by}: {no.reason}"
    except outlast.OutlastError as error:
        return error.code


async def call(name: str, to: str, n: int = 0, agent: str = "") -> str:
    if name == "sleep":
        await outlast.sleep(timedelta(seconds=n))
        return "slept"
    if name == "wait":
        return f"got {await outlast.receive(NEXT)}"
    made = plain if name == "plain" else EFFECTS[name]
    if not agent:
        return await told(made(to, n))
    with outlast.agent(agent):
        return await told(made(to, n))


@outlast.workflow
async def calls(branches: list[list[list[Any]]]) -> list[list[str]]:
    """Make calls, one after the other in each branch."""

    async def branch(made: list[list[Any]]) -> list[str]:
        return [await call(*one) for one in made]

    return await asyncio.gather(*map(branch, branches))


@outlast.workflow
async def rolling(left: int) -> str:
    await call("send", "a", left)
    if left:
        outlast.continue_as_new(rolling(left - 1))
    return "over"


CODE = [plain, calls, rolling, *EFFECTS.values()]


def played(scenario: Callable[[Simulation], Awaitable[Any]], **options: Any) -> Any:
    """Play a scenario whose workers have these options."""
    given = WorkerOptions(library="simulated", **options)
    return Simulation(CODE, options=given, longest=timedelta(minutes=5)).run(scenario)


async def started(sim: Simulation, *branches: list[list[Any]], run: str = "r") -> Any:
    """Start a run that makes calls, and a worker where there is none."""
    if not sim.workers:
        await sim.start_worker()
    return await sim.client.start(calls([*branches]), id=run)


async def waiting(sim: Simulation, count: int = 1) -> list[ApprovalView]:
    """Return the requests that wait, when so many do."""
    while len(found := await sim.client.approvals.list()) != count:
        await asyncio.sleep(0.1)
    return found


async def decide(
    sim: Simulation, view: ApprovalView | None = None, *, no: str = "", **fields: Any
) -> ApprovalView:
    """Decide on the request that waits; say what of it sticks."""
    view = view or (await waiting(sim))[0]
    client: Client = fields.pop("client", sim.client)
    word = client.approvals.deny if no else client.approvals.approve
    place = view.run_id, view.approval_id
    await word(*place, seen_sha256=view.subject_sha256, reason=no, **fields)
    while view in await sim.client.approvals.list():
        await asyncio.sleep(0.1)
    return view


def client_of(sim: Simulation, who: str) -> Client:
    """Return somebody's client."""
    return Client(sim.store, random=SeededRandom(who), principal=who, registry=Registry(CODE))


def is_answered(change: Change) -> bool:
    """Whether a change makes a request that a decision answers which sticks."""
    acts = change.approvals if isinstance(change, RunChange) else ()
    return any(vote.sticky for one in acts if isinstance(one, ApprovalPut) for vote in one.votes)


def meddle(sim: Simulation, when: str, does: Callable[[], Awaitable[Any]]) -> None:
    """Do something before, or after, the first change that makes a request which is answered so."""
    commit, is_over = sim.store.commit, False

    async def meddled(changes: Any) -> Any:
        nonlocal is_over
        is_now = not is_over and any(map(is_answered, changes))
        is_over = is_over or is_now
        if is_now and when == "before":
            await does()
        verdicts = await commit(changes)
        if is_now and when == "after":
            await does()
        return verdicts

    sim.store.commit = meddled  # pyright: ignore[reportAttributeAccessIssue]


async def take_back(sim: Simulation) -> None:
    (one,) = await sim.client.approvals.sticky()
    await sim.client.approvals.revoke(one.sticky_id, "a mistake")


# What a yes answers


def test_a_yes_that_sticks_answers_later_calls_each_by_a_request_of_its_own() -> None:
    """Request and decision stand in the journal, with whose yes it is, made when and on what; nobody is told; a receipt says the same."""

    async def scenario(sim: Simulation) -> Any:
        run = await started(sim, [["send", "a", 1], ["send", "a", 2], ["send", "b", 2]])
        first = await decide(sim, sticky=outlast.Sticky("run", same=("to",)))
        second = (await waiting(sim))[0]
        assert second.subject["covers"][0]["arguments"] == {"to": "b", "n": 2}
        (answered,) = [
            one
            for one in await sim.client.approvals.list(pending=False)
            if one.votes and one.votes[0].sticky
        ]
        (row,) = await sim.client.approvals.sticky()
        (vote,) = answered.votes
        assert (vote.by, vote.at, vote.sticky) == ("tester", row.made_at, row.sticky_id)
        assert (vote.run, vote.approval) == ("r", first.approval_id)
        assert {one.approval_id for one in await sim.store.notices(RunKey("default", "r"))} == {
            second.approval_id
        }
        decided = [one.approval_id for one in await entries(sim, ApprovalDecided)]
        assert decided == [first.approval_id, answered.approval_id]
        receipt = await sim.client.approvals.receipt("r", answered.approval_id)
        checks = {one.name: one for one in prove(receipt)}
        assert not [one for one in checks.values() if one.verdict == "broken"]
        assert checks["sticky"].verdict == "open"
        assert row.sticky_id in checks["sticky"].text
        assert f"{first.approval_id} of run r" in checks["sticky"].text
        await decide(sim, second)
        return await run.result()

    assert played(scenario) == [["a 1", "a 2", "b 2"]]


def test_what_is_used_up_answers_no_more_whoever_asks_at_once() -> None:
    """Three calls of one run, and another run, ask at once: so many are answered as uses are left, the others ask a person."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["send", "a"]], run="first")
        sticky = outlast.Sticky("workflow", same=(), uses=2, expires_in=DAY)
        await decide(sim, sticky=sticky)
        await sim.start_worker()
        await started(sim, *([["send", "a", n]] for n in range(3)))
        await started(sim, [["send", "b"]], run="s")
        views = await waiting(sim, 2)
        await asyncio.sleep(60)
        assert await waiting(sim, 2) == views
        (row,) = await sim.client.approvals.sticky(over=True)
        assert (row.uses, row.used, row.sticks) == (0, 2, False)
        return len(done)

    assert played(scenario) == 3


def test_a_yes_for_any_number_answers_calls_that_ask_at_once() -> None:
    """In one change."""

    async def scenario(sim: Simulation) -> Any:
        run = await started(
            sim,
            [["send", "a"]],
            [["sleep", "", 9], ["send", "b"]],
            [["sleep", "", 9], ["send", "c"]],
        )
        await decide(sim, sticky=ANY)
        await run.result()
        (row,) = await sim.client.approvals.sticky()
        return row.used, row.uses

    assert played(scenario) == (2, None)


@pytest.mark.parametrize(
    ("sticky", "other"),
    [
        (outlast.Sticky("call"), ["send", "a", 2]),
        (outlast.Sticky("run", same=("n",)), ["send", "a", 2]),
        (outlast.Sticky("run", same=(), when=(Predicate("n", "at_most", 1),)), ["send", "a", 2]),
        (ANY, ["send", "a", 1, "somebody"]),
        (ANY, ["other", "a", 1]),
        (outlast.Sticky("run", same=(), expires_in=timedelta(seconds=5)), ["send", "a", 1]),
    ],
    ids=["call", "same", "when", "agent", "effect", "end"],
)  # fmt: skip
def test_what_a_yes_is_not_about_is_asked(sticky: outlast.Sticky, other: list[Any]) -> None:
    """Other arguments, another agent, another effect, a later time: a person is asked; the very call is answered."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["send", "a", 1], ["send", "a", 1], ["sleep", "", 9], other])
        await decide(sim, sticky=sticky)
        (view,) = await waiting(sim)
        assert len(done) == 2
        return view.votes

    assert played(scenario) == ()


def test_an_agents_yes_is_its_own_also_where_a_hook_makes_another_call_of_it() -> None:
    """Case 56, of what sticks: narrowed arguments are those of the same agent, in both directions."""

    def halve(call: ToolCall) -> Narrow | None:
        n = call.arguments["n"]
        return Narrow({**call.arguments, "n": n // 2}) if n > 50 else None

    async def scenario(sim: Simulation) -> Any:
        made = [
            ["send", "a", 60],
            ["send", "a", 60, "x"],
            ["send", "a", 30, "x"],
            ["send", "a", 60, "x"],
        ]
        await started(sim, made)
        first = await decide(sim, sticky=outlast.Sticky("run"))
        assert first.subject["covers"][0]["arguments"] == {"to": "a", "n": 30}
        await decide(sim, sticky=outlast.Sticky("run"))
        await sim.closed("r")
        return [one.agent for one in await sim.client.approvals.sticky()]

    policy = Policy((Rule("allow", "*"),), hooks=(halve,))
    assert played(scenario, policy=policy) == ["", "x"]
    assert done == ["a 30"] * 4


def test_another_version_of_the_effect_asks_again() -> None:
    """What was approved of the code before says nothing of the code now."""

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        await started(sim, [["send", "a"]])
        await decide(sim, sticky=outlast.Sticky("workflow", same=(), expires_in=DAY))
        await sim.closed("r")
        worker.kill()
        newer = effect("send", sticky="workflow", version="2")
        EFFECTS["send"], former = newer, EFFECTS["send"]
        try:
            code = [calls, rolling, plain, *EFFECTS.values()]
            await sim.start_worker(definitions=code)
            await sim.client.start(calls([[["send", "a"]]]), id="s")
            return len(await waiting(sim))
        finally:
            EFFECTS["send"] = former

    assert played(scenario) == 1


def test_a_run_is_one_life_of_it() -> None:
    """The next generation is answered; the same id, started again, is not."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(rolling(2), id="r")
        await decide(sim, sticky=ANY)
        await handle.result()
        assert done == ["a 2", "a 1", "a 0"]
        await sim.client.start(rolling(2), id="r", if_closed="restart")
        (view,) = await waiting(sim)
        return view.run_id

    assert played(scenario) == "r"


def test_a_fork_asks_for_itself() -> None:
    """It inherits no approval, however long that sticks to its origin."""

    async def scenario(sim: Simulation) -> Any:
        run = await started(sim, [["send", "a"], ["wait", ""], ["send", "b"]])
        await decide(sim, sticky=ANY)
        while not done:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        fork = await run.fork(id="f", reason="to see", effects="new_key")
        for one in (run, fork):
            await one.send(NEXT, 1)
        await run.result()
        return [(one.run_id, one.votes) for one in await waiting(sim)]

    assert played(scenario) == [("f", ())]


def test_a_turn_ends_with_the_next_message() -> None:
    """Also for a no."""

    async def scenario(sim: Simulation) -> Any:
        made = [["near", "a"], ["near", "b"], ["wait", ""], ["near", "c"], ["near", "d"]]
        run = await started(sim, made)
        await decide(sim, sticky=outlast.Sticky("turn", same=()))
        while len(done) < 2:
            await asyncio.sleep(0.1)
        await run.send(NEXT, 1)
        (view,) = await waiting(sim)
        assert view.subject["covers"][0]["arguments"]["to"] == "c"
        await decide(sim, view, no="enough", sticky=outlast.Sticky("turn", same=()))
        return await run.result()

    said = ["a 0", "b 0", "got 1", "denied by tester: enough", "denied by tester: enough"]
    assert played(scenario) == [said]


def test_edited_arguments_are_those_that_count() -> None:
    """Whoever approves what somebody has made of a call approves that, later too."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["second", "a", 1], ["second", "a", 2], ["second", "a", 1]])
        (view,) = await waiting(sim)
        ann = client_of(sim, "ann")
        await ann.approvals.edit(
            "r", view.approval_id, seen_sha256=view.subject_sha256, arguments={0: {"n": 2}}
        )
        while (views := await waiting(sim)) == [view]:
            await asyncio.sleep(0.1)
        await decide(sim, views[0], sticky=outlast.Sticky("run"))
        (view,) = await waiting(sim)
        return done, view.subject["covers"][0]["arguments"]

    assert played(scenario) == (["a 2", "a 2"], {"to": "a", "n": 1})


# Who said it


def test_four_eyes_are_those_of_the_run_that_asks() -> None:
    """A run of whoever made the decision asks, and so does one of which nobody knows who started it."""

    async def scenario(sim: Simulation) -> Any:
        bob = client_of(sim, "bob")
        await started(sim, [["eyes", "a"]])
        sticky = outlast.Sticky("workflow", same=(), expires_in=DAY)
        await decide(sim, client=bob, sticky=sticky)
        await started(sim, [["eyes", "a"]], run="same")
        await sim.closed("same")
        for who, run in (("bob", "own"), ("", "unknown")):
            await client_of(sim, who).start(calls([[["eyes", "a"]]]), id=run)
        return sorted(one.run_id for one in await waiting(sim, 2))

    assert played(scenario) == ["own", "unknown"]


def roles(*who: str) -> Bindings:
    first = first_bindings("root")
    bosses = tuple(RoleBinding(subject=one, role="boss", by="root") for one in who)
    return Bindings((*first.bindings, *bosses), first.guarded)


def test_who_lost_the_role_answers_nothing_more() -> None:
    """Not before somebody gives it back."""

    async def scenario(sim: Simulation) -> Any:
        sim_authority["is"] = StoreAuthority(sim.store, "tester")
        await sim.store.commit([PutControl("default", "roles", 0, roles("bob").encode())])
        options = WorkerOptions(library="simulated", authority=sim_authority["is"])
        await sim.start_worker(options=options)
        await started(sim, [["send", "a"], ["sleep", "", 9], ["send", "a"]])
        await decide(sim, client=client_of(sim, "bob"), sticky=ANY)
        await sim.store.commit([PutControl("default", "roles", 1, roles("ann").encode())])
        (view,) = await waiting(sim)
        return view.votes

    sim_authority: dict[str, Any] = {}
    assert played(scenario) == ()


def lent(by: str, to: str) -> Bindings:
    """Return roles by which somebody holds the role by another one's loan alone."""
    first = roles(by)
    until = datetime.now(UTC) + 9999 * DAY
    loan = RoleBinding(subject=to, role="boss", by=by, delegated_by=by, until=until)
    return Bindings((*first.bindings, loan), first.guarded)


@pytest.mark.parametrize(
    ("behalf", "lender", "counts"),
    [("", "", True), ("", "ann", False), ("ann", "ann", True), ("ann", "zoe", False), ("ann", "", True)],
)  # fmt: skip
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_yes_counts_by_no_loan_but_the_one_that_it_was_said_by(
    behalf: str, lender: str, counts: bool, is_ours: bool
) -> None:
    """Whose delegate somebody has become since has not said it, and may be who may not: in our own roles, and in a directory."""

    async def scenario(sim: Simulation) -> Any:
        made_by = lent(behalf, "bob") if behalf else roles("bob")
        now_by = lent(lender, "bob") if lender else roles("bob")
        await sim.store.commit([PutControl("default", "roles", 0, made_by.encode())])
        authority: Any = StoreAuthority(sim.store, "tester")
        bob = Client(
            sim.store,
            random=SeededRandom("bob"),
            principal="bob",
            registry=Registry(CODE),
            authority=authority,
        )
        if not is_ours:
            authority = Directory(authority)
        options = WorkerOptions(library="simulated", authority=authority)
        await sim.start_worker(options=options)
        await started(sim, [["send", "a"], ["sleep", "", 9], ["send", "a"]])
        await decide(sim, client=bob, sticky=ANY)
        await sim.store.commit([PutControl("default", "roles", 1, now_by.encode())])
        await asyncio.sleep(20)
        return await sim.client.approvals.list() == [], len(done)

    assert played(scenario) == (counts, 1 + counts)


class Directory:
    """What our own rows say, of somebody else."""

    def __init__(self, rows: StoreAuthority) -> None:
        self.holds, self.may, self.holders = rows.holds, rows.may, rows.holders


def test_by_a_loan_of_since_then_no_effect_begins() -> None:
    """The request was answered before it was made."""

    async def scenario(sim: Simulation) -> Any:
        await sim.store.commit([PutControl("default", "roles", 0, roles("bob").encode())])
        options = WorkerOptions(library="simulated", authority=StoreAuthority(sim.store, "tester"))
        await sim.start_worker(options=options)
        run = await started(sim, [["send", "a", 1], ["send", "a", 2]])
        change = PutControl("default", "roles", 1, lent("ann", "bob").encode())
        meddle(sim, "after", lambda: sim.store.commit([change]))
        await decide(sim, client=client_of(sim, "bob"), sticky=ANY)
        return await run.result()

    assert played(scenario) == [["a 1", "approval_unauthorised"]]


def test_a_decision_of_a_later_rung_does_not_stick() -> None:
    """It would answer nobody who is asked first: it is refused, and the decision can be made without it."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["later", "a"]])
        await asyncio.sleep(2 * SOON.total_seconds())
        (view,) = await waiting(sim)
        assert view.role == "chief"
        with pytest.raises(outlast.DecisionRefusedError) as refused:
            await decide(sim, view, sticky=outlast.Sticky("run"))
        await decide(sim, view)
        return refused.value.reason

    assert played(scenario) == "sticky"


# Rules beside it


@pytest.mark.parametrize(("rule", "asks"), [("no", 1), ("run", 0)])
def test_a_rule_that_asks_each_time_asks_each_time(rule: Any, asks: int) -> None:
    """Whatever has answered the declaration; and where the rule lets a yes stick, both are answered."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["send", "a"], ["send", "a"]])
        await decide(sim, sticky=ANY)
        await asyncio.sleep(5)
        return len(await sim.client.approvals.list()), len(done)

    policy = Policy((Rule("ask", "send", role="boss", expires_in=DAY, sticky=rule),))
    assert played(scenario, policy=policy) == (asks, 2 - asks)


def test_both_a_rule_and_a_declaration_are_answered_each_in_its_role() -> None:
    """Of an effect that two roles have to approve, each decision answers its own."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["send", "a", 1], ["send", "a", 2]])
        for role in ("boss", "chief"):
            (view,) = await waiting(sim)
            assert view.role == role
            await decide(sim, view, sticky=ANY)
        await sim.closed("r")
        return [one.used for one in await sim.client.approvals.sticky()]

    policy = Policy((Rule("ask", "send", role="chief", expires_in=DAY, sticky="run"),))
    assert played(scenario, policy=policy) == [1, 1]


def test_a_rule_alone_lets_a_yes_stick() -> None:
    """Of an effect that declares nothing."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["plain", "a", 1], ["plain", "a", 2]])
        view = await decide(sim, sticky=ANY)
        await sim.closed("r")
        return view.sticky, done

    policy = Policy((Rule("ask", "plain", role="boss", expires_in=DAY, sticky="run"),))
    assert played(scenario, policy=policy) == ("run", ["a 1", "a 2"])


# A no


def test_a_no_outvotes_every_yes_and_the_nearest_is_told() -> None:
    """Before a person is asked; what it is not about is answered as before; taken back, it says nothing."""

    async def scenario(sim: Simulation) -> Any:
        sends = [["send", "a", n] for n in (1, 2, 2, 3)]
        made = [["sleep", "", 9], *sends, ["wait", ""], ["send", "a", 2]]
        run = await started(sim, [["send", "a", 0]], [["send", "a", 2]], made)
        yes, no = await waiting(sim, 2)
        far = outlast.Sticky("workflow", same=("n",), expires_in=DAY)
        await decide(sim, yes, sticky=ANY)
        await decide(sim, no, no="not two", sticky=outlast.Sticky("call"))
        while len(done) < 3:
            await asyncio.sleep(0.1)
        for one in await sim.client.approvals.sticky():
            if not one.approved:
                await sim.client.approvals.revoke(one.sticky_id, "two is fine")
        await run.send(NEXT, 1)
        return far.reach, await run.result()

    told = "denied by tester: not two"
    said = ["slept", "a 1", told, told, "a 3", "got 1", "a 2"]
    assert played(scenario) == ("workflow", [["a 0"], [told], said])


# Between the finding and the effect


def test_what_does_not_stick_any_more_when_the_request_is_made_asks_a_person() -> None:
    """Taken back between the look and the write."""

    async def scenario(sim: Simulation) -> Any:
        await started(sim, [["send", "a", 1], ["send", "a", 2]])
        meddle(sim, "before", lambda: take_back(sim))
        await decide(sim, sticky=ANY)
        (view,) = await waiting(sim)
        assert view.votes == ()
        (row,) = await sim.client.approvals.sticky(over=True)
        assert row.used == 0
        await decide(sim, view)
        await sim.closed("r")
        return len(await entries(sim, ApprovalRequested)), done

    assert played(scenario) == (2, ["a 1", "a 2"])


def test_taken_back_before_the_effect_begins_it_does_not() -> None:
    """The request was answered, and counts for nothing."""

    async def scenario(sim: Simulation) -> Any:
        run = await started(sim, [["send", "a", 1], ["send", "a", 2]])
        meddle(sim, "after", lambda: take_back(sim))
        await decide(sim, sticky=ANY)
        return await run.result(), len(await entries(sim, EffectIntended))

    assert played(scenario) == ([["a 1", "approval_unauthorised"]], 1)


def test_a_no_that_comes_before_the_effect_begins_stops_it() -> None:
    """It was answered by a yes, and nobody had said no then."""

    async def scenario(sim: Simulation) -> Any:
        run = await started(
            sim, [["send", "a", 1], ["sleep", "", 5], ["send", "a", 2]], [["send", "b", 0]]
        )
        yes, no = await waiting(sim, 2)
        meddle(sim, "after", lambda: decide(sim, no, no="stop", sticky=ANY))
        await decide(sim, yes, sticky=ANY)
        return await run.result(), len(await entries(sim, EffectIntended))

    said = "denied by tester: stop"
    assert played(scenario) == ([["a 1", "slept", said], [said]], 1)


def test_what_is_over_when_the_effect_begins_has_answered_it() -> None:
    """An end is until when it answers; until when the effect begins the request says."""

    async def scenario(sim: Simulation) -> Any:
        run = await started(sim, [["send", "a", 1], ["send", "a", 2]])
        meddle(sim, "after", lambda: asyncio.sleep(20))
        await decide(sim, sticky=outlast.Sticky("run", same=(), expires_in=timedelta(seconds=9)))
        return await run.result()

    assert played(scenario) == [["a 1", "a 2"]]


# What cannot be read


RUN = RunKey("default", "r")
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def row(*, approved: bool = True, **fields: Any) -> StickyRow:
    """Return a decision about `send` with any arguments, but for these fields."""
    put = StickyPut("s1", "send", "run", **fields)
    return StickyRow("default", "s1", "r", 1, "w", "a1", "boss", approved, "bob", "", NOW, put)


async def of(rows: list[StickyRow] | Exception, sticking: Sticking | None = None) -> Any:
    async def read(_: Any) -> list[StickyRow]:
        if isinstance(rows, Exception):
            raise rows
        return rows

    action: EffectRequest = EFFECTS["send"].request(("a",), {})
    return await Sticking(RUN, 1, read).of(action, "")


@pytest.mark.parametrize(
    "fields",
    [
        {"where": b"garbage"},
        {"where": b"[1]"},
        {"when": b"garbage"},
        {"when": b'[["to","is_like","a"]]'},
        {"when": b'[["to","at_most",5]]'},
    ],
)
def test_what_cannot_be_told_counts_against_the_call(fields: dict[str, bytes]) -> None:
    """A yes of which nobody can say what it is about answers nothing; a no says no."""
    assert asyncio.run(of([row(**fields)])) == []
    with pytest.raises(outlast.ApprovalDeniedError, match="s1, which sticks"):
        asyncio.run(of([row(approved=False, **fields)]))


@pytest.mark.parametrize(
    ("where", "is_denied"),
    [
        ({"to": '"a"'}, True),
        ({"to": '"a"', "gone": "1"}, True),
        ({"gone": "1"}, True),
        ({"to": '"b"', "gone": "1"}, False),
    ],
)
def test_newer_code_sheds_no_no(where: dict[str, str], is_denied: bool) -> None:
    """One more argument, or another name for one, leaves a no as it is; a yes to that answers nothing any more."""
    fields = {"where": msgspec.json.encode(where)}
    if is_denied:
        with pytest.raises(outlast.ApprovalDeniedError):
            asyncio.run(of([row(approved=False, **fields)]))
    else:
        assert asyncio.run(of([row(approved=False, **fields)])) == []
    if "gone" in where:
        assert asyncio.run(of([row(**fields)])) == []


def test_a_row_that_cannot_be_read_may_say_no() -> None:
    """So nothing begins."""
    with pytest.raises(PermissionDeniedError, match="it may say no"):
        asyncio.run(of(StoreCorruptError("no such reach")))


def test_of_several_noes_the_nearest_and_latest_is_told() -> None:
    """Whatever order they are in."""
    far = row(approved=False, reason=b"far")
    far = replace(far, put=replace(far.put, reach="workflow"))
    early, late = (
        replace(row(approved=False, reason=one), made_at=NOW + n * DAY)
        for n, one in enumerate((b"early", b"late"))
    )
    for rows in ([far, early, late], [late, far, early]):
        with pytest.raises(outlast.ApprovalDeniedError) as no:
            asyncio.run(of(rows))
        assert no.value.reason == "late"


def test_a_number_that_json_does_not_hold_is_the_same_number() -> None:
    """It is text in what is shown, by which a decision is made."""

    async def looked() -> Any:
        async def read(_: Any) -> list[StickyRow]:
            return [row(where=b'{"n":"\\"10000000000000000\\""}')]

        action: EffectRequest = EFFECTS["send"].request(("a",), {})
        action = replace(action, fields={"n": "10000000000000000"})
        return await Sticking(RUN, 1, read).of(action, "")

    assert len(asyncio.run(looked())) == 1
