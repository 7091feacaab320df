"""What a store promises of long names: the longest of each kind are kept together, and one byte more is refused before anything is written."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from outlast.journal.length import (
    APPROVAL_ID_BYTES,
    MESSAGE_ID_BYTES,
    NAME_BYTES,
    OPERATION_BYTES,
    RUN_ID_BYTES,
)
from outlast.store.change import (
    HeadUpdate,
    OperationPut,
    PutControl,
    Refused,
    RunHead,
    RunKey,
    StartRun,
    Status,
    TaskPut,
    Watch,
    WorkerId,
    WorkerRow,
    digest_of,
)
from outlast.store.condition import MAX_UNFIT_BUILDS
from outlast.testing.conformance.approval import LONG
from outlast.testing.conformance.bench import (
    LEASE,
    Bench,
    asking,
    following,
    letter,
    row,
    scenario,
    sending,
    starting,
)
from outlast.testing.conformance.notice import reminding

_CHANCE = random.Random(7)  # noqa: S311 - text that no compression makes shorter, and nothing secret


def longest(size: int) -> str:
    """Return a text of so many bytes in UTF-8, three for each character, which no index makes shorter."""
    text = "".join(chr(0x4E00 + _CHANCE.randrange(0x5000)) for _ in range(size // 3))
    return text + "x" * (size % 3)


TENANT, WORKFLOW, QUEUE = (longest(NAME_BYTES) for _ in range(3))
RUN = RunKey(TENANT, longest(RUN_ID_BYTES))
OTHER = RunKey(TENANT, longest(RUN_ID_BYTES))
NAME = longest(RUN_ID_BYTES)
OPERATION = longest(OPERATION_BYTES)


async def _owned(bench: Bench) -> RunHead:
    worker = WorkerId("w1")
    await bench.store.register(WorkerRow(worker, "host", 7, "b1", (WORKFLOW,), LONG, (QUEUE,)))
    watch = Watch(OTHER, 1, OPERATION)
    await bench.apply(_start(RUN, worker=worker, watch=watch))
    return await bench.head(RUN)


def _start(run: RunKey, **fields: Any) -> StartRun:
    return starting(run.run_id, tenant=run.tenant, workflow=WORKFLOW, **fields)


class LengthConformance:
    """The limits of names and ids, which are those of every store."""

    @scenario
    async def test_longest_names_are_kept(self, bench: Bench) -> None:
        """All of them on one run: in its journal, inbox, operations, tasks, requests and watches, and among what is due."""
        head = await _owned(bench)
        published = replace(row(head.next_seq, operation=OPERATION, kind="published"), name=NAME)
        doubt = OperationPut(OPERATION, "effect", NAME, in_doubt=True)
        task = TaskPut(longest(OPERATION_BYTES), 1, QUEUE, NAME, b"{}")
        request = reminding(bench, longest(APPROVAL_ID_BYTES), operation=OPERATION)
        acts = {"operations": (doubt,), "tasks": (task,), "approvals": (request,)}
        change = replace(following(head, entries=0, **acts), entries=(published,))
        await bench.apply(replace(change, digest=digest_of(change)))
        await bench.apply(sending(RUN, longest(MESSAGE_ID_BYTES)))
        await bench.apply(PutControl(TENANT, NAME, 0, b"{}"))
        claim = await bench.store.claim_tasks(
            WorkerId("w1"), frozenset({QUEUE}), frozenset({NAME}), limit=10
        )
        assert [one.row.key.operation for one in claim.tasks] == [task.operation]
        assert [one.operation for one in await bench.store.doubts(TENANT)] == [OPERATION]
        assert await bench.store.latest(RUN, "published", NAME) is not None
        assert len(await bench.store.notices(RUN)) > 0
        assert len(await bench.store.mail(RUN)) == 1

    @scenario
    async def test_run_that_fits_no_build_is_kept(self, bench: Bench) -> None:
        """However many builds do not fit it, under the longest names."""
        await _owned(bench)
        for number in range(MAX_UNFIT_BUILDS + 1):
            head = await bench.head(RUN)
            build = f"{_CHANCE.getrandbits(64):016x}"
            update = HeadUpdate(
                status=Status.BLOCKED, reason="pinned", release=True, unfit_build=build
            )
            await bench.apply(following(head, entries=0, head=update))
            worker = WorkerId(f"worker-{number}")
            await bench.store.register(
                WorkerRow(worker, "host", 7, f"b{number}", (WORKFLOW,), LEASE)
            )
            claim = await bench.store.claim(worker, frozenset({WORKFLOW}), 1)
            assert [one.head.run for one in claim.runs] == [RUN]

    @scenario
    async def test_longer_names_are_refused(self, bench: Bench) -> None:
        """Each by the place where it stands, and nothing of its change is written."""
        await bench.worker()
        long = longest(RUN_ID_BYTES + 1)
        assert await bench.one(starting(long)) == Refused("unstorable", "run_id")
        assert await bench.one(starting(tenant=longest(NAME_BYTES + 1))) == Refused(
            "unstorable", "tenant"
        )
        head = await bench.owned()
        longer = longest(MESSAGE_ID_BYTES + 1)
        assert await bench.one(sending(head.run, longer)) == Refused(
            "unstorable", "message.message_id"
        )
        put = OperationPut(longest(OPERATION_BYTES + 1), "effect", "pay")
        assert await bench.one(following(head, operations=(put,))) == Refused(
            "unstorable", "operations[0].operation"
        )
        asked = asking(bench.clock, longest(APPROVAL_ID_BYTES + 1))
        assert await bench.one(following(head, approvals=(asked,))) == Refused(
            "unstorable", "approvals[0].approval_id"
        )
        early = starting("other", messages=(letter(longer),))
        assert await bench.one(early) == Refused("unstorable", "messages[0].message_id")
        assert await bench.head(head.run) == head
