"""Where a run asks leave of what it wants of other runs: in a fork, what becomes of its children and of what it sends.

| of a child, the origin | `refuse` | `same_key` | `new_key` |
| --- | --- | --- | --- |
| knows how it ended | that end | that end | that end |
| asked for it, and does not know | refused | the same start again: it stands for the fork's | a child of the fork's own |
| did not come to it | a child, bound as the fork | a child, with the keys that the origin's would have | a child, with new keys |

| of a message to another run, the origin | `refuse` | `same_key` | `new_key` |
| --- | --- | --- | --- |
| knows whether it was taken | that | that | that |
| sent it, and does not know | refused | sent again under its id | refused |
| did not come to it | refused | sent, under the id that the origin would have used | sent |

What is sent to a child of the fork's own, to its parent, or to itself is always sent: nobody else has it. Watching only reads.
"""

from __future__ import annotations

from msgspec import Raw

from outlast.effects.key import namespace_of_child, run_of
from outlast.effects.kin import KnownRuns, marker, message_id
from outlast.journal.entry import (
    ChildRefused,
    Entry,
    KnownChild,
    MessageAnswered,
    OperationId,
    Parent,
    RunEnded,
    Started,
)
from outlast.journal.failure import Failure, capture
from outlast.replay.command import SendMessage, StartChild, WatchRun
from outlast.store.change import RunHead
from outlast.worker.fork import message_refused, start_refused
from outlast.worker.outbox import ChildBody, asking_for, sending, watching
from outlast.worker.proposal import Proposal, Rank


class Kin:
    """What one run asks of others.

    Args:
        started: The run's first entry.
        run_id: Of the run.
        parent: The id of the run that started it; empty for none.
    """

    def __init__(self, started: Started, run_id: str, parent: str) -> None:
        self._started = started
        self._run_id = run_id
        self._parent = parent
        self._known = KnownRuns()
        self._refused: dict[OperationId, Failure] = {}

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        self._known.note(entry)
        if isinstance(entry, ChildRefused):
            self._refused[entry.operation] = entry.failure

    def ask(self, command: StartChild | SendMessage | WatchRun, head: RunHead) -> list[Proposal]:
        """Return what is recorded, and put into the outbox, or what is recorded instead.

        Args:
            head: Of the run.
        """
        match command:
            case StartChild():
                return self._start(command, head)
            case SendMessage():
                return self._send(command, head)
            case WatchRun():
                return [watching(command, head)]

    # Children

    def _start(self, command: StartChild, head: RunHead) -> list[Proposal]:
        known = self._known.child(command)
        policy = self._started.effects
        if known is None or (known.outcome == "unknown" and policy == "new_key"):
            return [asking_for(command, head, self._started, self._fresh(command))]
        if known.as_run:
            own = Parent(self._run_id, head.generation, known.operation)
            # Its parent's end finds it by the operation that asks for it.
            is_close = command.operation == known.operation
            return [self._attached(command, head, known, own, is_close=is_close)]
        match known.outcome:
            case "unknown" if policy == "refuse":
                error = start_refused(known, command.name)
                error.run, error.operation = self._run_id, command.operation
                return [self._not_started(command, capture(error))]
            case "unknown":
                return [self._attached(command, head, known, known.parent, is_close=False)]
            case "refused" if known.failure is not None:
                return [self._not_started(command, known.failure)]
            case _:
                self._known.standing[command.operation] = known
                return _ended(command, known, head, self._started)

    def _fresh(self, command: StartChild) -> ChildBody:
        started = self._started
        keys = ""
        if started.effects in ("refuse", "same_key") and started.keys:
            keys = namespace_of_child(started.keys, command.operation, command.own_id)
        return ChildBody(
            Raw(command.arguments),
            command.tells_start,
            started.effects,
            keys,
            is_last=started.is_last,
            timeout_seconds=command.timeout_seconds,
            durability=command.durability,
            requesters=started.requesters,
        )

    def _attached(
        self,
        command: StartChild,
        head: RunHead,
        known: KnownChild,
        parent: Parent,
        *,
        is_close: bool,
    ) -> Proposal:
        """Return the request for a run that exists, or that the origin was to start.

        Args:
            parent: The operation that its row names.
            is_close: Whether the end of this run means to it what the workflow says.
        """
        self._known.standing[command.operation] = known
        run_id = known.as_run or known.run_id
        body = ChildBody(
            Raw(command.arguments),
            command.tells_start,
            parent=parent,
            timeout_seconds=command.timeout_seconds,
            durability=command.durability,
        )
        return asking_for(command, head, self._started, body, as_run=run_id, is_close=is_close)

    def _not_started(self, command: StartChild, failure: Failure) -> Proposal:
        self._refused[command.operation] = failure
        refused = ChildRefused(command.operation, failure)
        return Proposal(Rank.OUTCOME, refused, guard=command.operation)

    # Messages

    def _send(self, command: SendMessage, head: RunHead) -> list[Proposal]:
        if command.child in self._refused:
            # The code has had its handle since before the run was forked.
            return [_answered(command.operation, self._refused[command.child])]
        standing = self._known.standing.get(command.child)
        known = self._known.message(command)
        if command.child and standing is None:
            return [sending(command, head)]
        is_own = command.run_id in {self._run_id, self._parent, *self._known.own}
        if standing is not None:
            is_own = bool(standing.as_run)
            if is_own and command.kind == "cancel":
                # It was another run that had the cancel.
                known = None
        is_settled = known is not None and known.outcome != "unknown"
        if not is_settled and not is_own:
            error = message_refused(self._started, self._known.forked, known, command)
            if error is not None:
                error.run, error.operation = self._run_id, command.operation
                return [_answered(command.operation, capture(error))]
        target, origin = "", ""
        if standing is not None:
            own = Parent(self._run_id, head.generation, standing.operation)
            target = standing.as_run or standing.run_id
            origin = marker(own if standing.as_run else standing.parent)
        as_id = "" if is_own else self._as_origin(command)
        if known is not None:
            as_id = known.message_id
        sent = sending(command, head, target=target, origin=origin, as_id=as_id)
        if known is None or not is_settled:
            return [sent]
        sent.outbox = None
        return [sent, _answered(command.operation, known.failure)]

    def _as_origin(self, command: SendMessage) -> str:
        """Return the id under which the origin would send a message, where this run acts as that would."""
        started = self._started
        if started.effects != "same_key" or not started.keys:
            return ""
        return message_id(Parent(*run_of(started.keys), command.operation), command)


def _ended(
    command: StartChild, known: KnownChild, head: RunHead, started: Started
) -> list[Proposal]:
    """Return the request for a child of which the end is known, and that end; nothing is started."""
    asked = asking_for(
        command, head, started, ChildBody(Raw(command.arguments)), as_run=known.run_id
    )
    asked.row = asked.outbox = None
    end = RunEnded(
        operation=command.operation,
        run_id=known.run_id,
        status=known.outcome,
        value=known.value,
        failure=known.failure,
        reason=known.reason,
    )
    return [asked, Proposal(Rank.OUTCOME, end, guard=command.operation)]


def _answered(operation: OperationId, failure: Failure | None) -> Proposal:
    return Proposal(Rank.OUTCOME, MessageAnswered(operation, failure), guard=operation)
