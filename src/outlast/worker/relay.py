"""Carries what runs ask of each other from the outbox of one to the inbox of another; one per worker.

No transaction needs two runs. An item is done in two: what it asks is written on the other run; then, in one change on the sender,
the item is cleared and the sender told what came of it. A worker sees at once to what its own commits put into outboxes, and to
everything that is left after `RELAY_AFTER`, whoever put it there. It never leaves the sender's tenant.

| the process dies, or the answer is lost | and then |
| --- | --- |
| before the first | the item is there; whoever sweeps next does it |
| between the two | it is done again: a start finds the run with the origin that it would have given (or, where that has ended and its id |
| | was used again, its first generation), a message is known by its id, a watch stands already, what was terminated has ended; then it |
| | is cleared, and the sender told under the same id. A message to a run that is no child, and that was restarted meanwhile, is a |
| | message to that one too: `restart` is a new run, which knows nothing of what the former one was sent |
| after the second | nothing is left to be done |

| two relays have the same item | and then |
| --- | --- |
| both write on the other run | the second writing is found written already |
| both tell the sender | the second telling has the id of the first, or finds that nobody waits |
| one comes much later | numbers are never used again, so that it clears nothing else; the sender, or the run that it names, may have ended or |
| | be another use of the id by then: generation and origin say so, and nothing is done |

Items of one sender for one target (a lane) are done in their order; one that cannot be done yet (a full inbox) holds up those behind
it, and nothing else. A lane in which something is damaged rests longer and longer between two tries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import msgspec

from outlast.clock import Random
from outlast.effects.intent import Resolution
from outlast.effects.key import namespace
from outlast.errors import (
    StoreError,
    StoreUnavailableError,
)
from outlast.journal.entry import (
    Cancelled,
    Completed,
    Entry,
    Failed,
    OperationId,
    Parent,
    StampedRow,
    Started,
    Taken,
    from_row,
    to_row,
)
from outlast.journal.failure import capture
from outlast.journal.parse import NotJsonError, parse_as
from outlast.store.change import (
    SAGA,
    Applied,
    Change,
    ClearOutbox,
    Conflict,
    DropWatch,
    Fenced,
    Message,
    MessageKind,
    OutboxItem,
    OutboxKind,
    PutMessage,
    PutWatch,
    Refused,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Verdict,
    Watch,
    WorkerId,
    born_head,
    fingerprint_of,
)
from outlast.store.farewell import PARTED
from outlast.store.protocol import RELAY_AFTER, Store
from outlast.worker.notice import (
    answer,
    end_told,
    has_ended,
    id_taken,
    not_readable,
    not_there,
    not_written,
    refusal,
)
from outlast.worker.outbox import ChildBody

logger = logging.getLogger("outlast.worker")

BATCH = 500
"""Items of one look at the outboxes."""

SWEEP_SECONDS = 1.0
"""Between two sweeps: what could not be done is tried again so often."""

LONGEST_REST_SECONDS = 300.0

_Lane: TypeAlias = tuple[RunKey, RunKey]
"""From one run to another."""

_bodies = msgspec.json.Decoder(ChildBody)


@dataclass(frozen=True, slots=True)
class Birth:
    """How a child is born into the hands of the relay's own worker.

    Args:
        owner: Returns the worker that a new run of this workflow is born claimed by.
        adopt: Gives it the run.
        taken: The entry that says so.
    """

    owner: Callable[[str], WorkerId | None]
    adopt: Callable[[RunHead, tuple[StampedRow, ...]], None]
    taken: Taken


class _Later(Exception):  # noqa: N818 - no error: the item stays where it is
    """It cannot be done yet."""


class _Rests:
    """Lanes in which something is damaged, and when they are tried again.

    Args:
        monotonic: Seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lanes: dict[_Lane, tuple[float, float]] = {}

    def add(self, lane: _Lane) -> None:
        """Let a lane rest, twice as long as the last time."""
        _, last = self._lanes.get(lane, (0.0, SWEEP_SECONDS / 2))
        rest = min(2 * last, LONGEST_REST_SECONDS)
        self._lanes[lane] = (self._monotonic() + rest, rest)

    def end(self, lane: _Lane) -> None:
        """Forget a lane that is mended."""
        self._lanes.pop(lane, None)

    def rests(self, lane: _Lane) -> bool:
        """Whether a lane is to be left alone now."""
        until, _ = self._lanes.get(lane, (0.0, 0.0))
        return self._monotonic() < until


class Relay:
    """Sees to outboxes.

    Args:
        store: Read from.
        submit: Writes a change; returns a definite verdict.
        random: For the seeds of children.
        birth: Where children may be born.
        monotonic: Seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        submit: Callable[[Change], Awaitable[Verdict]],
        random: Random,
        birth: Birth,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._submit = submit
        self._random = random
        self._birth = birth
        self._monotonic = monotonic
        self._runs: dict[RunKey, None] = {}
        self._sweep = False
        self._swept_at = -SWEEP_SECONDS
        self._rests = _Rests(monotonic)
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def wake(self, run: RunKey) -> None:
        """See to the outbox of a run now."""
        self._runs[run] = None
        self._begin()

    def sweep(self) -> float:
        """See to everything that is anybody's, unless that was done a moment ago; return when to ask again, in seconds."""
        wait = self._swept_at + SWEEP_SECONDS - self._monotonic()
        if wait > 0:
            return wait
        self._swept_at = self._monotonic()
        self._sweep = True
        self._begin()
        return SWEEP_SECONDS

    async def close(self, within: float = 0.0) -> None:
        """Begin nothing more, and return once what was begun is done, or given up.

        Args:
            within: Seconds.
        """
        if self._task is not None and within:
            await asyncio.wait({self._task}, timeout=within)
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        if not self._is_closed and (self._task is None or self._task.done()):
            create_task = asyncio.get_running_loop().create_task
            self._task = create_task(self._run(), name="outlast-relay")

    async def _run(self) -> None:
        while self._runs or self._sweep:
            run = next(iter(self._runs), None)
            if run is None:
                self._sweep = False
            else:
                del self._runs[run]
            try:
                await self._see_to(run)
            except StoreUnavailableError as error:
                logger.warning("what runs have for each other waits for the store: %s", error)
                return
            except Exception:
                # What is left is anybody's after a while, this relay's too.
                logger.exception("the relay broke inside Outlast")
                return

    async def _see_to(self, run: RunKey | None) -> None:
        """Do what is in the outbox of a run; without one, what is anybody's."""
        age = RELAY_AFTER if run is None else timedelta(0)
        held_up: set[_Lane] = set()
        passed_over = 0
        while True:
            limit = BATCH + passed_over
            found = await self._store.outbox(limit, run=run, age=age)
            lanes: dict[_Lane, list[OutboxItem]] = {}
            for sender, item in found:
                lane = (sender, item.target)
                if self._rests.rests(lane):
                    held_up.add(lane)
                elif lane not in held_up:
                    lanes.setdefault(lane, []).append(item)
            held_up.update(await self._carry(lanes))
            if len(found) < limit:
                return
            passed_over = sum((sender, item.target) in held_up for sender, item in found)

    async def _carry(self, lanes: dict[_Lane, list[OutboxItem]]) -> list[_Lane]:
        """Do items, side by side but for those from one run to another; return where one could not be done yet."""
        done = await asyncio.gather(
            *(self._lane(sender, items) for (sender, _), items in lanes.items()),
            return_exceptions=True,
        )
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return [lane for lane, all_done in zip(lanes, done, strict=True) if not all_done]

    async def _lane(self, sender: RunKey, items: list[OutboxItem]) -> bool:
        """Do the items from one run to another in their order; False when one cannot be done yet."""
        for item in items:
            try:
                await self._relay(sender, item)
            except _Later:
                return False
            except StoreUnavailableError:
                raise
            except Exception:
                logger.exception(
                    "run %s: item %d (%s) for run %s cannot be relayed; it is tried again",
                    sender,
                    item.number,
                    item.kind,
                    item.target,
                )
                self._rests.add((sender, item.target))
                return False
        self._rests.end((sender, items[0].target))
        return True

    async def _relay(self, sender: RunKey, item: OutboxItem) -> None:
        """Do an item, then clear it and tell the sender what came of it."""
        told = await self._do(sender, item)
        answers = tuple(one for one in told if one is not None)
        clear = ClearOutbox(sender, (item.number,), answers, item.generation)
        verdict = await self._submit(clear)
        if not isinstance(verdict, Applied):
            raise not_written(sender, verdict)

    async def _do(self, sender: RunKey, item: OutboxItem) -> tuple[Message | None, ...]:
        """Write on the other run what is asked; return what the sender is told.

        Raises:
            _Later: It cannot be done yet.
        """
        if item.target.tenant != sender.tenant:
            logger.error("run %s: an item for another tenant is dropped", sender)
            return ()
        match item.kind:
            case OutboxKind.START:
                return await self._start(sender, item)
            case OutboxKind.SIGNAL | OutboxKind.CANCEL:
                return (await self._send(sender, item),)
            case OutboxKind.TERMINATE:
                await self._terminate(sender, item)
            case OutboxKind.WATCH:
                return (await self._watch(sender, item),)
            case OutboxKind.UNWATCH:
                await self._submit(DropWatch(item.target, _watch_of(sender, item)))
            case OutboxKind.ENDED:
                await self._tell_end(sender, item)
        return ()

    # Children

    async def _start(self, sender: RunKey, item: OutboxItem) -> tuple[Message | None, ...]:
        try:
            body = parse_as(_bodies, item.body)
        except NotJsonError as error:
            return (refusal(item, "start", "refused", not_readable(item.target, error)),)
        started = answer(item, "start", "started") if body.tells_start else None
        owner = self._birth.owner(item.name)
        head = await self._store.head(sender)
        while True:
            change = self._child(sender, item, body, owner)
            if head is not None and (head.released or head.restored is not None):
                # What its parent may have forgotten is a child that was there before.
                change = msgspec.structs.replace(
                    change, released=head.released, restored=head.restored
                )
            match await self._submit(change):
                case Applied() as verdict:
                    if owner is not None:
                        rows = tuple(StampedRow(row, verdict.at) for row in change.entries)
                        self._birth.adopt(born_head(change, verdict), rows)
                    return (started,)
                case Fenced():
                    owner = None
                case Conflict(head=head) if head is not None:
                    if head.origin == item.origin:
                        # It was there before, and another run than the sender may have started it: a fork and its origin, that
                        # share their keys, ask for one run, and each of them is to be told how it ends.
                        return started, await self._watch(sender, item)
                    if body.parent is None and await self._is_later_use(head, sender, item):
                        return (started,)
                    return (refusal(item, "start", "refused", id_taken(head)),)
                case verdict:
                    error = not_written(item.target, verdict)
                    return (refusal(item, "start", "refused", error),)

    def _child(
        self, sender: RunKey, item: OutboxItem, body: ChildBody, owner: WorkerId | None
    ) -> StartRun:
        target = item.target
        parent = body.parent or Parent(sender.run_id, item.generation, OperationId(item.operation))
        entries: list[Entry] = [
            Started(
                name=item.name,
                arguments=body.arguments,
                seed=self._random.bits(16),
                namespace=namespace(target.tenant, target.run_id, 1),
                principal=item.sender,
                parent=parent,
                effects=body.effects,
                timeout_seconds=body.timeout_seconds,
                durability=body.durability,
                keys=body.keys,
                is_last=body.is_last,
                requesters=body.requesters,
            )
        ]
        if owner is not None:
            entries.append(self._birth.taken)
        return StartRun(
            run=target,
            workflow=item.name,
            fingerprint=fingerprint_of(item.name, bytes(body.arguments)),
            entries=tuple(to_row(entry, seq, seq) for seq, entry in enumerate(entries)),
            worker=owner,
            origin=item.origin,
            watch=_watch_of(sender, item),
        )

    async def _is_later_use(self, head: RunHead, sender: RunKey, item: OutboxItem) -> bool:
        """Whether the run that has the id is a later use of it, by somebody, after the child had ended."""
        if head.generation == 1:
            return False
        rows = await self._store.journal(head.run, generation=1)
        first = from_row(rows[0].row) if rows else None
        parent = Parent(sender.run_id, item.generation, OperationId(item.operation))
        return isinstance(first, Started) and first.parent == parent

    async def _terminate(self, sender: RunKey, item: OutboxItem) -> None:
        """End a child at once; inside a saga, whose effects would stay, it is asked to stop, and undoes them first."""
        change = Terminate(item.target, f"run {sender.run_id}", PARTED, item.origin)
        if await self._submit(change) == Refused(SAGA):
            await self._send(sender, msgspec.structs.replace(item, kind=OutboxKind.CANCEL))

    # Messages

    async def _send(self, sender: RunKey, item: OutboxItem) -> Message | None:
        kind = MessageKind(item.kind.value)
        by = {"by": f"run {sender.run_id}", "reason": PARTED}
        body = item.body or msgspec.json.encode(by)
        message = Message(item.message_id, kind, item.name, item.sender, body)
        match await self._submit(PutMessage(item.target, message, origin=item.origin)):
            case Applied():
                return answer(item, "sent", "sent")
            case Refused(reason="full"):
                raise _Later
            case Refused(reason="closed" | "origin") if item.kind is OutboxKind.CANCEL:
                # It has ended before it could be asked to.
                return answer(item, "sent", "sent")
            case Refused(reason="closed" | "origin"):
                return refusal(item, "sent", "unsent", has_ended(item.target))
            case Refused(reason="not_found"):
                return refusal(item, "sent", "unsent", not_there(item.target))
            case verdict:
                return refusal(item, "sent", "unsent", not_written(item.target, verdict))

    # Ends

    async def _watch(self, sender: RunKey, item: OutboxItem) -> Message | None:
        while True:
            match await self._submit(PutWatch(item.target, _watch_of(sender, item))):
                case Applied():
                    return None
                case Refused(reason="closed"):
                    head = await self._store.head(item.target)
                    if head is None or not head.status.closed:
                        continue
                    end = await self._end(head.run, head.generation, head.status, head.reason)
                    return end_told(item, item.generation, end)
                case Refused(reason="not_found"):
                    return refusal(item, "end", "unsent", not_there(item.target))
                case verdict:
                    return refusal(item, "end", "unsent", not_written(item.target, verdict))

    async def _tell_end(self, sender: RunKey, item: OutboxItem) -> None:
        end = await self._end(sender, item.generation, Status(item.name), item.reason)
        message = end_told(item, item.target_generation, end)
        put = PutMessage(item.target, message, generation=item.target_generation)
        match await self._submit(put):
            case Applied() | Refused(reason="not_found" | "closed" | "generation"):
                # The watcher may have ended too, or be another use of its id by now.
                return
            case verdict:
                raise not_written(item.target, verdict)

    async def _end(self, run: RunKey, generation: int, status: Status, reason: str) -> Resolution:
        """Return how a generation of a run ended, for nobody yet."""
        told = Resolution("", 0, "ended", status=status.value)
        if status is Status.TERMINATED:
            return msgspec.structs.replace(told, reason=reason)
        try:
            row = await self._store.last_entry(run, generation)
            last = None if row is None else from_row(row.row)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            return msgspec.structs.replace(told, failure=capture(error))
        match last:
            case Completed(value=value):
                return msgspec.structs.replace(told, value=value)
            case Failed(failure=failure) | Cancelled(failure=failure):
                # Whether what it did was undone is nothing to who waits for it.
                word = str(type(last).__struct_config__.tag)
                return msgspec.structs.replace(told, status=word, failure=failure)
            case _:
                error = StoreError(
                    f"the run is {status} and its journal does not say how it ended", run=run.run_id
                )
                return msgspec.structs.replace(told, failure=capture(error))


def _watch_of(sender: RunKey, item: OutboxItem) -> Watch:
    return Watch(sender, item.generation, item.operation)
