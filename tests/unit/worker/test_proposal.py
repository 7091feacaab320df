"""How proposals become one change: what goes in, in which order, and what a refusal means."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec import Raw

from outlast.journal.entry import (
    ChildRefused,
    ChildRequested,
    ChildStarted,
    EffectCleared,
    EffectCompleted,
    EffectInDoubt,
    EffectIntended,
    MessageReceived,
    MessageSent,
    OperationId,
    RunEnded,
    Started,
    StepCompleted,
    TimerFired,
    WatchRequested,
)
from outlast.journal.failure import capture
from outlast.replay.command import SendMessage, StartChild, WatchRun
from outlast.store.change import (
    ApprovalExpire,
    GrantSpend,
    HeadUpdate,
    OperationDrop,
    OperationPut,
    Refused,
    RunHead,
    RunKey,
    Status,
    TaskDrop,
    TaskPut,
    WorkerId,
)
from outlast.worker.kin import Kin
from outlast.worker.proposal import Proposal, Rank, change_of, in_order, is_refused, rows_of, sift

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def step(operation: str = "r:1") -> StepCompleted:
    """Return an outcome of a step."""
    return StepCompleted(OperationId(operation), "s", Raw(b"1"))


def effect(operation: str = "r:1") -> EffectCompleted:
    """Return an outcome of an effect."""
    return EffectCompleted(OperationId(operation), "e", Raw(b"1"))


def intent(operation: str = "r:1") -> EffectIntended:
    """Return an intent."""
    return EffectIntended(OperationId(operation), "e", "k", Raw(b"{}"), Raw(b"{}"), "h")


def arrival(entry: MessageReceived | TimerFired, seconds: float) -> Proposal:
    """Return something that came at a time."""
    return Proposal(Rank.ARRIVAL, entry, at=NOW + timedelta(seconds=seconds))


def message(number: int) -> MessageReceived:
    """Return a message."""
    return MessageReceived(f"m{number}", "go", Raw(b"1"))


def always(_: OperationId) -> bool:
    """Say that every operation is open."""
    return True


def test_the_order_inside_a_change() -> None:
    """Intents, outcomes, arrivals by time with messages first at a tie, requests, rows, the end."""
    end = Proposal(Rank.END, head=HeadUpdate(Status.COMPLETED))
    timer = arrival(TimerFired(OperationId("r:2")), 1)
    one, two, late = arrival(message(1), 1), arrival(message(2), 1), arrival(message(3), 0.5)
    outcome, intended = Proposal(Rank.OUTCOME, step()), Proposal(Rank.INTENT, intent())
    ordered = in_order([end, timer, one, two, late, outcome, intended])
    assert ordered == [intended, outcome, late, one, two, timer, end]


def test_consecutive_messages_are_one_turn() -> None:
    """Anything else is a turn of its own, and parts a row of messages."""
    proposals = [
        Proposal(Rank.OUTCOME, step()),
        *(arrival(message(one), one) for one in range(2)),
        arrival(TimerFired(OperationId("r:2")), 3),
        *(arrival(message(one), one) for one in range(4, 6)),
    ]
    rows = rows_of(proposals, seq=7, turn=5)
    assert [row.turn for row in rows] == [5, 6, 6, 7, 8, 8]
    assert [row.seq for row in rows] == list(range(7, 13))


def test_nothing_is_written_for_an_operation_that_was_given_up() -> None:
    """Its proposal is dropped, and nothing waits for it."""
    gone = Proposal(Rank.OUTCOME, step("r:9"), guard=OperationId("r:9"))
    kept = Proposal(Rank.OUTCOME, step("r:1"), guard=OperationId("r:1"))
    sifted = sift([gone, kept], lambda operation: operation == "r:1")
    assert (sifted.now, sifted.later, sifted.extra) == ([kept], [], [])


def test_one_outcome_an_operation() -> None:
    """Of two in one change the first counts; what came from outside is kept aside, and so is that of an effect; a step's is dropped."""
    first = Proposal(Rank.OUTCOME, effect(), consumed="m1")
    told = Proposal(Rank.OUTCOME, effect(), consumed="m2")
    ours = Proposal(Rank.OUTCOME, effect())
    other = Proposal(Rank.OUTCOME, step("r:2"), consumed="m3")
    dropped = Proposal(Rank.OUTCOME, step("r:2"))
    sifted = sift([first, told, ours, other, dropped], always)
    assert (sifted.now, sifted.extra) == ([first, other], [told, ours])
    assert sifted.needless == [dropped]


def test_a_late_outcome_counts_although_the_doubt_was_just_cleared() -> None:
    """It is written after the clearing, before another attempt can begin; one that an operator says second is kept aside."""
    cleared = Proposal(Rank.OUTCOME, EffectCleared(OperationId("r:1"), "e"), consumed="m1")
    late = Proposal(Rank.OUTCOME, msgspec.structs.replace(effect(), source="late"), consumed="m2")
    said = Proposal(Rank.OUTCOME, effect(), consumed="m3")
    sifted = sift([cleared, late, said], always)
    assert (sifted.now, sifted.later, sifted.extra) == ([cleared], [late], [said])
    assert sift([late, cleared], always).extra == [cleared]


def test_no_doubt_is_written_beside_an_outcome() -> None:
    """What became of the effect is known by then; a doubt that came first is settled by what follows."""
    doubt = Proposal(Rank.OUTCOME, EffectInDoubt(OperationId("r:1"), "e", "gone"))
    late = Proposal(Rank.OUTCOME, effect(), consumed="m1")
    assert sift([late, doubt], always).now == [late]
    assert sift([doubt, late], always).now == [doubt, late]


def test_no_row_beside_an_outcome() -> None:
    """A failure that was to be recorded for an operation which gets its outcome from outside would be left behind."""
    row = OperationPut(OperationId("r:1"), "step", "s", 1)
    failed = Proposal(Rank.ROW, guard=OperationId("r:1"), row=row)
    told = Proposal(Rank.OUTCOME, step(), row=OperationDrop(OperationId("r:1")), consumed="m1")
    other = Proposal(Rank.ROW, guard=OperationId("r:2"), row=row)
    sifted = sift([failed, told, other], always)
    assert (sifted.now, sifted.later) == ([told, other], [failed])
    assert sift(sifted.later, lambda operation: operation != "r:1").now == []


def test_one_cover_of_an_approval_a_change() -> None:
    """So that a refusal, which names the approval, names one effect."""
    spends = [
        GrantSpend("a", 0, "r:1", "h"),
        GrantSpend("a", 1, "r:2", "h"),
        GrantSpend("b", 0, "r:3", "h"),
    ]
    one, two, three = (
        Proposal(Rank.INTENT, intent(spend.operation), spends=(spend,)) for spend in spends
    )
    sifted = sift([one, two, three], always)
    assert (sifted.now, sifted.later) == ([one, three], [two])


END = Proposal(Rank.END, head=HeadUpdate(Status.COMPLETED))
SPEND = Proposal(Rank.INTENT, intent(), spends=(GrantSpend("a", 0, "r:1", "h"),))
EXPIRE = Proposal(Rank.REQUEST, approval=ApprovalExpire("a"))
READ = Proposal(Rank.ARRIVAL, message(1), consumed="m1")


@pytest.mark.parametrize(
    ("refused", "parts"),
    [
        (Refused("mail"), [END]),
        (Refused("expired", "a"), [SPEND, EXPIRE]),
        (Refused("decided", "a"), [SPEND, EXPIRE]),
        (Refused("expired", "b"), []),
        (Refused("message", "m1"), [READ]),
        (Refused("message", "m2"), []),
        (Refused("unstorable", "entry"), []),
    ],
)
def test_which_part_was_refused(refused: Refused, parts: list[Proposal]) -> None:
    """The word and the part of a refusal name the proposals that must go."""
    assert [one for one in [END, SPEND, EXPIRE, READ] if is_refused(one, refused)] == parts


HEAD = RunHead(
    RunKey("default", "p"), 1, "w", "", Status.RUNNING, "", WorkerId("w"), 1, 0, 5, b"", None, False, 0, NOW, NOW,
)  # fmt: skip
STARTED = Started("w", Raw(b"{}"), b"0123456789abcdef", "p")
ASKED = {
    StartChild(OperationId("r:1"), "kid", "p/r:1", b"{}", "cancel", False): ChildRequested,
    SendMessage(OperationId("r:1"), "go", "x", "signal", b"1", OperationId("")): MessageSent,
    WatchRun(OperationId("r:1"), "x"): WatchRequested,
}


@pytest.mark.parametrize("command", ASKED, ids=lambda one: type(one).__name__)
def test_what_is_asked_of_another_run_comes_before_what_could_give_it_up(command):
    """It is recorded first, with its item, while it is wanted; not at all once it was given up."""
    (asked,) = Kin(STARTED, "p", "").ask(command, HEAD)
    outcome = Proposal(Rank.OUTCOME, step("r:2"))
    change = change_of(in_order([outcome, asked]), HEAD, worker=WorkerId("w"), turn=5)
    assert [one.kind for one in change.entries] == [
        str(ASKED[command].__struct_config__.tag),
        "step_completed",
    ]
    assert [(one.operation, one.generation) for one in change.outbox] == [("r:1", 1)]
    assert sift([asked], lambda operation: False).now == []


def test_one_word_about_another_run_is_written():
    """The end was faster than the word of the start, or than a refusal that came too late: neither an entry nor an alarm."""
    at = OperationId("r:1")
    said = [RunEnded(at, "x", "completed"), ChildStarted(at), ChildRefused(at, capture(KeyError()))]
    told = [Proposal(Rank.OUTCOME, one, consumed=type(one).__name__) for one in said]
    sifted = sift(told, always)
    assert (sifted.extra, sifted.later) == ([], [])
    assert [(one.entry, one.consumed) for one in sifted.now] == [
        (said[0], "RunEnded"),
        (None, "ChildStarted"),
        (None, "ChildRefused"),
    ]
    in_time = sift([told[1], told[0]], always).now
    assert [one.entry for one in in_time] == [said[1], said[0]]


def failed_task(operation: str = "r:1") -> Proposal:
    """Return a failed attempt of a remote step: its message, its record, and the task of the next attempt."""
    return Proposal(
        Rank.ROW,
        guard=OperationId(operation),
        row=OperationPut(operation, "step", "s", 1),
        task=TaskPut(operation, 2, "gpu", "s", b"{}"),
        consumed=f"task/{operation}",
    )


def test_a_failed_attempt_is_one_part() -> None:
    """Its message, its record and the next task go into one change."""
    one = failed_task()
    sifted = sift([one], always)
    assert (sifted.now, sifted.later) == ([one], [])
    assert (one.row is not None, one.task is not None) == (True, True)


@pytest.mark.parametrize("settled", [False, True], ids=["given up", "settled in this change"])
def test_a_failed_attempt_that_means_nothing_is_read(settled: bool) -> None:
    """Its message is consumed all the same, once and now; no record and no task are left behind."""
    one = failed_task()
    others = [Proposal(Rank.OUTCOME, step())] if settled else []
    sifted = sift([*others, one], always if settled else lambda _: False)
    *before, read = sifted.now
    assert (before, sifted.later) == (others, [])
    assert (read.consumed, read.guard, read.row, read.task) == ("task/r:1", "", None, None)


@pytest.mark.parametrize("settled", [False, True], ids=["given up", "settled in this change"])
def test_what_is_chosen_for_a_change_is_left_as_it_was(settled: bool) -> None:
    """The store may refuse the change; what was left out of a proposal is written then, or not, by what else is in the next one."""
    one = failed_task()
    others = [Proposal(Rank.OUTCOME, step())] if settled else []
    *_, read = sift([*others, one], always if settled else lambda _: False).now
    assert read.whole is one
    assert (one.guard, one.row, one.task) == ("r:1", failed_task().row, failed_task().task)
    assert sift([one], always).now == [one]


def test_who_gives_way_is_told_when_the_outcome_is_written() -> None:
    """The change with the outcome may be refused: what would have been written without that is not given up before."""
    loop = asyncio.new_event_loop()
    told = Proposal(Rank.OUTCOME, step(), consumed="m1")
    late = Proposal(Rank.OUTCOME, step(), guard=OperationId("r:1"), yields=True)
    twice = Proposal(Rank.OUTCOME, step())
    late.done, twice.done = loop.create_future(), loop.create_future()
    sifted = sift([late, told, twice], always)
    assert (sifted.now, sifted.needless) == ([told], [late, twice])
    assert not (late.done.done() or twice.done.done())
    sifted.drop()
    assert late.done.cancelled()
    assert twice.done.cancelled()
    loop.close()


def test_a_refused_task_names_its_part() -> None:
    """What the store says of one task concerns what was written about that one."""
    refused = Refused("task", "r:1")
    late = Proposal(Rank.OUTCOME, step(), task=TaskDrop("r:1", 1, 0))
    other = Proposal(Rank.OUTCOME, step("r:2"), task=TaskDrop("r:2", 1, 0))
    assert [is_refused(one, refused) for one in (late, other, Proposal(Rank.END))] == [
        *(True, False, False)
    ]
