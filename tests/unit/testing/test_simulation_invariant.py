"""The second model that watches a simulation: each thing that must never happen is told to it, and it says so."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from outlast.effects.key import idempotency_key, namespace
from outlast.journal.canonical import payload_sha256
from outlast.journal.entry import (
    ApprovalExpired,
    Completed,
    EffectCompleted,
    EffectInDoubt,
    EffectIntended,
    Entry,
    MessageReceived,
    OperationId,
    Published,
    StepCompleted,
    UpdateAnswered,
    UpdateReceived,
    to_row,
)
from outlast.store.change import (
    Answer,
    Applied,
    ApprovalExpire,
    ApprovalPut,
    Change,
    CoverRow,
    Decide,
    HeadUpdate,
    Message,
    MessageKind,
    OperationPut,
    PutMessage,
    RunChange,
    RunHead,
    RunKey,
    StartRun,
    Status,
    WorkerId,
    WorkerRow,
    digest_of,
)
from outlast.store.protocol import Claim, ClaimedRun
from outlast.testing import SimulatedClock
from outlast.testing.simulation.consent import Consent
from outlast.testing.simulation.invariant import Invariants
from outlast.workflows.attempt import Attempt

RUN, ONE, TWO = RunKey("default", "r"), WorkerId("one"), WorkerId("two")
AT = OperationId("r:1")
ARGUMENTS = {"purpose": "p", "extra": 0}


@pytest.fixture(autouse=True)
def _written_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody judge who has said yes: what is written by hand here is asked of nobody."""
    for name in ("decided", "written"):
        monkeypatch.setattr(Consent, name, lambda *_: None)


def key(number: int = 1, generation: int = 1) -> str:
    """Return the key that the engine gives."""
    used = namespace("default", "r", generation)
    return idempotency_key(used, "deed", payload_sha256(ARGUMENTS), number=number)


INTENT = EffectIntended(
    AT, "deed", key(), Raw(b"{}"), Raw(msgspec.json.encode(ARGUMENTS)), "sha", epoch=1
)


class Bench:
    """A run that was born in the hands of `one`, in process `p`."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.violations: list[int] = []
        self.invariants = Invariants(
            self.clock, lambda error: self.violations.append(error.invariant)
        )
        self.rows = 0
        self.register(ONE, "p")
        start = StartRun(RUN, "w", "f", (), worker=ONE)
        self.invariants.committed([(start, Applied(self.clock.now(), 1))], self.clock.now())

    def register(self, worker: WorkerId, process: str) -> None:
        """Begin a worker's life."""
        self.invariants.registered(
            WorkerRow(worker, process, 1, "b", ("w",), timedelta(seconds=10))
        )

    def write(self, *entries: Entry, worker: WorkerId = ONE, **parts: object) -> None:
        """Write a change that the store takes."""
        run = self.invariants.runs[RUN]
        seq = self.rows
        rows = tuple(to_row(one, seq + at, seq + at) for at, one in enumerate(entries))
        self.rows += len(rows)
        change = RunChange(RUN, worker, run.epoch, run.version, entries=rows)
        change = replace(change, **parts)
        self.tell(replace(change, digest=digest_of(change)))

    def tell(self, *changes: Change) -> None:
        """Say that the store has taken changes."""
        now = self.clock.now()
        self.invariants.committed([(one, Applied(now)) for one in changes], now)

    def claim(self, epoch: int, *, lapses: int = 0, ago: float = 0.0) -> None:
        """Give the run to `two`."""
        now = self.clock.now()
        head = RunHead(
            *(RUN, 1, "w", "f", Status.RUNNING, "", TWO, epoch, 0, 0, b"", None, False, lapses),
            *(now, now),
        )
        claimed = ClaimedRun(head, timedelta(seconds=ago))
        self.invariants.claimed(TWO, Claim((claimed,), (), None, now))

    def fail_once(self) -> None:
        """Record a failure, let the time of the next attempt come, and announce that."""
        row = OperationPut(AT, "effect", "deed", 1, self.clock.now() + timedelta(seconds=3))
        self.write(operations=(row,))
        self.clock.advance(3)
        self.write(operations=(replace(row, due_at=None),))

    def attempt(self, number: int = 1, process: str = "p", key: str = INTENT.key):
        """Begin an attempt of the effect."""
        attempt = Attempt("default", "r", AT, "deed", number, key)
        return self.invariants.bodies.running(attempt, "effect", process)


@pytest.fixture
def bench() -> Bench:
    """Return a bench."""
    return Bench()


def test_a_run_is_taken_from_a_lapsed_owner_only(bench: Bench) -> None:
    """At its next epoch, with its owner counted as lost, and not as stopped before the lease was over."""
    bench.register(TWO, "q")
    bench.clock.advance(4)
    bench.claim(2)
    assert set(bench.violations) == {0, 3, 7}
    late = Bench()
    late.register(TWO, "q")
    late.clock.advance(12)
    late.claim(2, lapses=1, ago=2.0)
    assert late.violations == []


@pytest.mark.parametrize(
    ("epoch", "lapses", "ago", "invariant"), [(1, 1, 2.0, 7), (2, 0, 2.0, 0), (2, 1, 2.5, 3)]
)
def test_a_claim_says_what_is_true(epoch: int, lapses: int, ago: float, invariant: int) -> None:
    """An old epoch, an owner that was not counted, one that is said to have stopped while its lease ran: each is seen."""
    bench = Bench()
    bench.clock.advance(12)
    bench.claim(epoch, lapses=lapses, ago=ago)
    assert bench.violations == [invariant]


def test_one_worker_writes_under_an_epoch(bench: Bench) -> None:
    """Whoever does not hold the run has nothing to write, and whose lease is over neither."""
    bench.write(worker=TWO)
    assert 7 in bench.violations
    late = Bench()
    late.clock.advance(11)
    late.write()
    assert late.violations == [7]


def test_an_outcome_is_recorded_once(bench: Bench) -> None:
    """A second one is seen, whatever it says."""
    bench.write(StepCompleted(AT, "s", Raw(b"1")))
    assert bench.violations == []
    bench.write(StepCompleted(AT, "s", Raw(b"1")))
    assert bench.violations == [1]


def test_a_value_is_published_once(bench: Bench) -> None:
    """By one operation; another operation may say the same, and so may another generation's."""
    bench.write(Published(AT, "a", Raw(b"1")), Published(OperationId("r:2"), "a", Raw(b"1")))
    assert bench.violations == []
    bench.write(Published(AT, "a", Raw(b"1")))
    assert bench.violations == [1]


def test_an_effect_begins_after_its_intent(bench: Bench) -> None:
    """Under its key, in the hands of the run's owner, with the number that follows the recorded failures."""
    with bench.attempt():
        pass
    assert bench.violations == [1]
    good = Bench()
    good.write(INTENT)
    good.fail_once()
    with good.attempt(2):
        pass
    assert good.violations == []
    with good.attempt(1):
        pass
    with good.attempt(2, key="other"):
        pass
    with good.attempt(2, process="q"):
        pass
    assert good.violations == [1, 1, 7]


def test_an_effect_does_not_begin_while_it_acts_is_in_doubt_or_done(bench: Bench) -> None:
    """Also not while its thread is kept; a run is not given back meanwhile either."""
    bench.write(INTENT)
    with bench.attempt():
        bench.invariants.bodies.keep_thread("p", 5.0)
    with bench.attempt():
        pass
    assert bench.violations == [3]
    bench.write(head=HeadUpdate(status=Status.READY, release=True))
    assert bench.violations == [3]
    other = Bench()
    other.write(INTENT)
    with other.attempt():
        other.write(head=HeadUpdate(status=Status.READY, release=True))
    assert other.violations == [3]
    doubtful = Bench()
    doubtful.write(INTENT)
    with doubtful.attempt():
        pass
    doubtful.write(EffectInDoubt(AT, "deed", "?"))
    with doubtful.attempt():
        pass
    assert doubtful.violations == [1]


def test_a_key_is_made_as_the_design_says(bench: Bench) -> None:
    """From run, generation, effect, arguments and the number of equal successes, computed here a second time."""
    bench.write(INTENT)
    bench.write(EffectCompleted(AT, "deed", Raw(b"1")))
    second = replace(INTENT, operation=OperationId("r:2"), key=key(2), number=2)
    bench.write(second)
    assert bench.violations == []
    bench.write(replace(second, operation=OperationId("r:3"), key=key(3)))
    assert bench.violations == [3]
    plain = hashlib.sha256(msgspec.json.encode(ARGUMENTS, order="sorted")).hexdigest()
    assert key() == hashlib.sha256(f"r:deed:{plain}".encode()).hexdigest()[:32]
    assert bench.invariants.runs[RUN].key_of(RUN, INTENT) == key(2) != key(2, generation=2)


def test_a_message_is_delivered_once_in_its_order_and_with_its_entry(bench: Bench) -> None:
    """Consumed without an entry, received without having been sent, or before an earlier one: each is seen."""
    for number in range(3):
        message = Message(f"signal/{number}", MessageKind.SIGNAL, "n", "s", b"1")
        bench.tell(PutMessage(RUN, message))
    bench.write(MessageReceived("signal/1", "n", Raw(b"1"), "s"), consumed=("signal/1",))
    assert bench.violations == []
    bench.write(MessageReceived("signal/0", "n", Raw(b"1"), "s"), consumed=("signal/0",))
    bench.write(consumed=("signal/2",))
    bench.write(MessageReceived("signal/2", "n", Raw(b"1"), "s"), consumed=("signal/2",))
    bench.write(MessageReceived("signal/9", "n", Raw(b"1"), "s"))
    assert bench.violations == [5] * 4


def test_an_update_is_answered_once_and_its_sender_told(bench: Bench) -> None:
    """Without its row, a second time, or not at all until the end: each is seen."""
    for number in range(3):
        message = Message(f"update/{number}", MessageKind.UPDATE, "n", "s", b"1")
        bench.tell(PutMessage(RUN, message))
        bench.write(
            UpdateReceived(f"update/{number}", "n", Raw(b"1")), consumed=(f"update/{number}",)
        )
    answer = (Answer("update/0", b"1"),)
    bench.write(UpdateAnswered("update/0", "n"), answers=answer)
    assert bench.violations == []
    bench.write(UpdateAnswered("update/0", "n"), answers=answer)
    assert bench.violations == [5]
    bench.write(UpdateAnswered("update/1", "n"))
    assert bench.violations == [5, 5]
    bench.write(Completed(Raw(b"1")), head=HeadUpdate(Status.COMPLETED, release=True))
    assert bench.violations == [5, 5, 5]


def test_a_start_brings_its_messages(bench: Bench) -> None:
    """They were accepted with it, and may be delivered."""
    run = RunKey("default", "other")
    message = Message("signal/0", MessageKind.SIGNAL, "n", "s", b"1")
    bench.tell(StartRun(run, "w", "f", (), messages=(message,)))
    assert bench.invariants.runs[run].unread() == ["signal/0"]


def test_a_request_that_was_decided_does_not_expire(bench: Bench) -> None:
    """Nor before its time, nor is it decided after it."""
    now = bench.clock.now()
    minute = now + timedelta(minutes=1)
    for at in ("1~a", "1~b"):
        covers = (CoverRow("deed", "m"),)
        put = ApprovalPut(at, at[2:], "boss", "sha", minute, minute, covers, b"{}")
        bench.write(approvals=(put,))

    def decide(at: str) -> Decide:
        message = Message(f"approve/{at}", MessageKind.DECISION, at, "me", b"{}")
        return Decide(RUN, at, seen_sha256="sha", approved=True, by="me", message=message)

    bench.tell(decide("1~a"))
    assert bench.violations == []
    bench.clock.jump(timedelta(minutes=2))
    expired = ApprovalExpired(OperationId("a"), "1~a")
    bench.write(expired, approvals=(ApprovalExpire("1~a"),))
    bench.tell(decide("1~b"))
    assert bench.violations == [5, 6]


def test_failures_are_counted_one_by_one_and_rests_are_kept(bench: Bench) -> None:
    """A row that counts wrongly, one that is left behind, and an attempt before its time: each is seen."""
    bench.write(INTENT)
    bench.fail_once()
    assert bench.violations == []
    row = OperationPut(AT, "effect", "deed", 1, bench.clock.now() + timedelta(seconds=3))
    bench.write(operations=(row,))
    bench.write(operations=(replace(row, failures=2),))
    bench.write(operations=(replace(row, failures=2, due_at=None),))
    bench.write(EffectCompleted(AT, "deed", Raw(b"1")))
    assert bench.violations == [1, 1, 0]


def test_nobody_acts_on_an_effect_while_an_attempt_may_still_act(bench: Bench) -> None:
    """Neither tries again nor says that it is in doubt, before the timeout plus what comes after; unless the end is known."""
    bench.invariants.bodies.quiet["deed"] = 3.0
    bench.invariants.bodies.proofs["deed"] = (LookupError,)
    bench.write(INTENT)
    for _ in range(2):
        with pytest.raises(LookupError), bench.attempt():
            raise LookupError
    assert bench.violations == []
    with pytest.raises(OSError), bench.attempt():  # noqa: PT011
        raise OSError
    bench.clock.advance(2.9)
    bench.write(EffectInDoubt(AT, "deed", "?"))
    assert bench.violations == [3]
    good = Bench()
    good.invariants.bodies.quiet["deed"] = 3.0
    good.write(INTENT)
    with pytest.raises(OSError), good.attempt():  # noqa: PT011
        raise OSError
    good.clock.advance(3)
    good.write(EffectInDoubt(AT, "deed", "?"))
    assert good.violations == []


def test_a_new_owner_waits_from_the_end_of_the_old_ones_lease(bench: Bench) -> None:
    """Whatever it sees of the last attempt: another one could have begun until then."""
    bench.invariants.bodies.quiet["deed"] = 3.0
    bench.write(INTENT)
    bench.register(TWO, "q")
    bench.clock.advance(12)
    bench.register(TWO, "q")
    bench.claim(2, lapses=1, ago=2.0)
    with bench.attempt(process="q"):
        pass
    assert bench.violations == [3]
