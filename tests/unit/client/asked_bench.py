"""Runs that ask people, without a worker: the requests are rows of a store, as an owner writes them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from outlast.client import ApprovalView, Client
from outlast.journal.asking import Terms
from outlast.journal.canonical import canonical
from outlast.journal.entry import ApprovalRequested, Cover
from outlast.policy.authority import Authority, Principal, StoreAuthority
from outlast.store.change import ApprovalPut, CoverRow, RunKey
from outlast.store.memory import MemoryStore
from outlast.store.protocol import Store
from outlast.testing import SeededRandom
from outlast.testing.conformance.bench import Bench, ManualClock, following

T = TypeVar("T")

LOCAL = "me@here"
"""The local user, who holds every role while none are set."""

HOUR = timedelta(hours=1)
LONG = timedelta(days=9)
PAY = {
    "effect": "pay",
    "kind": "call",
    "action_sha256": "h1",
    "arguments": {"amount": 500, "to": "ann"},
}


def putting(  # noqa: PLR0913 - what a request is made of
    bench: Bench,
    approval_id: str = "1~r:1",
    *,
    terms: Terms | None = None,
    covers: Sequence[dict[str, Any]] = (PAY,),
    schema: Any = None,
    more: dict[str, Any] | None = None,
    **fields: Any,
) -> ApprovalPut:
    """Return a request as an owner writes it.

    Args:
        schema: Of the answer: makes it a question.
        more: Further keys of what is shown.
        fields: Further ones of the row, and of the entry where it has them.
    """
    terms = terms or Terms("treasurer", HOUR)
    shown: dict[str, Any] = {"subject": "refund?", "covers": list(covers), **(more or {})}
    if schema is not None:
        shown |= {"question": {"schema": schema}, "covers": []}
    body = canonical(shown)
    rows = [] if schema is not None else covers
    entry: dict[str, Any] = {
        "operation": "r:1",
        "role": terms.role,
        "kind": "question" if schema is not None else "approval",
    }
    entry |= {
        "expires_at": bench.clock.now() + terms.expires_in,
        "use_by": bench.clock.now() + 2 * HOUR,
        "terms": terms,
    }
    entry |= {"subject_sha256": hashlib.sha256(body).hexdigest(), **fields}
    of_row = {
        name: value
        for name, value in entry.items()
        if name not in {"again", "source", "rule", "policy_version"}
    }
    requested = ApprovalRequested(
        approval_id=approval_id,
        subject=Raw(body),
        covers=tuple(Cover(one["effect"], one["action_sha256"]) for one in rows),
        **entry,
    )
    return ApprovalPut(
        approval_id=approval_id,
        covers=tuple(CoverRow(one["effect"], one["action_sha256"]) for one in rows),
        body=msgspec.json.encode(requested),
        **of_row,
    )


class Asked(Bench):
    """A store with clients of several people."""

    def client(
        self,
        name: str = LOCAL,
        *,
        tenant: str = "default",
        roles: tuple[str, ...] | None = None,
        authority: Authority | None = None,
    ) -> Client:
        """Return somebody's client."""
        return client_of(self.store, name, tenant=tenant, roles=roles, authority=authority)

    async def ask(self, *puts: ApprovalPut, name: str = "run", **fields: Any) -> RunKey:
        """Return a new run that has made these requests; one of the usual kind by default."""
        worker = await self.worker(f"w-{name}", lease=LONG)
        run = await self.start(name, worker=worker, **fields)
        await self.apply(following(await self.head(run), approvals=puts or (putting(self),)))
        return run

    async def view(self, client: Client | None = None) -> ApprovalView:
        """Return the only request that waits."""
        (view,) = await (client or self.client()).approvals.list()
        return view

    async def state(self) -> str:
        """Return where the oldest request stands."""
        return (await self.store.approvals("default", pending=False))[0].state

    async def mail(self) -> list[dict[str, Any]]:
        """Return the bodies of the decisions in the run's inbox."""
        found = await self.store.mail(RunKey("default", "run"))
        return [msgspec.json.decode(one.message.body) for one in found]


def client_of(
    store: Store,
    name: str,
    *,
    tenant: str = "default",
    roles: tuple[str, ...] | None = None,
    authority: Authority | None = None,
) -> Client:
    """Return somebody's client of a store."""
    return Client(
        store,
        random=SeededRandom(name),
        tenant=tenant,
        principal=Principal(name, tenant, roles),
        authority=authority or StoreAuthority(store, LOCAL),
    )


def asked(test: Callable[[Asked], Awaitable[T]]) -> T:
    """Run a scenario on a store in memory, whose clock stands until it is moved."""

    async def main() -> T:
        clock = ManualClock()
        return await test(Asked(MemoryStore(clock), clock))

    return asyncio.run(main())
