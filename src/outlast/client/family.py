"""What a fork is told of its origin's children and messages, and the retries of children that are made with the retry of their parent.

The outcome of a child is what the origin's journal says, and what the child's own row and journal say where that says nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from outlast.client.port import Port
from outlast.effects.key import check_run_id, child_id
from outlast.effects.kin import KnownRuns, child_call, marker, message_call, message_id
from outlast.errors import DefinitionError, ForkedEffectError, RunConflictError
from outlast.journal.entry import (
    Cancelled,
    ChildRefused,
    ChildRequested,
    Completed,
    Entry,
    Failed,
    Forked,
    KnownChild,
    KnownMessage,
    MessageAnswered,
    MessageReceived,
    MessageSent,
    OperationId,
    Parent,
    RunEnded,
    RunName,
    Started,
    from_row,
)
from outlast.journal.failure import capture
from outlast.store.change import (
    SAGA,
    Message,
    MessageKind,
    Refused,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Terminate,
)
from outlast.store.farewell import PARTED

_REFUSED_FORK = capture(ForkedEffectError("")).type
_UNDONE = ("failed", "cancelled", "terminated")

RetryChild: TypeAlias = Callable[[RunKey, str, Parent], Awaitable["Retried | None"]]
"""Makes the retry of a run under an id, as the child of an operation; None when the run cannot be retried."""


class Retried(Struct, frozen=True):
    """The retry of a child.

    Args:
        run_id: Of the retry.
        value: JSON of what an earlier one returned: then nothing is to be made.
        changes: That make it, with those of its own children.
        heard: Ids of the messages that the child had taken, or that lie in its inbox.
    """

    run_id: str
    changes: tuple[StartRun, ...] = ()
    heard: frozenset[str] = frozenset()
    value: Raw | None = None


class Family(Struct):
    """What is known of other runs, for one fork.

    Args:
        changes: The retries of children.
        parent: Whose child the fork is to be.
    """

    children: tuple[KnownChild, ...] = ()
    messages: tuple[KnownMessage, ...] = ()
    changes: list[StartRun] = field(default_factory=list[StartRun])
    parent: Parent | None = None


class _Child(Struct):
    """A child that was asked for.

    Args:
        end: Its outcome in the journal of its parent, at `end_seq`.
        close: What the end of its parent means to it: `terminate`, `cancel` or `abandon`.
    """

    known: KnownChild
    end: RunEnded | ChildRefused | None = None
    end_seq: int = -1
    close: str = "abandon"


class _Sent(Struct):
    """A message that was sent, and how it was answered at `end_seq`."""

    known: KnownMessage
    end: MessageAnswered | None = None
    end_seq: int = -1


class Journal:
    """What the journal of an origin says of other runs.

    Args:
        entries: All of it.
        name: Of the origin.
    """

    def __init__(self, entries: Sequence[Entry], name: RunName) -> None:
        self.children: list[_Child] = []
        self.sent: list[_Sent] = []
        self._open: dict[OperationId, _Child] = {}
        self._unanswered: dict[OperationId, _Sent] = {}
        self._known = KnownRuns()
        self._name = name
        first = entries[0]
        known_as = first.known_as if isinstance(first, Started) else None
        self._author = known_as or name
        for seq, entry in enumerate(entries):
            self._note(seq, entry)
        self.children += [_Child(_standing(one, self._name)) for one in self._known.children_left()]
        self.sent += [_Sent(one) for one in self._known.messages_left()]

    def _note(self, seq: int, entry: Entry) -> None:
        self._known.note(entry)
        match entry:
            case Forked():
                self._author = entry.known_as
                # What was open there was asked for anew, where it went on.
                self.children = [one for one in self.children if one.end is not None]
                self.sent = [one for one in self.sent if one.end is not None]
                self._open, self._unanswered = {}, {}
            case ChildRequested():
                child = _Child(self._asked(entry))
                if child.known.parent.run_id == self._author.run_id:
                    child.close = entry.parent_close
                self.children.append(child)
                self._open[entry.operation] = child
            case RunEnded() | ChildRefused():
                found = self._open.pop(entry.operation, None)
                if found is not None:
                    found.end, found.end_seq = entry, seq
            case MessageSent():
                sent = _Sent(self._message(entry))
                self.sent.append(sent)
                self._unanswered[entry.operation] = sent
            case MessageAnswered():
                answered = self._unanswered.pop(entry.operation, None)
                if answered is not None:
                    answered.end, answered.end_seq = entry, seq
            case _:
                pass

    def _asked(self, entry: ChildRequested) -> KnownChild:
        name, sha256, own_id, number = child_call(entry)
        author = self._author
        parent = Parent(author.run_id, author.generation, entry.operation)
        known = self._known.standing.get(entry.operation)
        if entry.as_run and known is not None:
            parent = _standing(known, author).parent
        return KnownChild(
            name=name,
            arguments_sha256=sha256,
            own_id=own_id,
            number=number,
            operation=entry.operation,
            run_id=entry.as_run or entry.run_id,
            parent=parent,
            outcome="unknown",
        )

    def _message(self, entry: MessageSent) -> KnownMessage:
        to, kind, name, sha256, number = message_call(entry, {})
        sender = Parent(self._author.run_id, self._author.generation, entry.operation)
        return KnownMessage(
            to=to,
            kind=kind,
            name=name,
            value_sha256=sha256,
            number=number,
            message_id=entry.message_id or message_id(sender, entry),
            operation=entry.operation,
            outcome="unknown",
        )


def _standing(known: KnownChild, name: RunName) -> KnownChild:
    """Return what is known of a child of a fork, told by what its origin knew of it."""
    if not known.as_run:
        return known
    own = Parent(name.run_id, name.generation, known.operation)
    return replace(known, run_id=known.as_run, parent=own, outcome="unknown", as_run="")


class FamilyReader:
    """Finds out what a fork is to know.

    Args:
        run: The origin.
        is_over: Whether it has ended.
        failures: Whether what failed is known too; else it is retried, or done again.
        fork_id: Of the fork.
        retry: Makes the retry of a child.
    """

    def __init__(
        self,
        client: Port,
        run: RunKey,
        *,
        is_over: bool,
        failures: bool,
        fork_id: str,
        retry: RetryChild,
    ) -> None:
        self._client = client
        self._run = run
        self._is_over = is_over
        self._failures = failures
        self._fork_id = fork_id
        self._retry = retry
        self._heard: dict[OperationId, frozenset[str]] = {}

    async def read(self, journal: Journal, position: int) -> Family:
        """Return what a fork at this position is to know."""
        found = Family()
        known: list[KnownChild] = []
        for child in journal.children:
            if child.end is not None and child.end_seq < position:
                continue
            one = await self._child(child, found)
            if one is not None:
                known.append(one)
        found.children = tuple(known)
        found.messages = tuple(self._messages(journal.sent, position))
        return found

    async def _child(self, child: _Child, found: Family) -> KnownChild | None:
        """Return what is known of a child; None when it is to be asked for as if it had never been."""
        known = child.known
        match child.end:
            case RunEnded() as end:
                known = _with_end(known, end)
            case ChildRefused(failure=failure) if failure.type == _REFUSED_FORK:
                return None
            case ChildRefused(failure=failure):
                return (
                    replace(known, outcome="refused", failure=failure) if self._failures else None
                )
            case None if known.outcome == "unknown":
                close = child.close if self._is_over else "abandon"
                head = await self._head(known, close)
                if head is None:
                    # It is ended as soon as it begins, if it ever does.
                    return known if close == "abandon" else None
                known = await self._with_own_end(known, head)
            case None:
                pass
        if self._failures or known.outcome not in _UNDONE:
            return None if known.outcome == "refused" and not self._failures else known
        return await self._retried(known, found)

    async def _head(self, known: KnownChild, close: str) -> RunHead | None:
        """Return the row of a child; of one that is to be retried, once it has ended.

        Args:
            close: What the end of its parent, which has been, means to it.
        """
        key, origin = RunKey(self._run.tenant, known.run_id), marker(known.parent)
        head = await self._client.store.head(key)
        if head is None or head.origin != origin:
            return None
        if self._failures or head.status.closed or close == "abandon":
            return head
        if close == "terminate":
            # Its parent's outbox says so too, and may not have been seen to yet.
            ending = Terminate(key, f"run {self._run.run_id}", PARTED, origin)
            if await self._client.commit(ending) != Refused(SAGA):
                return await self._client.head(key)
        raise RunConflictError(
            f"its child, run {known.run_id}, was asked to stop with it, and is {head.status}",
            run=self._run.run_id,
            hint=f"retry when that run has ended; see `outlast runs explain {known.run_id}`",
        )

    async def _with_own_end(self, known: KnownChild, head: RunHead) -> KnownChild:
        if not head.status.closed:
            return known
        if head.status is Status.TERMINATED:
            return replace(known, outcome="terminated", reason=head.reason)
        row = await self._client.store.last_entry(head.run, head.generation)
        match None if row is None else from_row(row.row):
            case Completed(value=value):
                return replace(known, outcome="completed", value=value)
            case Failed(failure=failure):
                return replace(known, outcome="failed", failure=failure)
            case Cancelled(failure=failure):
                return replace(known, outcome="cancelled", failure=failure)
            case _:
                return known

    async def _retried(self, known: KnownChild, found: Family) -> KnownChild | None:
        plain = child_id(self._fork_id, 1, known.operation)
        own = f"{known.own_id}/{self._fork_id}" if known.own_id else plain
        parent = Parent(self._fork_id, 1, known.operation)
        key = RunKey(self._run.tenant, known.run_id)
        made = await self._retry(key, check_run_id(own), parent)
        if made is None:
            return None
        known = replace(known, outcome="unknown", failure=None, reason="")
        if made.value is not None:
            return replace(known, run_id=made.run_id, outcome="completed", value=made.value)
        found.changes += made.changes
        self._heard[known.operation] = made.heard
        return replace(known, as_run=made.run_id)

    def _messages(self, sent: Iterable[_Sent], position: int) -> Iterable[KnownMessage]:
        for one in sent:
            known, end = one.known, one.end
            if end is not None and one.end_seq < position:
                continue
            if end is not None:
                outcome = "sent" if end.failure is None else "failed"
                known = replace(known, outcome=outcome, failure=end.failure)
            elif known.message_id in self._heard.get(OperationId(known.to), ()):
                known = replace(known, outcome="sent")
            if self._failures or known.outcome != "failed":
                yield known


def _with_end(known: KnownChild, end: RunEnded) -> KnownChild:
    return replace(
        known, outcome=end.status, value=end.value, failure=end.failure, reason=end.reason
    )


def check_sent(journal: Journal, known: Iterable[KnownChild], position: int, run_id: str) -> None:
    """Raise DefinitionError when a child would be started anew that lacks what the fork's code has sent to it.

    Args:
        known: Of the fork.
        run_id: Of the origin.
    """
    for one in known:
        if one.outcome != "unknown" or one.as_run:
            continue
        ends = [
            sent.end_seq
            for sent in journal.sent
            if sent.known.to in (one.operation, one.run_id) and 0 <= sent.end_seq < position
        ]
        if ends:
            raise DefinitionError(
                f"before position {position} a message was sent to run {one.run_id}, which has not ended; a new child would lack it",
                run=run_id,
                operation=one.operation,
                hint=f"give {min(ends)} or less, so that it is sent again; or effects='same_key', to wait for that very run",
            )


async def lost_messages(
    client: Port, run: RunKey, entries: Sequence[Entry], position: int
) -> tuple[Message, ...]:
    """Return the signals that a child had taken from the position on, or that lie in its inbox unread: nobody sends them again."""
    taken = [
        Message(one.message_id, MessageKind.SIGNAL, one.name, one.sender, bytes(one.value))
        for one in entries[position:]
        if isinstance(one, MessageReceived)
    ]
    known = {one.message_id for one in taken}
    unread = [
        one.message
        for one in await client.store.mail(run)
        if one.message.kind is MessageKind.SIGNAL and one.message.message_id not in known
    ]
    return (*taken, *unread)
