"""What sagas mean to those who look at a run, end it, fork it or answer for it from outside."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.app import App
from outlast.client import RunHandle
from outlast.effects.undone import at_stake, kept_and_undone, left_standing, undone_from
from outlast.journal.entry import EffectCompensating, EffectInDoubt, EffectIntended, Entry, from_row
from outlast.store.change import Change, OperationDrop, RunChange, RunKey, Status, Verdict
from outlast.testing import Receiver

receiver = Receiver()
SOON = timedelta(seconds=10)
NOW = timedelta(milliseconds=10)
ONCE = outlast.RetryPolicy(maximum_attempts=1)
go = outlast.Signal("go", bool)
broken: set[str] = set()
"""What cannot be given back."""

undone: list[str] = []
"""Keys of what was undone, as the compensation was told them."""


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    return run


@pytest.fixture(autouse=True)
def _anew() -> None:
    receiver.forget()
    broken.clear()
    undone.clear()


@outlast.effect(idempotent=True, start_to_close_timeout=NOW, settle=timedelta(0), retry=ONCE)
async def give_back(what: str, result: str) -> None:
    if what in broken:
        raise ValueError(f"{what} cannot be given back")
    undone.append(outlast.attempt().undoes_key)
    receiver.apply_once(outlast.idempotency_key(), f"not {result}")


@outlast.effect(
    idempotent=True,
    start_to_close_timeout=NOW,
    settle=timedelta(0),
    retry=ONCE,
    compensate=give_back,
)
async def take(what: str) -> str:
    if what == "lost":
        raise ConnectionError("no answer")
    receiver.apply_once(outlast.idempotency_key(), what)
    return f"a {what}"


@outlast.effect(start_to_close_timeout=NOW, settle=timedelta(0), compensate=give_back)
async def lend(what: str) -> str:
    raise ConnectionError(f"was {what} lent?")


@outlast.workflow
async def collect(what: list[str]) -> list[str]:
    async with outlast.saga():
        taken = [await take(one) for one in what]
        if not await outlast.receive(go):
            raise LookupError("not needed")
    await outlast.receive(go)
    return taken


@outlast.workflow
async def swap(what: str) -> None:
    async with outlast.saga():
        await give_back(what, await take(what))
        await outlast.receive(go)
        raise LookupError("not swapped")


@outlast.workflow
async def borrow(what: str) -> str:
    try:
        return await lend(what)
    except outlast.EffectCompensatedError as error:
        return f"{error.step}: {error.message}"


@outlast.effect(idempotent=True, start_to_close_timeout=NOW)
async def call_back(what: str) -> None:
    receiver.apply_once(outlast.idempotency_key(), f"not {what}")


@outlast.effect(start_to_close_timeout=NOW, settle=timedelta(0), compensate=call_back)
async def announce(what: str) -> bool:
    raise ConnectionError(f"was {what} announced?")


@outlast.workflow
async def publish(what: str) -> bool:
    return await announce(what)


@outlast.workflow
async def spread(what: str) -> bool:
    return await outlast.run_child(publish(what))


@outlast.workflow
async def ask_first(what: str) -> str:
    covers = [take(what), take.where(what="cup"), give_back(what, "x")]
    await outlast.approval(what, covers=covers, role="owner", expires_in=timedelta(hours=1))
    return await take(what)


async def standing(handle: RunHandle[Any], *wanted: str) -> str:
    """Return the status once it is one of these."""
    while (now := await handle.status()).status not in wanted:
        await asyncio.sleep(0.005)
    return str(now.reason or now.status)


async def collected(app: App, id: str, *what: str) -> RunHandle[list[str]]:
    """Return a run that waits inside its saga."""
    handle = await app.start(collect(list(what)), id=id)
    while len(receiver.log) < len(what) or (await handle.status()).status != "waiting":
        await asyncio.sleep(0.005)
    return handle


async def ended(handle: RunHandle[Any]) -> str:
    with pytest.raises(outlast.OutlastError):
        await handle.result()
    return (await handle.status()).status


async def entries_of(app: App, id: str) -> list[Entry]:
    rows = await app.store.journal(RunKey("default", id))
    return [from_row(one.row) for one in rows]


@on_a_loop
async def test_a_run_inside_a_saga_is_not_terminated_by_mistake() -> None:
    """The refusal names what would stay; cancelling has it undone; saying so lets it stay, and the reason says what."""
    async with outlast.open("memory://", idle=NOW) as app:
        handle = await collected(app, "a", "cup", "pen")
        with pytest.raises(outlast.OpenCompensationsError, match=r"2 effects.*r:2, r:3") as refused:
            await handle.terminate("enough")
        assert refused.value.operations == ("r:2", "r:3")
        assert "--abandon-compensation" in refused.value.hint
        assert await standing(handle, "waiting") == "waiting"
        await handle.cancel("enough")
        assert await ended(handle) == "compensated"
        other = await collected(app, "b", "tin")
        await other.terminate("enough", abandon_compensation=True)
        assert (await other.status()).reason == "enough (not undone: r:2)"
        assert [value for _, value in receiver.log][-1] == "tin"


@on_a_loop
async def test_a_saga_that_has_ended_keeps_nobody_from_terminating() -> None:
    """What was kept was meant to stay, and what was undone is no more; a run without sagas is ended as ever."""
    async with outlast.open("memory://", idle=NOW) as app:
        handle = await collected(app, "a", "cup")
        await handle.send(go, True)
        while at_stake(await entries_of(app, "a")):
            await asyncio.sleep(0.005)
        await handle.terminate("enough")
        assert await ended(handle) == "terminated"


@on_a_loop
async def test_a_compensation_that_gave_up_is_left_to_an_operator() -> None:
    """Blocked with a reason of its own; left as it is, the run says that only part was undone, and what stands."""
    async with outlast.open("memory://", idle=NOW) as app:
        broken.add("pen")
        handle = await collected(app, "a", "cup", "pen")
        await handle.send(go, False)
        assert await standing(handle, "blocked") == "compensation failed"
        told = await handle.explain()
        assert "because of LookupError: not needed" in told.text
        assert "Effect give_back (r:1u:1), which is to undo r:3, has given up" in told.text
        end = "outlast runs terminate a --reason TEXT --abandon-compensation"
        assert (told.commands[-1], told.purposes[-1]) == (
            end,
            "end it as it is: r:2, r:3 stand then",
        )
        assert [one for one in told.commands if "terminate" in one] == [end]
        (stuck,) = (await handle.detail()).operations
        await handle.resolve(stuck.operation, failed="the shop is closed", reason="let it be")
        assert await ended(handle) == "partly compensated"
        journal = await entries_of(app, "a")
        assert left_standing(journal) == ("r:3",)
        assert "r:3 stands" in str(await handle.explain())
        assert [value for _, value in receiver.log] == ["cup", "pen", "not a cup"]


@on_a_loop
async def test_a_run_that_was_ended_while_it_undid_goes_on_with_that_when_it_is_retried() -> None:
    """Which is said before anybody types it."""
    async with outlast.open("memory://", idle=NOW) as app:
        broken.add("pen")
        handle = await collected(app, "a", "cup", "pen")
        await handle.send(go, False)
        assert await standing(handle, "blocked") == "compensation failed"
        await handle.terminate("enough", abandon_compensation=True)
        told = await handle.explain()
        assert "It was undoing what it did in its saga" in told.text
        assert (
            "r:2, r:3 stand. Nothing more happens by itself; a retry goes on undoing." in told.text
        )
        assert told.purposes[-1] == "go on undoing"
        broken.clear()
        again = await handle.retry(reason="they are open again")
        assert await ended(again) == "compensated"
        assert [value for _, value in receiver.log] == ["cup", "pen", "not a pen", "not a cup"]


@on_a_loop
async def test_what_failed_because_an_effect_was_undone_is_not_told_so_again() -> None:
    """No retry, as of a run that has undone what it did; a fork from before it, under new keys, does it after all."""
    async with outlast.open("memory://", idle=NOW) as app:
        handle = await app.start(publish("news"), id="a")
        assert await standing(handle, "blocked") == "in doubt"
        await handle.resolve("r:1", compensate=True, reason="nobody knows")
        assert await ended(handle) == "compensated"
        told = await handle.explain()
        assert "What was in doubt was undone. Nothing more happens; to do it after all" in told.text
        fork = "outlast runs fork a --at 2 --effects new-key --id NEW-ID --reason TEXT"
        assert told.commands == ["outlast runs show a", fork]
        with pytest.raises(outlast.RunConflictError, match="nothing is left") as refused:
            await handle.retry(reason="again")
        assert fork in refused.value.hint
        anew = await handle.fork(2, id="b", reason="again", effects="new_key")
        assert await standing(anew, "blocked") == "in doubt"


@on_a_loop
async def test_a_child_that_failed_because_an_effect_was_undone_is_begun_anew_or_not_at_all() -> (
    None
):
    """With its parent, under new keys; under the old ones it would be told the same again."""
    async with outlast.open("memory://", idle=NOW) as app:
        parent = await app.start(spread("news"), id="p")
        while not (doubts := await app.runs.doubts()):
            await asyncio.sleep(0.005)
        await app.runs.resolve(doubts, compensate=True, reason="nobody knows")
        assert await ended(parent) == "failed"
        with pytest.raises(outlast.RunConflictError, match="has undone what it did") as refused:
            await parent.retry(reason="again")
        assert "--effects new-key" in refused.value.hint
        await parent.retry(reason="again", effects="new_key")
        while not (anew := await app.runs.doubts()):
            await asyncio.sleep(0.005)
        assert anew[0].key != doubts[0].key


@on_a_loop
async def test_what_a_fork_has_from_its_origin_stands_when_the_fork_is_undone() -> None:
    """It is the origin's, which goes on with it; the fork says so, and not that all was undone."""
    async with outlast.open("memory://", idle=NOW) as app:
        origin = await collected(app, "a", "cup")
        fork = await origin.fork(id="b", reason="to see")
        await fork.send(go, False)
        assert await ended(fork) == "partly compensated"
        assert left_standing(await entries_of(app, "b")) == ("r:2",)
        assert "r:2 stands, and somebody has to see to that" in str(await fork.explain())
        assert [value for _, value in receiver.log] == ["cup"]


@on_a_loop
async def test_a_fork_from_the_middle_of_an_undoing_leaves_that_to_its_origin() -> None:
    """Which goes on with it; two would undo the same thing."""
    async with outlast.open("memory://", idle=NOW) as app:
        broken.add("pen")
        origin = await collected(app, "a", "cup", "pen")
        await origin.send(go, False)
        assert await standing(origin, "blocked") == "compensation failed"
        fork = await origin.fork(id="b", reason="to see")
        assert await ended(fork) == "partly compensated"
        assert not undone
        broken.clear()
        await origin.resolve("r:1u:1", not_applied=True, reason="mended")
        assert await ended(origin) == "compensated"
        assert len(undone) == len(set(undone)) == 2


@on_a_loop
async def test_a_fork_leaves_to_its_origin_what_an_operator_has_had_undone_there() -> None:
    """While that goes on; afterwards the effect counts as undone, and nothing can be forked from between."""
    async with outlast.open("memory://", idle=NOW) as app:
        broken.add("cup")
        origin = await app.start(borrow("cup"), id="a")
        assert await standing(origin, "blocked") == "in doubt"
        await origin.resolve("r:1", compensate=True, result="a cup", reason="nobody knows")
        while (await origin.status()).reason != "compensation failed":
            await asyncio.sleep(0.005)
        fork = await origin.fork(id="b", reason="to see")
        assert "had it undone" in await fork.result()
        assert not undone
        broken.clear()
        await origin.resolve("r:1c", not_applied=True, reason="mended")
        await origin.result()
        assert len(undone) == 1
        journal = await entries_of(app, "a")
        first = next(n for n, one in enumerate(journal) if isinstance(one, EffectIntended))
        begun = next(n for n, one in enumerate(journal) if isinstance(one, EffectCompensating))
        assert kept_and_undone(journal, begun + 1) == {"r:1": first}
        with pytest.raises(outlast.DefinitionError, match="undone since"):
            await origin.fork(begun + 1, id="c", reason="to see")


@on_a_loop
async def test_a_retry_inside_its_origins_saga_is_not_terminated_by_mistake() -> None:
    """What the origin did is its own: it would undo it."""
    async with outlast.open("memory://", idle=NOW) as app:
        origin = await collected(app, "a", "cup")
        await origin.terminate("by hand", abandon_compensation=True)
        retry = await origin.retry(reason="after all")
        assert await standing(retry, "waiting") == "waiting"
        with pytest.raises(outlast.OpenCompensationsError, match="r:2"):
            await retry.terminate("by mistake")
        await retry.cancel()
        assert await ended(retry) == "compensated"
        assert len(undone) == 1


@on_a_loop
async def test_what_says_that_something_is_being_undone_goes_in_the_change_that_says_it_is() -> (
    None
):
    """A process that dies right after it leaves nothing behind that keeps the run from being terminated."""
    async with outlast.open("memory://", idle=NOW) as app:
        changes: list[RunChange] = []
        commit = app.store.commit

        async def watched(asked: Sequence[Change]) -> list[Verdict]:
            changes.extend(one for one in asked if isinstance(one, RunChange))
            return await commit(asked)

        app.store.commit = watched  # type: ignore[method-assign]
        handle = await app.start(borrow("cup"), id="a")
        assert await standing(handle, "blocked") == "in doubt"
        await handle.resolve("r:1", compensate=True, result="a cup", reason="nobody knows")
        await handle.result()
        ends = [
            change
            for change in changes
            if any(row.kind == "effect_completed" for row in change.entries)
        ]
        assert len(ends) == 1
        dropped = {one.operation for one in ends[0].operations if isinstance(one, OperationDrop)}
        assert "r:1" in dropped


@on_a_loop
async def test_what_the_origin_has_undone_itself_does_not_stand_in_a_fork() -> None:
    """The workflow's own undoing counts, whoever of the two made it."""
    async with outlast.open("memory://", idle=NOW) as app:
        origin = await app.start(swap("cup"), id="a")
        while (await origin.status()).status != "waiting":
            await asyncio.sleep(0.005)
        fork = await origin.fork(id="b", reason="to see")
        await fork.send(go, False)
        assert await ended(fork) == "compensated"
        assert left_standing(await entries_of(app, "b")) == ()
        assert len(undone) == 1


@on_a_loop
async def test_a_compensation_knows_the_key_of_what_it_undoes() -> None:
    """By which a receiver may know what is meant."""
    async with outlast.open("memory://", idle=NOW) as app:
        handle = await collected(app, "a", "cup")
        await handle.send(go, False)
        assert await ended(handle) == "compensated"
        (intent,) = (
            one
            for one in await entries_of(app, "a")
            if isinstance(one, EffectIntended) and one.name == "take"
        )
        assert undone == [intent.key]


@on_a_loop
async def test_what_was_undone_is_not_taken_for_done_by_a_fork() -> None:
    """From between, no fork; from before, refused under the origin's keys, and made anew under keys of its own."""
    async with outlast.open("memory://", idle=NOW) as app:
        handle = await collected(app, "a", "cup", "pen")
        await handle.send(go, False)
        assert await ended(handle) == "compensated"
        journal = await entries_of(app, "a")
        first = next(n for n, one in enumerate(journal) if isinstance(one, EffectIntended))
        assert kept_and_undone(journal, first + 2) == {"r:2": first}
        assert list(undone_from(journal)) == ["r:3", "r:2"]
        with pytest.raises(outlast.DefinitionError, match="undone since") as refused:
            await handle.fork(first + 2, id="b", reason="to see")
        assert f"--at {first}" in refused.value.hint
        with pytest.raises(outlast.RunConflictError, match="nothing is left") as too_late:
            await handle.retry(reason="again")
        assert f"--at {first}" in too_late.value.hint
        for policy in ("refuse", "same_key"):
            fork = await handle.fork(first, id=policy, reason="to see", effects=policy)  # type: ignore[arg-type]
            with pytest.raises(outlast.WorkflowFailedError) as failed:
                await fork.result()
            assert isinstance(failed.value.__cause__, outlast.ForkedEffectError)
            assert "has undone it" in failed.value.__cause__.message
        made = await handle.fork(first, id="new", reason="to see", effects="new_key")
        await made.send(go, True)
        await made.send(go, True)
        assert await made.result() == ["a cup", "a pen"]
        assert [value for _, value in receiver.log][-2:] == ["cup", "pen"]
        assert not {key for key, count in receiver.changes.items() if count != 1}


@on_a_loop
async def test_what_may_have_happened_and_needs_its_result_to_be_undone_is_in_doubt() -> None:
    """Not failed: nobody could undo it then. What was answered for it decides."""
    async with outlast.open("memory://", idle=NOW) as app:
        handle = await app.start(collect(["cup", "lost"]), id="a")
        assert await standing(handle, "blocked") == "in doubt"
        (doubt,) = (one for one in await entries_of(app, "a") if isinstance(one, EffectInDoubt))
        assert "give_back needs its result" in doubt.why
        assert "not_applied=" in doubt.why
        await handle.resolve(doubt.operation, failed="it never arrived", reason="asked them")
        assert await ended(handle) == "compensated"
        assert [value for _, value in receiver.log] == ["cup", "not a cup"]


@on_a_loop
async def test_an_effect_in_doubt_is_undone_on_request() -> None:
    """Outside of a saga too; the workflow is told, the reason is kept; what cannot be is refused as an alarm."""
    async with outlast.open("memory://", idle=NOW) as app:
        handle = await app.start(borrow("book"), id="a")
        assert await standing(handle, "blocked") == "in doubt"
        await handle.resolve("r:1", compensate=True, result=17, reason="whatever")
        while not (await handle.detail()).alarms:
            await asyncio.sleep(0.005)
        assert "give_back cannot be called" in (await handle.detail()).alarms[0].why
        await handle.resolve("r:1", compensate=True, result="a book", reason="nobody knows")
        told = await handle.result()
        assert told.startswith("lend: ")
        assert "nobody knows" in told
        assert [value for _, value in receiver.log] == ["not a book"]


@on_a_loop
async def test_what_undoing_takes_is_said_with_it_and_nothing_else() -> None:
    """Refused before anything is sent, of one run and of many: a value that nobody gave is never made up."""
    async with outlast.open("memory://", idle=NOW) as app:
        lent = await app.start(borrow("book"), id="a")
        told = await app.start(publish("news"), id="b")
        assert await standing(lent, "blocked") == await standing(told, "blocked") == "in doubt"
        with pytest.raises(outlast.DefinitionError, match="takes what lend returned") as caught:
            await lent.resolve("r:1", compensate=True, reason="nobody knows")
        assert "--result JSON (result=)" in str(caught.value)
        with pytest.raises(outlast.DefinitionError, match="nothing that announce returned"):
            await told.resolve("r:1", compensate=True, result=True, reason="nobody knows")
        with pytest.raises(outlast.DefinitionError, match="belongs to compensate=True"):
            await lent.resolve("r:1", not_applied=True, result="a book")
        value: Any = "a book"
        with pytest.raises(outlast.DefinitionError, match="neither True nor False"):
            await lent.resolve("r:1", compensate=value)
        doubts = await app.runs.doubts()
        both = await app.runs.resolve(doubts, compensate=True, reason="nobody knows")
        assert [one.accepted for one in both] == [False, True]
        assert "give_back takes what lend returned: add --result" in both[0].why
        with pytest.raises(outlast.WorkflowFailedError, match="nobody knows"):
            await told.result()
        (still,) = await app.runs.doubts()
        assert (still.run_id, still.put_aside) == ("a", 0)
        assert [value for _, value in receiver.log] == ["not news"]


@on_a_loop
async def test_an_approver_sees_what_undoes_a_covered_action() -> None:
    """Of calls and of patterns; of what cannot be undone nothing is said."""
    async with outlast.open("memory://", idle=NOW) as app:
        await app.start(ask_first("cup"), id="a")
        while not (asked := await app.approvals.list()):
            await asyncio.sleep(0.005)
        covers = asked[0].subject["covers"]
        assert [one.get("compensate") for one in covers] == ["give_back", "give_back", None]
        assert asked[0].genuine


def test_both_statuses_are_ends() -> None:
    """Like any other."""
    assert Status.COMPENSATED.closed
    assert Status.PARTLY_COMPENSATED.closed
