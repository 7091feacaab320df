"""Effects that call foreign tools: judged as the tool, by what its server may say of it, and by whether its definition is pinned."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import outlast
from outlast.client import ApprovalView, RunHandle
from outlast.journal.entry import ApprovalRequested, EffectInDoubt, EffectIntended, Entry, from_row
from outlast.policy import ForeignTool, Policy, PolicyFile, Predicate, Rule, ToolCall
from outlast.store.change import PutControl, RunKey, Status
from outlast.testing import Receiver, Simulation
from outlast.worker.permit import Finder
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
SHORT = timedelta(seconds=5)
OFTEN = outlast.RetryPolicy(initial_interval=timedelta(seconds=2), maximum_attempts=5)
LISTED: dict[str, Any] = {
    "name": "write_file",
    "description": "Writes a file",
    "inputSchema": {"type": "object"},
}
FIRST = ForeignTool(server="files", name="write_file", definition=LISTED)
OTHER = replace(FIRST, definition={**LISTED, "description": "Writes a file, and sends it away"})
READS = replace(FIRST, definition={**LISTED, "annotations": {"readOnlyHint": True}})
DRAFTS = replace(
    FIRST,
    definition={**LISTED, "annotations": {"destructiveHint": False, "openWorldHint": False}},
)
ALLOW = Policy((Rule("allow", "files:*"),))
TRUSTING = Policy(trusted={"files": ""})
receiver = Receiver()
failing: list[bool] = []
"""One for each attempt that raises."""
calls: list[ToolCall] = []


class RefusedError(Exception):
    """Proves that nothing happened."""


@outlast.effect(idempotent=True, repeats=True, retry=OFTEN, not_applied=(RefusedError,), tool=FIRST)
async def save(text: str) -> str:
    if failing:
        failing.pop()
        raise RefusedError
    receiver.apply_once(outlast.idempotency_key(), len(text))
    return text


@outlast.effect(
    idempotent=True,
    start_to_close_timeout=SHORT,
    retry=OFTEN,
    not_applied=(RefusedError,),
    tool=FIRST,
)
async def erase(text: str) -> None:
    if failing:
        failing.pop()
        raise RefusedError
    receiver.apply_once(outlast.idempotency_key(), -len(text))


@outlast.effect(idempotent=True, start_to_close_timeout=SHORT, compensate=erase)
async def note(text: str) -> None:
    receiver.apply_once(outlast.idempotency_key(), len(text))


@outlast.workflow
async def write(text: str, agent: str = "writer") -> str:
    with outlast.agent(agent):
        return await save(text)


@outlast.workflow
async def write_after_yes(text: str) -> str:
    await outlast.approval("save", covers=[save(text)], role="approver", expires_in=timedelta(1))
    try:
        return await save(text)
    except outlast.OutlastError as error:
        return error.code


@outlast.workflow
async def write_by_pattern(text: str) -> str:
    covers = [save.where(text=text)]
    await outlast.approval("save", covers=covers, role="approver", expires_in=timedelta(1))
    try:
        return await save(text)
    except outlast.OutlastError as error:
        return error.code


@outlast.workflow
async def note_and_fall() -> None:
    async with outlast.saga():
        await note("abc")
        raise ValueError("changed my mind")


@outlast.workflow
async def note_only() -> None:
    await note("abcd")


CODE = [save, erase, note, write, write_after_yes, write_by_pattern, note_and_fall, note_only]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.forget()
    failing.clear()
    calls.clear()
    for effect in (save, erase):
        monkeypatch.setattr(effect, "rules", msgspec.structs.replace(effect.rules, tool=FIRST))


def listing(tool: ForeignTool) -> None:
    """Have the effects call a tool that is defined otherwise."""
    for effect in (save, erase):
        effect.rules = msgspec.structs.replace(effect.rules, tool=tool)


def watch(call: ToolCall) -> None:
    """Remember what hooks are asked."""
    calls.append(call)


def played(
    scenario: Callable[[Simulation], Awaitable[Any]],
    policy: Policy | PolicyFile | None = None,
    **more: Any,
) -> Any:
    """Play a scenario whose worker has a policy, or none."""
    options = WorkerOptions(library="simulated", policy=policy, **more)
    return Simulation(CODE, options=options).run(scenario)


async def entries(sim: Simulation) -> list[Entry]:
    """Return the run's journal."""
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


async def outcome(handle: RunHandle[Any]) -> Any:
    """Return what a run came to, or raise what its workflow raised."""
    try:
        return await handle.result()
    except outlast.WorkflowFailedError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


async def asked(sim: Simulation) -> ApprovalView:
    """Return the one request that waits, when it is there."""
    while not (views := await sim.client.approvals.list()):
        await asyncio.sleep(0.1)
    (view,) = views
    return view


async def approve(sim: Simulation) -> ApprovalView:
    """Say yes to it."""
    view = await asked(sim)
    await sim.client.approvals.approve(
        view.run_id, view.approval_id, seen_sha256=view.subject_sha256
    )
    return view


async def redefine(sim: Simulation, tool: ForeignTool) -> None:
    """Start the program anew, to which the server lists another definition."""
    sim.workers[-1].kill()
    listing(tool)
    await sim.start_worker()


async def run_pinned(sim: Simulation, tool: ForeignTool, *, agent: str = "writer") -> Any:
    """Pin a definition, and let the agent write."""
    await sim.client.pins.pin(tool)
    await sim.start_worker()
    return await outcome(await sim.client.start(write("abc", agent), id="r"))


def test_without_a_policy_a_person_is_asked() -> None:
    """Each time: a yes lets one call pass, and pins nothing. What is shown names tool, server and definition."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        for run, text in (("r", "abc"), ("r2", "abcd")):
            handle = await sim.client.start(write(text), id=run)
            view = await approve(sim)
            assert view.role == "approver"
            shown = msgspec.json.decode(msgspec.json.encode(view.subject))
            assert shown["subject"]["tool"] == {
                "server": "files",
                "name": "write_file",
                "definition": "new",
                "sha256": FIRST.sha256,
                "reads_only": False,
                "description": "Writes a file",
                "input_schema": '{"type":"object"}',
            }
            assert "nobody has looked at the definition" in shown["subject"]["why"]
            assert shown["covers"][0]["version"] == FIRST.sha256
            assert await handle.result() == text
        assert await sim.client.pins.list() == []

    played(scenario)
    assert [value for _, value in receiver.log] == [3, 4]


def test_what_is_too_long_to_be_shown_says_so() -> None:
    """Of a description, and of a schema: how much is left, and what shows it."""
    schema = {"properties": {"text": {"description": "or send it away" * 200}}}
    listing(replace(FIRST, definition={"description": "a" * 2_345, "input_schema": schema}))

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        await sim.client.start(write("abc"), id="r")
        view = await asked(sim)
        return msgspec.json.decode(msgspec.json.encode(view.subject))["subject"]["tool"]

    shown = played(scenario)
    where = "more characters: `outlast policy explain`, with --definition, prints them)"
    assert shown["description"] == f"{'a' * 2_000}… (345 {where}"
    length = len(msgspec.json.encode(schema))
    assert shown["input_schema"].startswith('{"properties":{"text":{"description":"or send')
    assert shown["input_schema"].endswith(f"… ({length - 2_000} {where}")


def test_a_pinned_tool_that_a_rule_allows_asks_nobody() -> None:
    """What hooks and rules see is the tool and its server, and not the effect."""

    async def scenario(sim: Simulation) -> list[Entry]:
        assert await run_pinned(sim, FIRST) == "abc"
        return await entries(sim)

    found = played(scenario, Policy((Rule("allow", "files:write_*"),), hooks=(watch,)))
    assert not any(isinstance(one, ApprovalRequested) for one in found)
    (call,) = calls
    seen = (call.kind, call.server, call.name, call.writes, call.edits, call.definition)
    assert seen == ("tool", "files", "write_file", True, False, "pinned")
    assert call.version == FIRST.sha256


@pytest.mark.parametrize("pinned", [FIRST, None])
def test_a_definition_that_is_another_one_asks_in_spite_of_every_rule(
    pinned: ForeignTool | None,
) -> None:
    """An allow rule, the callback and the mode `bypass` do not help."""
    listing(OTHER)

    async def scenario(sim: Simulation) -> str:
        if pinned is not None:
            await sim.client.pins.pin(pinned)
        await sim.start_worker()
        await sim.client.start(write("abc"), id="r")
        return str((await asked(sim)).subject)

    word = "changed" if pinned else "new"
    policy = Policy((Rule("allow", "*"),), callback=lambda _: outlast.policy.Allow())
    assert f"'definition': '{word}'" in played(scenario, policy)
    assert receiver.total == 0


@pytest.mark.parametrize(
    ("tool", "policy", "is_asked"),
    [
        (READS, Policy(), True),
        (READS, TRUSTING, False),
        (FIRST, TRUSTING, True),
        (DRAFTS, replace(TRUSTING, mode="accept_edits"), False),
        (DRAFTS, Policy(mode="accept_edits"), True),
        (READS, Policy(trusted={"files": "https://files.example"}), True),
    ],
)
def test_the_word_of_a_server_counts_where_the_policy_says_so(
    tool: ForeignTool, policy: Policy, is_asked: bool
) -> None:
    """A tool that says that it only reads is taken to write, and what it says of its drafts is nothing, until the server is trusted."""
    listing(tool)

    async def scenario(sim: Simulation) -> bool:
        await sim.client.pins.pin(tool)
        await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        if is_asked:
            await asked(sim)
            return True
        await handle.result()
        return any(isinstance(one, ApprovalRequested) for one in await entries(sim))

    assert played(scenario, policy) is is_asked


def test_a_mode_that_asks_nobody_denies_what_is_not_pinned() -> None:
    """And a deny rule names the server."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await outcome(await sim.client.start(write("abc"), id="r"))
        return [caught.value.reason, caught.value.rule]

    allow = Rule("allow", "*")
    assert played(scenario, Policy((allow,), mode="dont_ask")) == ["dont_ask", ""]
    deny = Rule("deny", "files:*", (Predicate("text", "equals", "abc"),), name="abc")
    assert played(scenario, Policy((allow, deny))) == ["rule", "abc"]


def test_the_list_of_an_agent_hides_a_foreign_tool() -> None:
    """By the tool's name and its server; the effect's name lists nothing."""

    async def scenario(sim: Simulation) -> str:
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await run_pinned(sim, FIRST, agent="buyer")
        return caught.value.reason

    for listed in ("save", "other:write_file"):
        policy = replace(ALLOW, agents={"buyer": (listed,)})
        assert played(scenario, policy) == "unlisted"
    policy = replace(ALLOW, agents={"buyer": ("files:*",)})
    assert played(lambda sim: run_pinned(sim, FIRST, agent="buyer"), policy) == "abc"


def test_the_switch_stops_a_tool_of_a_server() -> None:
    """Also where nobody has given a policy."""

    async def scenario(sim: Simulation) -> str:
        await sim.client.stops.stop("it rambles", tool="files:*")
        with pytest.raises(outlast.EffectsStoppedError) as caught:
            await run_pinned(sim, FIRST)
        return caught.value.what

    assert played(scenario) == "tool files:*"


def test_a_pin_that_is_taken_away_before_the_commit_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store notices that the row is another one than the answer rested on; then a person is asked."""
    find, answers = Finder.find, list[Any]()

    async def scenario(sim: Simulation) -> None:
        async def found(self: Finder, *about: Any) -> Any:
            answers.append(await find(self, *about))
            if len(answers) == 1:
                await sim.client.pins.forget("files", "write_file")
            return answers[-1]

        monkeypatch.setattr(Finder, "find", found)
        await sim.client.pins.pin(FIRST)
        await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        await asked(sim)
        assert not any(isinstance(one, EffectIntended) for one in await entries(sim))
        await approve(sim)
        assert await handle.result() == "abc"

    played(scenario, ALLOW)
    assert [len(one.demands) for one in answers[:2]] == [0, 1]


def test_pins_that_change_without_a_no_let_it_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was changed is read again, and the pin that still stands in it counts."""
    find, answers = Finder.find, list[Any]()

    async def scenario(sim: Simulation) -> str:
        async def found(self: Finder, *about: Any) -> Any:
            answers.append(await find(self, *about))
            if len(answers) == 1:
                await sim.client.pins.pin(ForeignTool("files", "other", {}))
            return answers[-1]

        monkeypatch.setattr(Finder, "find", found)
        return await run_pinned(sim, FIRST)

    assert played(scenario, ALLOW) == "abc"
    assert len(answers) == 2


def test_a_pin_is_found_out_about_at_once() -> None:
    """A worker whose copy is older looks again before it asks anybody."""

    async def scenario(sim: Simulation) -> str:
        await sim.client.pins.pin(OTHER)
        await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        await asked(sim)
        await sim.client.pins.pin(FIRST)
        again = await sim.client.start(write("abcd"), id="r2")
        assert await again.result() == "abcd"
        await approve(sim)
        return await handle.result()

    assert played(scenario, ALLOW) == "abc"


def test_a_yes_to_one_definition_is_none_to_another() -> None:
    """A tool that changes after the yes is asked about again, and the next request shows what it is now."""

    async def scenario(sim: Simulation) -> list[str]:
        worker = await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        await asked(sim)
        worker.freeze()
        await approve(sim)
        await redefine(sim, OTHER)
        view = await approve(sim)
        assert OTHER.sha256 in str(view.subject)
        assert await handle.result() == "abc"
        found = [one for one in await entries(sim) if isinstance(one, ApprovalRequested)]
        return [one.subject_sha256 for one in found]

    first, second = played(scenario, ALLOW)
    assert first != second
    assert [value for _, value in receiver.log] == [3]


@pytest.mark.parametrize("writing", [write_after_yes, write_by_pattern])
def test_a_grant_of_the_workflow_is_for_the_definition_that_was_there(writing: Any) -> None:
    """What would run is held against what was approved; a pattern is one of the version of then, too."""

    async def scenario(sim: Simulation, later: ForeignTool) -> str:
        await sim.client.pins.pin(later)
        worker = await sim.start_worker()
        handle = await sim.client.start(writing("abc"), id="r")
        await asked(sim)
        worker.freeze()
        await approve(sim)
        await redefine(sim, later)
        return await handle.result()

    assert played(lambda sim: scenario(sim, FIRST)) == "abc"
    assert played(lambda sim: scenario(sim, OTHER), ALLOW) == "approval_mismatch"


@pytest.mark.parametrize("policy", [None, Policy((Rule("ask", "files:*"),))])
@pytest.mark.parametrize("writing", [write_after_yes, write_by_pattern])
def test_a_grant_of_the_workflow_is_no_yes_to_a_definition(
    writing: Any, policy: Policy | None
) -> None:
    """It shows nothing of one that nobody has looked at: a person is asked beside it, also where a rule asks."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(writing("abc"), id="r")
        first = await approve(sim)
        assert "tool" not in str(first.subject)
        while (view := await asked(sim)).approval_id == first.approval_id:
            await asyncio.sleep(0.1)
        assert "Writes a file" in str(view.subject)
        assert not any(isinstance(one, EffectIntended) for one in await entries(sim))
        await approve(sim)
        return await handle.result()

    assert played(scenario, policy) == "abc"


def test_a_later_attempt_is_of_the_same_definition() -> None:
    """Of another one only when that is pinned; one that nobody looked at does not run on the pin of the former one."""

    async def scenario(sim: Simulation, *pins: ForeignTool) -> str:
        listing(FIRST)
        failing.append(True)
        await sim.client.pins.pin(FIRST)
        await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        while failing:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        await redefine(sim, OTHER)
        for one in pins:
            await sim.client.pins.pin(one)
        try:
            return await outcome(handle)
        except outlast.PermissionDeniedError as error:
            return error.reason

    assert played(scenario, ALLOW) == "definition_changed"
    assert not receiver.log
    assert played(lambda sim: scenario(sim, OTHER), ALLOW) == "abc"


def test_a_later_attempt_goes_on_without_the_pin() -> None:
    """What has begun is the same act; a person who said yes to it is not asked again."""

    async def scenario(sim: Simulation) -> str:
        failing.append(True)
        await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        await approve(sim)
        return await handle.result()

    assert played(scenario) == "abc"


def test_a_later_attempt_of_the_same_definition_goes_on_whatever_else_the_code_says() -> None:
    """Another `version=`, or another hash of the action for any reason, is told as no change of the definition."""

    async def scenario(sim: Simulation) -> str:
        failing.append(True)
        await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        await approve(sim)
        while failing:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        sim.workers[-1].kill()
        save.rules = msgspec.structs.replace(save.rules, version="2")
        await sim.start_worker()
        (intent,) = [one for one in await entries(sim) if isinstance(one, EffectIntended)]
        assert intent.definition == FIRST.sha256
        return await handle.result()

    assert played(scenario) == "abc"
    assert len(receiver.log) == 1


def test_a_pin_that_is_taken_away_before_an_attempt_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The announcement of an attempt with another definition holds the row by which that is pinned."""
    again, answers = Finder.again, list[Any]()

    async def scenario(sim: Simulation) -> str:
        async def found(self: Finder, *about: Any) -> Any:
            answers.append(await again(self, *about))
            if len(answers) == 1:
                await sim.client.pins.forget("files", "write_file")
            return answers[-1]

        failing.append(True)
        await sim.client.pins.pin(FIRST)
        await sim.start_worker()
        handle = await sim.client.start(write("abc"), id="r")
        while failing:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        monkeypatch.setattr(Finder, "again", found)
        await redefine(sim, OTHER)
        await sim.client.pins.pin(OTHER)
        with pytest.raises(outlast.PermissionDeniedError) as caught:
            await outcome(handle)
        return caught.value.reason

    assert played(scenario, ALLOW) == "definition_changed"
    assert len(answers) == 2
    assert not receiver.log


def test_a_pin_that_changes_before_a_compensation_is_written_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The intent holds the row by which the tool was not another one."""
    find = Finder.find

    async def scenario(sim: Simulation) -> None:
        async def found(self: Finder, command: Any, *about: Any) -> Any:
            answer = await find(self, command, *about)
            if command.compensates:
                await sim.client.pins.pin(OTHER)
            return answer

        monkeypatch.setattr(Finder, "find", found)
        await sim.client.pins.pin(FIRST)
        await sim.start_worker()
        await sim.client.start(note_and_fall(), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)

    played(scenario)
    assert [value for _, value in receiver.log] == [3]


@pytest.mark.parametrize("word", ["changed", "new", "forgotten"])
def test_a_compensation_by_a_tool_that_is_not_pinned_is_for_an_operator(word: str) -> None:
    """Nobody is asked for it, and the yes to what it undoes showed nothing of it; once it is pinned, it is undone."""

    async def scenario(sim: Simulation) -> Status:
        if word != "new":
            await sim.client.pins.pin(OTHER if word == "changed" else FIRST)
        if word == "forgotten":
            await sim.client.pins.forget("files", "write_file")
        await sim.start_worker()
        handle = await sim.client.start(note_and_fall(), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        (doubt,) = [one for one in await entries(sim) if isinstance(one, EffectInDoubt)]
        assert ("has changed" if word == "changed" else "nobody has looked") in doubt.why
        await handle.resolve("r:1u:1", not_applied=True, reason="I looked at nothing")
        await asyncio.sleep(10)
        assert (await handle.status()).status is Status.BLOCKED
        await sim.client.pins.pin(FIRST)
        await handle.resolve("r:1u:1", not_applied=True, reason="I looked at it")
        return (await sim.closed("r")).status

    assert played(scenario) is Status.COMPENSATED
    assert [value for _, value in receiver.log] == [3, -3]


def test_a_later_attempt_of_a_compensation_is_of_the_same_definition() -> None:
    """Also where there is no policy; what cannot be undone now is for an operator."""

    async def scenario(sim: Simulation) -> bool:
        await sim.client.pins.pin(FIRST)
        await sim.start_worker()
        failing.append(True)
        await sim.client.start(note_and_fall(), id="r")
        while failing:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        await redefine(sim, OTHER)
        # The worker knows the control rows by then.
        await (await sim.client.start(note_only(), id="r2")).result()
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        found = [one for one in await entries(sim) if isinstance(one, EffectInDoubt)]
        return "has changed since somebody looked at it" in found[0].why

    assert played(scenario)
    assert [value for _, value in receiver.log] == [3, 4]


def test_pins_that_cannot_be_read_pin_nothing() -> None:
    """A row that nobody wrote denies: nobody could say what a person would be asked."""

    async def scenario(sim: Simulation) -> str:
        await sim.store.commit([PutControl("default", "pins", 0, b"{")])
        await sim.start_worker()
        with pytest.raises(outlast.PermissionDeniedError, match="nobody can say") as caught:
            await outcome(await sim.client.start(write("abc"), id="r"))
        return caught.value.reason

    assert played(scenario, ALLOW) == "error"


def test_who_calls_no_foreign_tool_reads_no_pins() -> None:
    """The row is read only where some effect calls one."""
    read: list[str] = []

    async def scenario(sim: Simulation) -> None:
        control = sim.store.control

        async def noted(tenant: str, name: str) -> Any:
            read.append(name)
            return await control(tenant, name)

        sim.store.control = noted  # type: ignore[method-assign]
        await sim.start_worker()
        with pytest.raises(ValueError, match="changed my mind"):
            await outcome(await sim.client.start(note_and_fall(), id="r"))

    rules = msgspec.structs.replace(erase.rules, tool=None)
    for effect in (save, erase):
        effect.rules = rules
    played(scenario)
    assert "stops" in read
    assert "pins" not in read
