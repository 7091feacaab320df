"""What is shown of rows that somebody, or a fault, has changed: nothing that is not there, and never an error of a decoder."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from outlast.client.view import status_of, view_of
from outlast.journal.asking import Rung, Terms
from outlast.journal.entry import ApprovalRequested
from outlast.store.change import ApprovalPut, ApprovalRow, CoverRow, RunHead, RunKey, Status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = b'{"subject":{"n":1},"covers":[{"effect":"pay","kind":"call","arguments":{"n":1}}]}'
DEEP = b'{"signals":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
NUMBER = b"9" * 100_000


def waits_of(note: bytes):
    """Return what a run with this note waits for."""
    head = RunHead(
        run=RunKey("default", "r"),
        generation=1,
        workflow="flow",
        fingerprint="f",
        status=Status.WAITING,
        reason="",
        owner=None,
        epoch=1,
        version=1,
        next_seq=1,
        digest=b"",
        wake_at=None,
        mail=False,
        lapses=0,
        created_at=NOW,
        changed_at=NOW,
        note=note,
    )
    return status_of(head).waits


def asked(subject: bytes) -> bytes:
    """Return the body of a request."""
    raw = msgspec.Raw(subject)
    return msgspec.json.encode(ApprovalRequested("r:1", "a1", "boss", raw, "h", (), NOW, NOW))


def approval(body: bytes, spent: tuple[str, ...] = ("",)):
    """Return how a pending request with this body is shown."""
    put = ApprovalPut(
        approval_id="a1",
        operation="r:1",
        role="boss",
        subject_sha256="no hash",
        expires_at=NOW,
        use_by=NOW,
        covers=(CoverRow("pay", "h"),),
        body=body,
    )
    return view_of(ApprovalRow(RunKey("default", "r"), put, "pending", spent, requested_at=NOW))


def test_note_of_a_worker_is_shown_as_plain_data():
    """What a worker notes when a run leaves its memory, and when it blocks, is what is shown."""
    note = {
        "timers": {"r:1": NOW},
        "approvals": {"a": NOW},
        "retries": {"r:2": NOW + timedelta(microseconds=1)},
        "signals": ["go"],
        "in_doubt": {"r:3": "timeout"},
        "alarms": ["misfit go"],
    }
    assert waits_of(msgspec.json.encode(note)) == msgspec.to_builtins(note, builtin_types=())
    assert waits_of(b'{"error":"why"}') == {"error": "why"}
    assert waits_of(b"") == {}


@pytest.mark.parametrize(
    "note",
    [
        b"\xff",
        b"[]",
        b"7",
        b"null",
        b'{"signals":7}',
        b'{"timers":["x"]}',
        b'{"timers":{"r:1":"soon"}}',
        b'{"timers":{"r:1":"2026-01-01T00:00:00"}}',
        b'{"retries":{"r:1":1e999}}',
        b'{"in_doubt":7}',
        b'{"error":{}}',
        b'{"more":' + NUMBER + b"}",
        DEEP,
        DEEP.replace(b"signals", b"more"),
        b"[" * 200_000,
        NUMBER,
    ],
)
def test_note_of_another_shape_is_no_note(note):
    """Nothing is taken out of what is no note, and nothing raises."""
    assert waits_of(note) == {}


def test_request_is_shown_as_it_was_asked():
    """Subject and covers are those of the entry."""
    shown = approval(asked(SUBJECT))
    assert shown.subject == msgspec.json.decode(SUBJECT)
    assert shown.spent == ("",)
    assert shown.genuine is False


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        NUMBER,
        b"[" * 200_000,
        DEEP,
        *(
            asked(subject)
            for subject in (b"7", b"[]", b"{}", b'{"subject":1,"covers":[7]}', NUMBER, DEEP)
        ),
    ],
)
def test_request_that_cannot_be_read_is_shown_empty(body):
    """It is listed, so that it is not lost, and not genuine, so that nobody decides it."""
    shown = approval(body)
    assert shown.subject == {"subject": None, "covers": []}
    assert (shown.spent, shown.genuine) == ((), False)


def test_request_with_other_covers_than_its_row_is_shown_empty():
    """What was spent is told for each cover, or not at all."""
    shown = approval(asked(SUBJECT), spent=())
    assert (shown.subject["covers"], shown.spent, shown.genuine) == ([], (), False)


def test_who_is_asked_next_is_shown_until_a_time_that_no_clock_can_show() -> None:
    """From the end of one on those of the next decide; of a rung that is reached, those that are left."""
    terms = Terms(
        "boss",
        timedelta(hours=1),
        escalate=(
            Rung("cfo", timedelta(hours=2)),
            Rung("owner", timedelta(days=1)),
            Rung("god", timedelta.max),
            Rung("nobody", timedelta(1)),
        ),
    )

    def shown(rung: int, state: str = "pending"):
        body = ApprovalRequested(
            "r:1", "a1", "boss", msgspec.Raw(SUBJECT), "h", (), NOW, NOW, terms=terms, rung=rung
        )
        put = ApprovalPut(
            approval_id="a1",
            operation="r:1",
            role="boss",
            subject_sha256="no hash",
            expires_at=NOW,
            use_by=NOW,
            covers=(CoverRow("pay", "h"),),
            body=msgspec.json.encode(body),
            terms=terms,
        )
        row = ApprovalRow(RunKey("default", "r"), put, state, ("",), requested_at=NOW)
        return [(one.role, one.at - NOW, one.expires_at - NOW) for one in view_of(row).next]

    hours = timedelta(hours=1)
    owner = ("owner", 2 * hours, 26 * hours)
    assert shown(0) == [("cfo", 0 * hours, 2 * hours), owner]
    assert shown(-1) == shown(0)
    assert shown(1) == [("owner", 0 * hours, 24 * hours)]
    assert shown(4) == shown(9) == []
    assert shown(0, "denied") == []
