"""A run that has asked somebody, on a store in memory whose clock stands, and a channel that notes what it is given."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Raw

from outlast.client import Client
from outlast.journal.asking import Terms
from outlast.journal.canonical import canonical, sha256_of
from outlast.journal.entry import ApprovalRequested, OperationId
from outlast.notify import Notifier, Notify
from outlast.store.change import (
    ApprovalPut,
    ApprovalRow,
    CoverRow,
    Decide,
    DueNotice,
    Message,
    MessageKind,
    RunKey,
)
from outlast.store.memory import MemoryStore
from outlast.store.notice import NoticeRow
from outlast.testing import SeededRandom
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import following

HOUR = timedelta(hours=1)
SUBJECT: dict[str, Any] = {"title": "raise urllib3 to 2.6.3"}
COVER: dict[str, Any] = {
    "effect": "open_pull_request",
    "kind": "call",
    "action_sha256": "a" * 64,
    "arguments": {"patch": "secret-payload"},
}
TERMS = Terms("maintainer", HOUR)


def request(
    clock: Any, subject: Any = None, terms: Terms = TERMS, covers: Any = (COVER,), **fields: Any
) -> ApprovalPut:
    """Return a request as the engine makes it."""
    asked = {"subject": SUBJECT if subject is None else subject, "covers": list(covers)}
    expires_at, use_by = terms.deadlines(0, clock.now())
    entry = ApprovalRequested(
        operation=OperationId("r:1"),
        approval_id="1~r:1",
        role=terms.role,
        subject=Raw(canonical(asked)),
        subject_sha256=sha256_of(asked),
        covers=(),
        expires_at=expires_at,
        use_by=use_by,
        terms=terms,
        again=fields.pop("again", ""),
    )
    given: dict[str, Any] = {
        "role": terms.role,
        "subject_sha256": entry.subject_sha256,
        "kind": "approval",
        **fields,
    }
    return ApprovalPut(
        approval_id="1~r:1",
        operation="r:1",
        expires_at=expires_at,
        use_by=use_by,
        covers=tuple(CoverRow(one["effect"], "m") for one in covers),
        body=msgspec.json.encode(entry),
        terms=terms,
        **given,
    )


class Post:
    """A channel that notes what it is given, and fails when it is told to."""

    def __init__(self, name: str = "post", *, fails: int = 0) -> None:
        self.name = name
        self.fails = fails
        self.sent: list[tuple[str, str, str]] = []
        self.hangs = False

    async def send(self, title: str, body: str, notice_id: str) -> None:
        """Take a message."""
        if self.fails:
            self.fails -= 1
            raise ConnectionError("token=secret")
        self.sent.append((title, body, notice_id))
        if self.hangs:
            await asyncio.Event().wait()


class Office:
    """A store, its clock, and ways to ask and to decide."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.bench = Bench(self.store, self.clock)
        self.client = Client(self.store, random=SeededRandom(1), principal="tester")

    def notifier(self, *channels: Any, **setting: Any) -> Notifier:
        """Return a notifier for everybody."""
        return Notifier(self.store, Notify({"*": list(channels)}, **setting))

    async def ask(self, name: str = "run", tenant: str = "default", **fields: Any) -> RunKey:
        """Have a run ask, and return it."""
        worker = await self.bench.worker(f"w-{tenant}-{name}", lease=timedelta(days=9))
        run = await self.bench.start(name, tenant=tenant, worker=worker)
        put = request(self.clock, **fields)
        await self.bench.apply(following(await self.bench.head(run), approvals=(put,)))
        return run

    async def row(self, run: RunKey) -> ApprovalRow:
        """Return the run's only request."""
        (row,) = await self.store.approvals(run.tenant, pending=False, run=run)
        return row

    async def deny(self, run: RunKey) -> None:
        """Have somebody say no."""
        row = await self.row(run)
        message = Message("d", MessageKind.DECISION, "1~r:1", "bob", b"{}")
        await self.bench.apply(
            Decide(run, "1~r:1", row.put.subject_sha256, approved=False, by="bob", message=message)
        )

    async def states(self, run: RunKey) -> list[tuple[str, str, int]]:
        """Return name, state and tries of each notice of a run."""
        return [(one.notice, one.state, one.tries) for one in await self.store.notices(run)]

    async def due(self, run: RunKey, notice: str = "asked") -> DueNotice:
        """Return a notice as a notifier gets it."""
        row = await self.row(run)
        now = self.clock.now()
        place = (run.tenant, run.run_id, 1, "1~r:1", notice)
        return DueNotice(NoticeRow(*place, now, row.put.expires_at), row, "fix")
