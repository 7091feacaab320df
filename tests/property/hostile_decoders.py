"""Every place where bytes from outside become data: what it is called with, what it may raise, and what valid input looks like."""

# ruff: noqa: D103 - each decoder says by its name what it decodes
from __future__ import annotations

import base64
import contextvars
import dataclasses
import hashlib
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
from msgspec import Raw

from outlast.app import sqlite_file
from outlast.approvals.decision import Decision
from outlast.approvals.drawing import receipt_of
from outlast.approvals.evidence import Place
from outlast.approvals.proof import prove
from outlast.approvals.receipt import read_receipt
from outlast.approvals.request import still_asks, subject_of
from outlast.cli.answer import is_guarded
from outlast.cli.approval import _edits as edits_typed
from outlast.cli.output import plain
from outlast.cli.pin import tool_in
from outlast.cli.receipt import _subject
from outlast.cli.session import json_of
from outlast.cli.text import parse_length
from outlast.client import sticky as sticky_view
from outlast.client.mail import arrived, mail_of
from outlast.client.update import _answer_in
from outlast.client.view import JournalEntry, room_in, status_of, view_of
from outlast.crypto import SigningKey, VerifyingKey, sign, verify
from outlast.demo.forge_state import Fault
from outlast.demo.github import GitHub, _Pull
from outlast.demo.github_error import error_of, redact
from outlast.demo.manifest import pins_of
from outlast.demo.model import _answer
from outlast.demo.osv import read_record
from outlast.effects.intent import Resolution
from outlast.effects.retry import RetryPolicy
from outlast.effects.standing import alarms, standings
from outlast.errors import (
    DefinitionError,
    OutlastError,
    ReceiptError,
    SignatureError,
    SigningKeyError,
)
from outlast.http import KeyFormat
from outlast.http.answer import decode as kept_answer
from outlast.http.answer import decode_written as written_answer
from outlast.http.carry import passage_of
from outlast.http.decision import _incoming
from outlast.http.reply import final_error
from outlast.journal import entry as entries
from outlast.journal.asking import Edited, Precondition, Rung, Terms, Vote
from outlast.journal.canonical import canonical
from outlast.journal.codec import codec_for
from outlast.journal.entry import (
    KINDS,
    AlarmRaised,
    EffectIntended,
    Entry,
    EntryRow,
    OperationId,
    StampedRow,
    from_row,
    to_row,
)
from outlast.journal.failure import Failure, capture, rebuild
from outlast.journal.parse import NotJsonError, parse, parse_as, read
from outlast.journal.subject import with_actions, with_note
from outlast.notify.file import read_notify
from outlast.notify.link import Links
from outlast.notify.message import message_of
from outlast.notify.setting import _is_base
from outlast.policy import Pin, Pins, PolicyFile, Stop, Stops
from outlast.policy.binding import Bindings, RoleBinding, first_bindings
from outlast.policy.local import LocalUser
from outlast.policy.pinned import PinRecord
from outlast.policy.switch import Switch
from outlast.replay.asking import edited
from outlast.replay.context import StepRequest
from outlast.replay.ledger import _Cover
from outlast.replay.operation import (
    ChildOperation,
    EffectOperation,
    SendOperation,
    StepOperation,
    WatchOperation,
)
from outlast.store.change import (
    ApprovalPut,
    ApprovalRow,
    DueNotice,
    Message,
    MessageKind,
    OperationPut,
    RunHead,
    RunKey,
    StampedMessage,
    Status,
    TaskDrop,
    TaskPut,
    WorkerId,
)
from outlast.store.notice import NoticeRow
from outlast.store.postgres.setting import read_setting
from outlast.store.restoration import Released, Releases, Restoration
from outlast.store.row import head_of, operation_of, outbox_of, unfit_of, worker_of
from outlast.store.row_people import approval_of, notice_of, request_of
from outlast.store.sqlite.damage import naming
from outlast.store.sticky import StickyPut, StickyRow
from outlast.store.task import TaskKey, TaskRow
from outlast.testing.golden import Golden, GoldenRow
from outlast.worker.inbox import proposal_of
from outlast.worker.late import contradiction
from outlast.worker.outcome import TaskOutcome
from outlast.worker.parked import told_in
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.relay import _bodies
from outlast.worker.remote import RemoteSteps
from outlast.worker.report import report_in
from outlast.worker.rest import Completion, Rest
from outlast.worker.series import rest_of
from outlast.worker.sticky import _asks_for
from outlast.worker.wait import Waits
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.completion import CompletionToken
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step
from outlast.workflows.heartbeat import Beats, current_beats, heartbeat_details
from outlast.workflows.message import Signal, misfit
from outlast.workflows.placement import Placement

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RUN = RunKey("default", "r")


@dataclasses.dataclass
class Leaf:
    when: datetime | str
    count: int | None = None


@dataclasses.dataclass
class Tree:
    leaves: tuple[Leaf, ...] = ()
    children: list[Tree] = dataclasses.field(default_factory=list)
    named: dict[str, Tree | Leaf] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Decoder:
    """One decoder.

    Args:
        call: Takes bytes; returns data.
        seeds: Valid input.
        sites: The functions of `src/outlast` that it goes through, as `journal.codec:TypeCodec.decode`.
        raises: What it may raise; nothing else.
        never: Whether it may not raise at all.
    """

    call: Callable[[bytes], Any]
    seeds: list[bytes]
    sites: tuple[str, ...]
    raises: tuple[type[Exception], ...] = (OutlastError,)


OP = OperationId("r:1")
FAILURE = capture(ExceptionGroup("many", [ValueError("x"), KeyError(1)]))
SUBJECT = bytes(
    subject_of(
        b'{"title":"fix","diff":"+a"}',
        [(entries.Cover("ship", action_sha256="a" * 64), {"place": '"here"'})],
    ).body
)
SAMPLES: list[Entry] = [
    entries.Started("flow", Raw(b'{"kind":"x"}'), b"0123456789abcdef", "r", "me", entries.Parent("p", 1, OP), 60.5, NOW),
    entries.Taken("3.11", "0.1"),
    entries.StepCompleted(OP, "plan", Raw(b'{"a":[1,2.5,"x"]}')),
    entries.StepFailed(OP, "plan", FAILURE),
    entries.EffectIntended(OP, "ship", "k" * 32, Raw(b'{"place":"here"}'), Raw(b'{"place":"here"}'), "a" * 64,
                           grant=entries.GrantUse("a~1", 0), epoch=3),
    entries.EffectRefused(OP, "ship", FAILURE),
    entries.EffectCompleted(OP, "ship", Raw(b'"sent"'), source="probe"),
    entries.EffectFailed(OP, "ship", FAILURE),
    entries.EffectInDoubt(OP, "ship", "cut off"),
    entries.EffectCleared(OP, "ship", by="me"),
    entries.EffectCompensating(OP, "ship", Raw(b'"sent"'), "me", "nobody knows"),
    entries.SagaAborted(OP, FAILURE),
    entries.SagaEnded(OP, "partly compensated"),
    entries.TimerFired(OP),
    entries.MessageReceived("m1", "go", Raw(b'{"a":"b"}'), "you"),
    entries.ApprovalRequested(OP, "a~1", "boss", Raw(SUBJECT), "a" * 64, (entries.Cover("ship", where={"a": "1"}),), NOW, NOW,
                              Terms("boss", timedelta(1), quorum=2, escalate=(Rung("chief", timedelta(1)),)), requesters=("me",),
                              preconditions=(Precondition("head", "look", Raw(b"{}"), Raw(b'"abc"')),), votes=(Vote("you", NOW),)),
    entries.ApprovalVoted(OP, "a~1", "me", NOW, "fine", "you"),
    entries.ApprovalEdited(OP, "a~1", "me", NOW, (Edited(0, Raw(b'{"place":"there"}')),), "not here"),
    entries.ApprovalDecided(OP, "a~1", True, "me", "fine", "a" * 64, NOW),
    entries.ApprovalExpired(OP, "a~1"),
    entries.CancelRequested("me", "late"),
    entries.PauseRequested("me", "later"),
    entries.ResumeRequested("me", "now"),
    entries.RunTimedOut(),
    entries.ChildRequested(OP, "flow", "r/r:1", Raw(b'{"a":1}'), "cancel"),
    entries.ChildStarted(OP),
    entries.ChildRefused(OP, FAILURE),
    entries.RunEnded(OP, "r/r:1", "failed", failure=FAILURE),
    entries.MessageSent(OP, "go", "r/r:1", "signal", Raw(b'{"a":"b"}')),
    entries.WatchRequested(OP, "r/r:1"),
    entries.MessageAnswered(OP, FAILURE),
    entries.AlarmRaised(OP, "late_outcome", Raw(b'{"outcome":{"type":"step_failed","operation":"r:1","by":"me"}}')),
    entries.Published(OP, "progress", Raw(b'{"done":5}')),
    entries.Forked(entries.RunName("f"), entries.RunName("r", 2), 7, "me", "to see", "same_key", OP,
                   (entries.KnownEffect("ship", "a" * 64, 1, "r", OP, "k" * 32, "completed", Raw(b'"sent"')),
                    entries.KnownEffect("ship", "b" * 64, 1, "r", OP, "k" * 32, "failed", failure=FAILURE),
                    entries.KnownEffect("ship", "c" * 64, 2, "r", OP, "k" * 32, "unknown")),
                   (entries.KnownChild("flow", "a" * 64, "own", 2, OP, "own", entries.Parent("r", 2, OP), "completed", Raw(b'"done"')),
                    entries.KnownChild("flow", "b" * 64, "", 1, OP, "r/r:1", entries.Parent("r", 2, OP), "failed", failure=FAILURE),
                    entries.KnownChild("flow", "c" * 64, "", 1, OP, "r/r:2", entries.Parent("r", 2, OP), "unknown", as_run="f/r:2")),
                   (entries.KnownMessage("x", "signal", "go", "a" * 64, 2, "run/r~2~r:1/0", OP, "sent"),
                    entries.KnownMessage("r:1", "cancel", "", "", 1, "run/r~2~r:2/0", OP, "failed", FAILURE)),
                   entries.Parent("p", 1, OP)),
    entries.LeftOut(OP, "ship", "effect_intended"),
    entries.Completed(Raw(b"[1,null,true]")),
    entries.Failed(FAILURE),
    entries.Cancelled(FAILURE, "compensated"),
    entries.UpdateReceived("u1", "add", Raw(b'{"a":"b"}'), "you"),
    entries.UpdateAnswered("u1", "add", failure=FAILURE, rejected=True),
    entries.ContinueSuggested(10_240, 1 << 20),
    entries.Patched("ask-twice", deprecated=True),
    entries.Accepted(7, 100_000, by="me", reason="fine"),
    entries.ContinuedAsNew("flow", Raw(b'{"kind":"x"}')),
]  # fmt: skip
ALARM = next(bytes(one.detail) for one in SAMPLES if isinstance(one, AlarmRaised))
BODIES = {str(type(one).__struct_config__.tag): to_row(one, 0, 0).body for one in SAMPLES}
assert BODIES.keys() == KINDS.keys()


def read_entry(kind: str) -> Callable[[bytes], Any]:
    return lambda data: from_row(EntryRow(0, 0, kind, "r:1", "name", data))


def show_entry(kind: str) -> Callable[[bytes], Any]:
    return lambda data: repr(JournalEntry(0, 0, NOW, read_entry(kind)(data)))


def raise_again(data: bytes) -> Any:
    """Read, rebuild and capture a failure: only reading may fail."""
    failure = read_entry("failed")(data).failure
    again = capture(rebuild(failure))
    return msgspec.json.encode(again)


TREES = codec_for(Tree, where="a tree")
WITH_DAYS = codec_for(dict[Any, Any] | list[Tree] | None, where="anything")
DECLARED = Signal("hostile bytes", Tree)
"""Held here as long as the module lives: a name that no `Signal` has takes every value, and its decoders would prove nothing."""
TREE = b'{"leaves":[{"when":{"$type":"datetime","value":"2026-01-01T00:00:00+00:00"},"count":1},{"when":"x"}],"children":[{"leaves":[]}],"named":{"a":{"$type":"Leaf","value":{"when":"y"}}}}'


class NoMachine:
    """A machine in which nothing is open."""

    def find(self, operation: str) -> None:
        """Find none."""
        return

    def asks(self, approval_id: str) -> None:
        """Find none."""
        return


class OneOpen:
    """A machine in which one operation is open that is about another run."""

    def __init__(self, operation: Any) -> None:
        self.operation = operation

    def find(self, operation: str) -> Any:
        """Find it, whatever it is called."""
        return self.operation


def told(data: bytes) -> Any:
    """Take in what the relay says, about each kind of operation that it could speak of."""
    message = StampedMessage(Message("m1", MessageKind.OUTCOME, "r:1", "relay", data), NOW, 1)
    request: Any = SimpleNamespace(run_id="x", name="go")
    nobody: Any = None
    said: list[Entry | None] = []
    for asked in (
        ChildOperation(OP, request, "x"),
        SendOperation(OP, request, None),
        WatchOperation(OP, request, nobody),
    ):
        machine: Any = OneOpen(asked)
        proposal = proposal_of(message, machine, 1)
        assert proposal.consumed == "m1"
        said.append(proposal.entry)
    return [entry and from_row(to_row(entry, 0, 0)) for entry in said]


def lies_in_the_inbox(data: bytes) -> Any:
    message = StampedMessage(Message("m1", MessageKind.OUTCOME, "r:1", "relay", data), NOW, 1)
    mail = mail_of([message])
    return msgspec.json.encode(mail), arrived(mail, 1, "now"), arrived(mail * 7, 7, "now")


def start_of(data: bytes) -> Any:
    return parse_as(_bodies, data)


def take_in(kind: MessageKind) -> Callable[[bytes], Any]:
    def call(data: bytes) -> Any:
        message = Message("m1", kind, DECLARED.name, "you", data)
        machine: Any = NoMachine()
        proposal = proposal_of(StampedMessage(message, NOW, 1), machine, 1)
        assert proposal.consumed == "m1"
        entry = proposal.entry
        if entry is None:  # the relay's word on what nobody waits for
            return None
        # What is written about a message can be read again, from any depth of the stack.
        row = to_row(entry, 0, 0)
        return from_row(row)

    return call


def place(place: str) -> str:
    return place


PLACED: Effect[..., Any] = Effect(place, "ship", AttemptOptions(), EffectOptions(idempotent=True))
ASKED = next(one for one in SAMPLES if isinstance(one, entries.ApprovalRequested))


def edit(data: bytes) -> Any:
    """Let an approver make this of a call: it is asked for, or the same is asked again."""
    edits = (Edited(0, Raw(data)),)
    entry = entries.ApprovalEdited(OP, "a~1", "me", NOW, edits)
    return edited(ASKED, entry, lambda place, arguments: PLACED.remake(arguments), "a~1#2")


def beside(data: bytes) -> Any:
    """Look whether a late outcome contradicts what somebody has said."""
    request: Any = SimpleNamespace(definition=None)
    effect = EffectOperation(OP, request, cast("Any", None), 1, None, "", cleared=3)
    machine: Any = SimpleNamespace(find=lambda operation: effect)
    entry = entries.EffectCompleted(OP, "ship", Raw(b"1"), "late")
    message = Message("late/1", MessageKind.OUTCOME, "r:1", "w", data)
    proposal = contradiction(Proposal(Rank.OUTCOME, entry), message, machine)
    assert proposal is not None
    assert proposal.entry is not None
    return from_row(to_row(proposal.entry, 0, 0))


HEAD = RunHead(
    run=RUN, generation=1, workflow="flow", fingerprint="", status=Status.WAITING, reason="", owner=None, epoch=1,
    version=1, next_seq=1, digest=b"", wake_at=None, mail=False, lapses=0, created_at=NOW, changed_at=NOW, note=b"",
)  # fmt: skip
TERMS = msgspec.json.encode(
    Terms(
        "boss", timedelta(1), None, 2, True, "yes", (Rung("chief", timedelta(1)),), (timedelta(1),)
    )
)
NOTE = b'{"timers":{"r:1":"2026-01-01T00:00:00Z"},"approvals":{},"retries":{},"signals":["go"],"in_doubt":{},"alarms":[],"deadline":"2026-01-01T00:00:00Z","completions":{"r:1":"2026-01-01T00:00:00Z","r:2":null},"silences":{"r:1":["2026-01-01T00:00:00Z",3]},"deadlines":{"r:1":"2026-01-01T00:00:00Z"}}'

NAIVE_NOTE = NOTE.replace(b"00Z", b"00")


def plan(number: int) -> Tree:
    return Tree()


PLAN: Step[..., Any] = Step(plan, "plan", AttemptOptions(), Placement("gpu"))


def end_task(data: bytes) -> Any:
    """Take in the end of the task of an open step: it has an outcome, or another attempt, and the message is read."""
    request = StepRequest("plan", b"{}", PLAN.result.decode, ())
    step: Any = StepOperation(OP, request, cast("Any", None))
    machine: Any = SimpleNamespace(find=lambda operation: step if operation == OP else None)
    begins: Any = None
    bridge: Any = SimpleNamespace(run_key=RUN, store_now=lambda: NOW, row=lambda operation: None)
    row = TaskRow(TaskKey(RUN, 1, "r:1", 1), "gpu", "plan", WorkerId("w"), NOW, 1)
    remote = RemoteSteps(bridge, lambda name: PLAN, machine, Waits(), begins, [row])
    message = Message("task/r:1/1/w", MessageKind.OUTCOME, "r:1", "w", data)
    proposal = remote.proposal_of(StampedMessage(message, NOW, 1), 1)
    assert proposal is not None
    assert proposal.consumed == message.message_id
    if proposal.entry is not None:
        assert isinstance(proposal.task, TaskDrop)
        from_row(to_row(proposal.entry, 0, 0))
    if proposal.row is not None:
        assert isinstance(proposal.task, TaskDrop if proposal.row.awaits else TaskPut)
        standings([], [proposal.row])
    return proposal


def recall(data: bytes) -> Any:
    waits = Waits()
    waits.recall(data)
    command: Any = SimpleNamespace(operation=OP, due=NOW, armed_at=NOW + timedelta(days=1))
    waits.add_timer(command, NOW)
    waits.add_deadline(
        entries.Started("flow", Raw(b"{}"), b"", "r", timeout_seconds=60.0),
        NOW + timedelta(days=1),
        NOW,
    )
    far = [Rest(NOW + timedelta(days=9), timedelta(days=1)) for _ in range(2)]
    waits.add_completion(OP, Completion(far[0], far[1], 3), NOW)
    waits.deadline(OP, NOW + timedelta(days=1), timedelta(days=1), NOW)
    return waits.next_due(), waits.wake_at(), waits.note()


def rest_after(data: bytes) -> Any:
    row = OperationPut("r:1", "step", "plan", 3, NOW, data)
    return rest_of(row, NOW, AttemptOptions(RetryPolicy(), None, ()))


def waiting(data: bytes) -> Any:
    return status_of(msgspec.structs.replace(HEAD, note=data))


def room(data: bytes) -> Any:
    blocked = {"status": Status.BLOCKED, "reason": "history", "note": data}
    return room_in(msgspec.structs.replace(HEAD, **blocked))


def asked(body: bytes) -> Any:
    put = ApprovalPut("a~1", "r:1", "boss", "a" * 64, NOW, NOW, (), body)
    view = view_of(ApprovalRow(RUN, put, "pending", ("",), NOW))
    return msgspec.json.encode(view)


LINKS = Links("k" * 32)
TOKEN_OF_LINK = LINKS.token("default", "r", "a~1", NOW + timedelta(hours=1)).encode()
CHANNELS = b"""link_base = "https://x.example/a"
key = ["kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"]
show = "full"
[channels]
boss = ["json://localhost"]
"""
INCOMING = b'{"run_id":"r","approval_id":"a~1","decision":"deny","seen_sha256":"%s","by":"me"}' % (
    b"a" * 64
)


def noticed(body: bytes) -> Any:
    put = ApprovalPut("a~1", "r:1", "boss", "a" * 64, NOW, NOW, (), body)
    row = ApprovalRow(RUN, put, "pending", (), NOW)
    notice = NoticeRow("default", "r", 1, "a~1", "asked", NOW, NOW)
    return message_of(DueNotice(notice, row, "flow"), "full", "", NOW)


def noticed_genuinely(subject: bytes) -> Any:
    body = {**msgspec.json.decode(BODIES["approval_requested"]), "subject": Raw(subject)}
    put = ApprovalPut("a~1", "r:1", "boss", sha256(subject).hexdigest(), NOW, NOW, (), b"")
    put = msgspec.structs.replace(put, body=msgspec.json.encode(body))
    notice = NoticeRow("default", "r", 1, "a~1", "asked", NOW, NOW)
    row = ApprovalRow(RUN, put, "pending", (), NOW)
    return message_of(DueNotice(notice, row, "flow"), "full", "", NOW)


def approval_row(
    text: str = "[]",
    terms: str = "",
    kind: str = "approval",
    persons: str = "[[],[]]",
    votes: str = "[]",
) -> Any:
    cells = (
        "default",
        "r",
        "a~1",
        "r:1",
        "boss",
        "a" * 64,
        0,
        0,
        text,
        text,
        "pending",
        0,
        None,
        "",
        b"",
        terms,
        kind,
        persons,
        votes,
    )
    return approval_of(cells)


def stored(read_row: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """Return a reader of a text column, as it is called: what is no UTF-8 never gets that far."""

    def call(data: bytes) -> Any:
        with naming("a row"):
            return read_row(data.decode())

    return call


def in_file(function: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Return a function of bytes that reads them from a file."""

    def call(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "it.json"
            path.write_bytes(data)
            return function(path)

    return call


def _asked_of_it(row_of: Callable[[bytes], StickyPut]) -> Callable[[bytes], Any]:
    """Return a function that holds a call against what a decision asks of arguments."""
    action = Effect(_pay, "pay", AttemptOptions(), EffectOptions(idempotent=True)).remake(
        b'{"amount":5}'
    )

    def call(data: bytes) -> Any:
        row = StickyRow(
            "default", "s1", "r", 1, "flow", "1~r:1", "boss", True, "ann", "", NOW, row_of(data)
        )  # fmt: skip
        return _asks_for(row, action)

    return call


async def _pay(amount: int) -> int:
    return amount


_sticks_where = _asked_of_it(lambda data: StickyPut("s1", "pay", "run", where=data))
_sticks_when = _asked_of_it(lambda data: StickyPut("s1", "pay", "run", when=data))


def of_text(function: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: function(data.decode("utf-8", "surrogateescape"))


def manifest(path: str) -> Callable[[bytes], Any]:
    """Return a reader of a manifest's text, as it is called: what is no UTF-8 never gets that far."""

    def call(data: bytes) -> Any:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return ()
        return pins_of(text, "x", path=path)

    return call


def problem_of(data: bytes) -> Any:
    request = httpx.Request("POST", "http://localhost/")
    return str(error_of(httpx.Response(422, content=data, request=request), redact))


def refused(data: bytes) -> Any:
    request = httpx.Request("POST", "http://localhost/", headers={"Idempotency-Key": "k"})
    answer = httpx.Response(422, content=data, headers={"Content-Type": "application/problem+json"})
    return str(final_error(request, answer, passage_of(request, ())))


def intended(data: bytes) -> Any:
    entry = EffectIntended(OP, "ship", "k", Raw(data), Raw(data), "")
    return standings([(entry, NOW, 0)], [])


def pulls_of(data: bytes) -> Any:
    client: Any = object.__new__(GitHub)
    response = httpx.Response(200, content=data, request=httpx.Request("GET", "http://localhost/"))
    return [pull.value() for pull in client._read(response, 200, list[_Pull])]


def ordered(data: bytes) -> Any:
    return [Fault.of(one) for one in [parse(data)]]


def shown_result(data: bytes) -> Any:
    return plain({"value": Raw(data)})


def golden(data: bytes) -> Any:
    return Golden.from_json(data).turns()


def details(data: bytes) -> Any:
    """Read what another attempt has left."""
    context = contextvars.copy_context()
    context.run(current_attempt.set, Attempt("default", "r", "r:1", "plan", 2))
    context.run(current_beats.set, Beats(lambda: 0.0, data))
    return context.run(heartbeat_details, Tree)


TOKEN = b'{"tenant":"default","run":"r","generation":1,"operation":"r:1","step":"plan"}'
WAIT = b'{"type":"demo.RateLimited","message":"x","details":{"retry_after":5.5}}'
RECORD = b'{"id":"GHSA-1","affected":[{"package":{"ecosystem":"PyPI","name":"x"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"1.2"}]}],"versions":["1.0"]}]}'
ANSWER = (
    b'{"choices":[{"message":{"content":"{\\"version\\":\\"1.2\\",\\"rationale\\":\\"x\\"}"}}]}'
)
PULLS = b'[{"number":1,"html_url":"http://x/1","title":"x","state":"open","head":{"ref":"a","sha":"b","repo":{"full_name":"o/n"}},"base":{"ref":"main"}}]'
TOML = b'[project]\ndependencies = ["x==1.0", "y>=2"]\n'
POLICY = b"""mode = "plan"
agents = { researcher = ["search", "files:read_*"] }
[[deny]]
tool = "delete_*"
tenant = "prod-*"
between = { zone = "UTC", days = ["mon-fri"], hours = "08:00-18:00" }
[[ask]]
tool = "pay"
expires_in = "72h"
when = { amount = { greater = 1.5, in = [1, "2"] }, "to.path" = { inside = "/srv", matches = "[a-z/]+" } }
"""
STOPS = Stops((Stop(scope="tool", name="files:pay*", at=NOW), Stop(scope="everything", at=NOW)))
RELEASES = (
    Releases()
    .putting_back(Restoration("b", "a", NOW, NOW, "it was restored"))
    .releasing(Released(NOW, "me", "looked at", "everything", 2), everything=True)
)
SWITCH = Switch().stopping(
    Stop(scope="tool", name="files:pay*", by="ann", at=NOW, reason="paid twice")
)
ROLE_ROW = (
    first_bindings("me")
    .granting(RoleBinding(subject="ann", role="boss", resource="pay_*"), NOW, "why")
    .granting(
        RoleBinding(subject="bob", role="boss", until=NOW + timedelta(1), delegated_by="ann"), NOW
    )
)
PIN_RECORD = PinRecord().pinning(
    Pin(server="files", tool="read", sha256="a" * 64, first_seen=NOW), reason="read it"
)
PINS = Pins((Pin(server="files", tool="read", sha256="a" * 64, first_seen=NOW),))
RESOLUTION = msgspec.json.encode(Resolution("r:1", 1, "applied", Raw(b"5"), FAILURE))
TOLD = [
    msgspec.json.encode(Resolution("r:1", 1, outcome, Raw(b"5"), FAILURE, status=status))
    for outcome, status in (
        ("started", ""),
        ("refused", ""),
        ("ended", "failed"),
        ("ended", "completed"),
        ("sent", ""),
        ("unsent", ""),
    )
]
LATE = [
    msgspec.json.encode(Resolution("r:1", 1, outcome, Raw(b"5"), FAILURE, by="w", name="ship"))
    for outcome in ("returned", "raised")
]
OUTCOMES = [
    msgspec.json.encode(TaskOutcome("r:1", "plan", 1, 1, "completed", Raw(TREE))),
    msgspec.json.encode(TaskOutcome("r:1", "plan", 1, 1, "failed", failure=FAILURE)),
    msgspec.json.encode(
        TaskOutcome("r:1", "plan", 1, 1, "failed", failure=FAILURE, progress=Raw(TREE))
    ),
    msgspec.json.encode(TaskOutcome("r:1", "plan", 1, 1, "handed_out", progress=Raw(TREE))),
    msgspec.json.encode(TaskOutcome("r:1", "plan", 1, 1, "lost")),
]
GOLDEN = Golden(
    1, "flow", "default", "r", 1,
    (GoldenRow(0, 0, "started", "", "", NOW, BODIES["started"].decode()), GoldenRow(1, 1, "taken", "", "", NOW, BODIES["taken"].decode())),
    ({}, {"unread": ["m1"]}),
)  # fmt: skip
DECISION = msgspec.json.encode(Decision("a~1", "r:1", True, "me", "fine", "a" * 64))
SIGNER = SigningKey.generate()
SIGNED = sign(b'{"amount":5,"text":"x"}', "note", key=SIGNER, at=NOW)
RECEIPT = msgspec.json.encode(
    receipt_of(
        [
            StampedRow(to_row(each, seq, seq), NOW + timedelta(seconds=seq))
            for seq, each in enumerate(
                [
                    entries.Started("flow", Raw(b"{}"), b"0123456789abcdef", "r"),
                    entries.ApprovalRequested(
                        OP, "1~r:1", "boss", Raw(SUBJECT), hashlib.sha256(SUBJECT).hexdigest(),
                        (entries.Cover("ship", action_sha256="a" * 64),), NOW + timedelta(hours=1), NOW + timedelta(hours=1),
                        terms=Terms("boss", timedelta(hours=1)), requesters=("you",),
                    ),
                    entries.ApprovalDecided(OP, "1~r:1", True, "me", "fine", hashlib.sha256(SUBJECT).hexdigest(), NOW),
                    entries.EffectIntended(
                        OperationId("r:2"), "ship", "k" * 32, Raw(b'{"place":"here"}'), Raw(b'{"place":"here"}'), "a" * 64,
                        grant=entries.GrantUse("1~r:1", 0),
                    ),
                    entries.EffectCompleted(OperationId("r:2"), "ship", Raw(b'"sent"')),
                ]
            )
        ],
        Place("default", "r", 1),
        "1~r:1",
        with_results=True,
    )
)  # fmt: skip


def proved(data: bytes) -> Any:
    """Read a receipt, hold it to what it says, and show it."""
    receipt = read_receipt(data)
    return prove(receipt), [_subject(one) for one in receipt.requests]


USAGE = __import__("typer").BadParameter
_parse = ("journal.parse:parse_as",)

DECODERS: dict[str, Decoder] = {
    **{f"entry {kind}": Decoder(read_entry(kind), [body], ("journal.entry:from_row",)) for kind, body in BODIES.items()},
    **{f"shown {kind}": Decoder(show_entry(kind), [body], ("client.view:JournalEntry.__repr__",)) for kind, body in BODIES.items()},
    **{f"message {kind.value}": Decoder(take_in(kind), seeds, ("worker.inbox:_entry_of", "worker.inbox:_told", "worker.decision:decided", "worker.inbox:_accepted"), ())
       for kind, seeds in {
           MessageKind.SIGNAL: [TREE, b'"x"'], MessageKind.UPDATE: [TREE, b'"x"'], MessageKind.CANCEL: [b'{"by":"me","reason":"x"}'],
           MessageKind.PAUSE: [b'{"by":"me","reason":"x"}'], MessageKind.RESUME: [b'{"by":"me","reason":"x"}'], MessageKind.DECISION: [DECISION],
           MessageKind.RESOLUTION: [RESOLUTION], MessageKind.OUTCOME: [RESOLUTION, *TOLD, *LATE],
           MessageKind.ACCEPT: [b'{"generation":1,"entry":7,"history":100000,"by":"me","reason":"fine"}']}.items()},
    "word of another run": Decoder(told, TOLD, ("worker.inbox:_told",), ()),
    "late outcome": Decoder(beside, LATE, ("worker.late:contradiction",), (NotJsonError,)),
    "body of a start": Decoder(start_of, [b'{"arguments":{"a":1},"tells_start":true}'], ("worker.relay:Relay._start",), (ValueError,)),
    "end of a task": Decoder(end_task, OUTCOMES, ("worker.outcome:read_outcome",), ()),
    "failure": Decoder(raise_again, [BODIES["failed"]], ("journal.entry:from_row",)),
    "codec": Decoder(TREES.decode, [TREE], ("journal.codec:TypeCodec.decode",)),
    "codec of anything": Decoder(WITH_DAYS.decode, [b'{"a":[1,{}]}', b"[" + TREE + b"]", b"null"], ("journal.codec:TypeCodec.decode",)),
    "signal": Decoder(lambda data: misfit(DECLARED.name, data), [TREE], ("journal.codec:TypeCodec.decode",), ()),
    "answer to an update": Decoder(lambda data: _answer_in(data, RUN), [BODIES["update_answered"]], ("client.update:_answer_in",)),
    "untyped value": Decoder(lambda data: read(data, "the result"), [TREE], ("client.update:result_of", "client.handle:RunHandle._decode", "workflows.child:ExternalRun._decode", "client.handle:RunHandle.query", "demo.stage:_url", "journal.parse:read", "journal.parse:read_as")),
    "note": Decoder(recall, [NOTE, NAIVE_NOTE], ("worker.wait:Waits.recall",), ()),
    "mail": Decoder(lies_in_the_inbox, TOLD, ("client.mail:_mail",), ()),
    "waits": Decoder(waiting, [NOTE], ("client.view:_waits_in",), ()),
    "room": Decoder(room, [NOTE, b'{"room":{"least":21,"more":40}}'], ("client.view:room_in",), ()),
    "asked": Decoder(asked, [BODIES["approval_requested"]], ("client.view:_subject_in",), ()),
    "edit of a request": Decoder(edit, [b'{"place":"there"}', b'{"n":1}'], ("replay.asking:_made",), ()),
    "request that is edited": Decoder(lambda data: with_actions(data, {0: ("b" * 64, {"place": '"there"'})}), [SUBJECT],
                                      ("journal.subject:_body", "journal.subject:_values"), (NotJsonError, OutlastError)),
    "request that is asked again": Decoder(lambda data: with_note(data, "no"), [SUBJECT], ("journal.subject:_body",), (NotJsonError, OutlastError)),
    "subject": Decoder(lambda data: still_asks(data, SUBJECT), [SUBJECT], ("approvals.request:_without_hashes",), ()),
    "cover": Decoder(lambda data: _Cover("a~1", 0, entries.Cover("ship"), data).arguments(), [SUBJECT], ("replay.ledger:_Cover.arguments",), ()),
    "arguments of an intent": Decoder(intended, [b'{"a":1}'], ("effects.standing:_readable",), ()),
    "alarm": Decoder(lambda data: alarms([(AlarmRaised(OP, "unfit_outcome", Raw(data)), NOW)]), [b'{"operation":"r:1","by":"me","why":"x"}', ALARM], ("effects.standing:_readable",), ()),
    "last failure": Decoder(lambda data: standings([], [OperationPut("r:1", "step", "plan", 1, None, data)]), [msgspec.json.encode(FAILURE)], ("effects.standing:failure_in",), ()),
    "rest after a failure": Decoder(
        rest_after, [msgspec.json.encode(FAILURE), WAIT], ("worker.series:rest_of",), ()
    ),
    "approval row": Decoder(stored(approval_row), [b'[{"effect":"ship","match_sha256":"x"}]', b'["r:1"]'], ("store.row_people:approval_of",)),
    "terms of an approval row": Decoder(stored(lambda text: approval_row(terms=text)), [TERMS], ("store.row_people:approval_of",)),
    "kind of an approval row": Decoder(stored(lambda text: approval_row(kind=text)), [b"approval", b"question"], ("store.row_people:approval_of",)),
    "persons of an approval row": Decoder(stored(lambda text: approval_row(persons=text)), [b'[["me"],["you"]]'], ("store.row_people:approval_of",)),
    "votes of an approval row": Decoder(stored(lambda text: approval_row(votes=text)), [b'[{"by":"me","at":"2026-01-01T00:00:00Z","behalf":"you"}]'], ("store.row_people:approval_of",)),
    "worker row": Decoder(stored(lambda text: worker_of((text, text, 1, "b", text, 5, "boot", 1, text, 0))), [b'["flow"]'], ("store.row:_names_in",)),
    "run row": Decoder(stored(lambda text: head_of(("t", "r", 1, "w", "f", text, "", None, 1, 1, 1, b"", None, 0, 0, 0, 0, b"", text, 1, text, 0, None, None))), [b"waiting"], ()),
    "report of a worker": Decoder(report_in, [b'{"library":"1","runs":1,"tasks":0,"numbers":{"counts":{"a":{"b":1}},"measures":{"c":{"count":1,"mean":1,"p99":1,"largest":1}}}}'], ("worker.report:report_in",), ()),
    "operation row": Decoder(stored(lambda text: operation_of((text, "step", text, -5, None, text.encode(), text.encode(), 7, -1, -(1 << 63), None, (1 << 63) - 1, 0, 7))), [b"r:1"], ()),
    "outbox row": Decoder(stored(lambda text: outbox_of(("t", "r", 1, "t", text, text, text, "n", "s", b"", 1, text, 0, text, text))), [b"signal"], ()),
    "request row": Decoder(stored(lambda text: request_of(("t", "k", "f", text, text, 0, -1, -1, None, text, text, (1 << 55), text.encode(), b""))), [b"running", b"freed"], ()),
    "signed document": Decoder(lambda data: verify(data, "note", key=SIGNER.public, now=NOW), [SIGNED], ("crypto.signing:_data_of", "crypto.signing:_document_of"), (SignatureError,)),
    "body of a signed document": Decoder(lambda data: sign(data, "note", key=SIGNER, at=NOW), [TREE, b'{"a":[1,2.5,"x"]}'], ("crypto.signing:_json",)),
    "public key": Decoder(VerifyingKey.from_pem, [SIGNER.public.to_pem().encode()], (), (SigningKeyError,)),
    "receipt": Decoder(proved, [RECEIPT], ("approvals.receipt:read_receipt", "approvals.proof:_object", "approvals.proof:_arguments", "approvals.proof:_cover_as_shown", "approvals.proof:_differs", "cli.receipt:_subject"), (ReceiptError,)),
    "notice row": Decoder(stored(lambda text: notice_of(("t", "r", 1, "a", text, 0, -1, 1, "open", text, b""))), [b'["mail-1"]'], ("store.row_people:notice_of",)),
    "message about a request": Decoder(noticed, [BODIES["approval_requested"]], ("notify.message:_asked_in",), ()),
    "subject in a message": Decoder(noticed_genuinely, [SUBJECT], ("notify.message:_asked_in",), ()),
    "file of channels": Decoder(of_text(read_notify), [CHANNELS], ("notify.file:read_notify",), (DefinitionError,)),
    "base of links": Decoder(of_text(_is_base), [b"https://x.example/a", b"http://[::1]:80"], ("notify.setting:_is_base",), ()),
    "token of a link": Decoder(of_text(lambda text: LINKS.read(text, NOW)), [TOKEN_OF_LINK], ("notify.link:Links.read",), ()),
    "decision by webhook": Decoder(lambda data: parse_as(_incoming, data), [INCOMING], ("http.decision:Mailroom.answer",), (ValueError,)),
    "kept answer": Decoder(kept_answer, [b'{"status":201,"headers":[["location","/1"]],"body":"paid"}', b'{"status":200,"body_base64":"/w=="}', b'{"status":201,"unkept":"is too large"}'], ("http.answer:decode",)),
    "answer that a person wrote": Decoder(written_answer, [b'{"status":201,"headers":[["location","/1"]],"body":"paid"}'], ("http.answer:decode_written",)),
    "note of a request": Decoder(is_guarded, [b'{"method":"POST","path":"/1","principal":"ann","tenant":""}', TREE], ("cli.answer:is_guarded",), ()),
    "idempotency key": Decoder(lambda data: KeyFormat().read({"headers": [(b"idempotency-key", data)]}), [b'"order-1";a=1'], (), (ValueError,)),
    "bare idempotency key": Decoder(lambda data: KeyFormat(lenient=True).read({"headers": [(b"idempotency-key", data)]}), [b'"order-1"', b"order-1"], (), (ValueError,)),
    "unfit builds": Decoder(stored(unfit_of), [b'"one"\n"two"'], ("store.row:unfit_of",)),
    "argument of a command": Decoder(of_text(json_of), [TREE], ("cli.session:json_of",), (USAGE,)),
    "completion token": Decoder(lambda data: CompletionToken.read(base64.urlsafe_b64encode(data).decode()), [TOKEN], ("workflows.completion:CompletionToken.read",), (DefinitionError,)),
    "text of a completion token": Decoder(of_text(CompletionToken.read), [base64.urlsafe_b64encode(TOKEN)], ("workflows.completion:CompletionToken.read",), (DefinitionError,)),
    "progress": Decoder(lambda data: standings([], [OperationPut("r:1", "step", "plan", progress=data)]), [TREE], ("effects.standing:_readable",), ()),
    "heartbeat details": Decoder(details, [TREE], ("journal.codec:TypeCodec.decode",)),
    "length of time": Decoder(of_text(parse_length), [b"15s", b"1.5h"], (), (ValueError,)),
    "shown value": Decoder(shown_result, [TREE], ("cli.output:plain",)),
    "URL": Decoder(of_text(sqlite_file), [b"sqlite:///x.db", b"postgres://a:b@[::1]:5/x"], ("app:_parts",)),
    "URL of PostgreSQL": Decoder(of_text(read_setting), [b"postgresql://a:b@[::1]:5,h/x?schema=s&listen=off&pooler=session"], ("store.postgres.setting:_parts",)),
    "OSV record": Decoder(read_record, [RECORD], ("demo.osv:read_record",)),
    "answer of a model": Decoder(_answer, [ANSWER], ("demo.model:_answer",)),
    "answer of GitHub": Decoder(problem_of, [b'{"message":"no","errors":[{"code":"x"},"y"]}'], ("demo.github_error:_problem",), ()),
    "refusal of a receiver": Decoder(refused, [b'{"title":"used","detail":"the key is used"}'], ("http.reply:_problem_in",), ()),
    "pull requests": Decoder(pulls_of, [PULLS], ("demo.github:GitHub._read",)),
    "order of a fault": Decoder(ordered, [b'{"fault":"hold","on":"create","times":2}'], ("demo.forge_double:Handler._control", "demo.forge_state:Fault.of", "demo.forge_double:main", "demo.forge_double:_logged", "demo.forge_answer:Forge._create"), (ValueError,)),
    "golden journal": Decoder(golden, [GOLDEN.to_json().encode()], ("testing.golden:exported",)),
    "policy": Decoder(PolicyFile("policy.toml")._parse, [POLICY], ("policy.toml:_table_of",)),
    "roles": Decoder(Bindings.decode, [ROLE_ROW.encode()], ("policy.binding:Bindings.decode",)),
    "kill switch as it is kept": Decoder(Switch.decode, [SWITCH.encode()], ("policy.switch:Switch.decode",)),
    "edits that were typed": Decoder(of_text(lambda text: edits_typed([], text)), [b'{"0":{"amount":5}}'], ("cli.session:json_of",), (USAGE,)),
    "one edit that was typed": Decoder(of_text(lambda text: edits_typed([text], "")), [b'0.amount={"a":5}'], ("cli.session:json_of",), (USAGE,)),
    "kill switch": Decoder(Stops.decode, [STOPS.encode()], ("policy.stop:Stops.decode",)),
    "pinned definitions": Decoder(Pins.decode, [PINS.encode()], ("policy.pin:Pins.decode",)),
    "what was released after a restore": Decoder(Releases.decode, [RELEASES.encode()], ("store.restoration:Releases.decode",)),
    "what a parked run's app was told": Decoder(told_in, [b'{"blocked": ["in doubt", 3]}'], ("worker.parked:told_in",)),
    "who is local": Decoder(LocalUser.decode, [LocalUser("me", NOW).encode()], ("policy.local:LocalUser.decode",)),
    "pins as they are kept": Decoder(PinRecord.decode, [PIN_RECORD.encode()], ("policy.pinned:PinRecord.decode",)),
    "what sticks, where": Decoder(_sticks_where, [b'{"amount":"5"}'], ("worker.sticky:_asks_for", "worker.sticky:_shown")),
    "what sticks, when": Decoder(_sticks_when, [b'[["amount","at_most",50]]'], ("worker.sticky:_asks_for", "worker.sticky:predicates")),
    "what is shown of what sticks": Decoder(lambda data: (sticky_view._same(data), sticky_view._words(data)), [b'{"amount":"5"}', b'[["amount","at_most",50]]'], ("client.sticky:_same", "client.sticky:_words")),
    "definition in a file": Decoder(in_file(lambda path: tool_in(path, "files", "read")), [b'{"name":"read","inputSchema":{"type":"object"}}', b'{"tools":[{"name":"read","inputSchema":{"type":"object"}}]}'], ("cli.pin:tool_in",), (USAGE,)),
    "TOML": Decoder(manifest("pyproject.toml"), [TOML], ("demo.manifest:_toml",)),
    "requirements": Decoder(manifest("requirements.txt"), [b"x==1.0 ; python_version > '3'\ny>=2\n"], ()),
    "canonical form of what was read": Decoder(lambda data: canonical(read(data, "it")), [TREE], ("journal.parse:parse",)),
    "typed JSON": Decoder(lambda data: parse_as(msgspec.json.Decoder(Failure), data), [msgspec.json.encode(FAILURE)], _parse, (ValueError,)),
}  # fmt: skip

EXCEPTIONS = {
    "store.postgres.load:Loading._of_run.take": "calls the readers of rows that are listed above",
    "store.postgres.read:_read": "calls the readers of rows that are listed above",
    "workflows.definition:Effect._action_sha256": "what `canonical` wrote a line before",
    "journal.subject:subject_of": "what `canonical` and the codec wrote in the same call",
    "journal.subject:_fact": "what `canonical` and the codec wrote in the same call",
    "worker.permit:Finder._call": "what the codec wrote of this call, or `from_row` has read",
    "replay.ledger:EffectLedger._nearest": "what `canonical` wrote of this call",
    "replay.ledger:EffectLedger._alike": "what `canonical` wrote of this call",
    "worker.permit:Finder.__init__": "it reads rows, which the store decodes",
    "client.update:_message": "what the codec wrote in the same call",
    "client.approval:Approvals.answer": "what the codec wrote in the same call",
    "client.approval:Approvals.edit": "what the codec wrote in the same call, beside what `client.view` has read",
    "client.approval:_arguments": "what the codec wrote in the same call",
    "client.explain:_Teller._retry": "a time that `client.view` has checked",
    "client.explain:_Teller._noted_time": "a time that `client.view` has checked",
    "client.explain:_Teller._noted_waits": "a time that `client.view` has checked",
    "client.explain:_Teller._task": "a time that `client.view` has checked",
    "cli.show:_due": "a time that `client.view` has checked",
    "testing.attempt:attempt.heard": "what the codec wrote in the same call",
    "demo.forge_state:RequestLog.records": "the double's own file, which it wrote in this demo",
    "demo.forge_state:PullStore.__init__": "the double's own file, which it wrote in this demo",
    "demo.forge_process:ForgeProcess.start": "the first line of a child process of the demo",
    "demo.forge_process:ForgeProcess.pulls": "the double's own file, read by tests",
    "demo.forge_process:ForgeProcess.log": "the double's own file, read by tests",
    "demo.forge_double:Handler._serve": "the line of a request to the double, which another process of the demo made",
    "demo.setting:Setting.bodies": "a tally that the demo wrote, read by tests",
}
"""Places that decode what the same process wrote, or the demo's own files, with the reason why they are no decoders."""
