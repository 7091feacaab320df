"""Messages as a client sends them, and the answers to updates as it waits for them.

Law: every sender of an update comes to an end: with the answer, or with the error that says why there will be none.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from outlast.client.patience import Patience
from outlast.client.port import Port
from outlast.client.view import not_found
from outlast.effects.key import check_message_id
from outlast.errors import (
    DecodeError,
    InboxFullError,
    OutlastError,
    RunCancelledError,
    RunConflictError,
    StoreCorruptError,
    StoreError,
    UpdateFailedError,
    UpdateRejectedError,
)
from outlast.journal.canonical import sha256_of
from outlast.journal.entry import ENTRY_NESTING, UpdateAnswered
from outlast.journal.failure import Failure, is_too_deep, rebuild, tell
from outlast.journal.parse import NotJsonError, parse, parse_as, read
from outlast.store.change import (
    MAX_UNREAD,
    Applied,
    Message,
    MessageKind,
    Refused,
    RunKey,
    Verdict,
)
from outlast.workflows.message import Signal, Update, encoded

_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 2.0
_GAP = 0.05
"""Part of the time waited so far that passes between two looks, however many hints come: many who wait must not wear the store out."""
_LONGEST_GAP_SECONDS = 0.5

_answers = msgspec.json.Decoder(UpdateAnswered)


def signal_message(client: Port, signal: Signal[Any] | str, value: Any, message_id: str) -> Message:
    """Return a signal as it is put into an inbox.

    Args:
        message_id: Random when it is empty.

    Raises:
        EncodeError: The value does not fit the signal's type.
        DefinitionError: No signal can have that name.
    """
    name, body = encoded(signal, value, what="signal")
    return _message(client, MessageKind.SIGNAL, name, body, message_id)


def update_message(
    client: Port, update: Update[Any, Any] | str, value: Any, message_id: str
) -> Message:
    """Return an update as it is put into an inbox.

    Args:
        message_id: Random when it is empty.

    Raises:
        EncodeError: The value does not fit the update's type.
        DefinitionError: No update can have that name.
    """
    name, body = encoded(update, value, what="update")
    return _message(client, MessageKind.UPDATE, name, body, message_id)


def _message(client: Port, kind: MessageKind, name: str, body: bytes, given_id: str) -> Message:
    message_id = check_message_id(f"{kind.value}/{given_id or client.new_id()}")
    # Under an id of its own a message has no other that it could be taken for.
    digest = sha256_of([kind.value, name, parse(body)]) if given_id else ""
    return Message(message_id, kind, name, client.principal, body, digest)


def check_accepted(verdict: Verdict, run: RunKey) -> None:
    """Return when the store has taken what was sent to a run.

    Raises:
        RunNotFoundError: There is no such run.
        RunConflictError: It has ended, or its id has begun another run, or it has another message under this id.
        InboxFullError: It has too many messages that it has not taken in.
        StoreError: The store answered something else.
    """
    match verdict:
        case Applied():
            return
        case Refused(reason="not_found"):
            raise not_found(run)
        case Refused(reason="closed"):
            raise RunConflictError(
                "the run has ended", run=run.run_id, hint="see `outlast runs show`"
            )
        case Refused(reason="incarnation"):
            raise RunConflictError(
                "the run of this handle has ended, and its id has begun another run since",
                run=run.run_id,
                hint="if you mean the run that has the id now, get its handle anew: app.handle(id)",
            )
        case Refused(reason="other", part=message_id):
            raise RunConflictError(
                f"the run has a message under the id {message_id.partition('/')[2]!r} with another name or value; the first one counts",
                run=run.run_id,
                hint="give this one an id of its own",
            )
        case Refused(reason="full"):
            raise InboxFullError(
                f"the run has {MAX_UNREAD:,} messages that it has not taken in, and takes no more",
                run=run.run_id,
                hint="send again later under the same id; `outlast runs explain` says why the run does not take them in",
            )
        case _:
            raise StoreError(f"the store answered {verdict}", run=run.run_id)


async def result_of(
    client: Port, run: RunKey, update: Update[Any, Any] | str, message: Message
) -> Any:
    """Wait for the answer to an update that was accepted, and return its result. See `RunHandle.update`."""
    answer = await _wait(client, run, message)
    if answer.failure is not None:
        raise _refusal(answer, answer.failure, run)
    if isinstance(update, Update):
        return update.answer.decode(bytes(answer.value))
    return read(bytes(answer.value), f"the answer to update {update!r}")


async def _wait(client: Port, run: RunKey, message: Message) -> UpdateAnswered:
    woken = asyncio.Event()
    unsubscribe = client.store.subscribe(woken.set)
    poll, patience = _FIRST_POLL_SECONDS, Patience(client)
    try:
        while True:
            woken.clear()
            answer = await _look(client, run, message)
            if answer is not None:
                return answer
            if patience.is_due:
                await patience.look(await client.head(run))
            await asyncio.sleep(min(patience.waited * _GAP, _LONGEST_GAP_SECONDS))
            try:
                async with asyncio.timeout(poll):
                    await woken.wait()
            except TimeoutError:
                poll = min(poll * 2, _LONGEST_POLL_SECONDS)
    finally:
        unsubscribe()


async def _look(client: Port, run: RunKey, message: Message) -> UpdateAnswered | None:
    """Return the answer; None as long as there may be one.

    Raises:
        RunConflictError: There will be none.
    """
    state = await client.store.answer(run, message.message_id)
    if state is not None and state.answered:
        return _answer_in(state.answer, run)
    if state is not None and not state.over:
        return None
    raise RunConflictError(
        f"the run was terminated before it answered the update {message.name!r}",
        run=run.run_id,
        hint="whether anything of it was done stands in the run's journal: `outlast runs journal`",
    )


def _answer_in(body: bytes, run: RunKey) -> UpdateAnswered:
    try:
        answer = parse_as(_answers, body, nesting=ENTRY_NESTING)
    except NotJsonError as error:
        raise DecodeError(
            f"the answer to an update cannot be read: {error}",
            run=run.run_id,
            hint="the store was changed by hand, is damaged, or was written by a newer version of Outlast",
        ) from None
    if answer.failure is not None and is_too_deep(answer.failure):
        raise StoreCorruptError(
            "the answer to an update is a failure that is nested deeper than any that is captured",
            run=run.run_id,
            hint="the store was changed by hand or is damaged",
        )
    return answer


def _refusal(answer: UpdateAnswered, failure: Failure, run: RunKey) -> OutlastError:
    """Return the error that stands for an answer without a result."""
    cause = rebuild(failure)
    own = isinstance(cause, OutlastError)
    said = failure.message if own else tell(failure)
    what = f"the update {answer.name!r}"
    error: OutlastError
    if answer.rejected:
        error = UpdateRejectedError(f"{what} was rejected: {said}", run=run.run_id)
    elif answer.cancelled:
        error = RunCancelledError(f"the run was cancelled while it handled {what}", run=run.run_id)
    else:
        error = UpdateFailedError(f"{what} failed: {said}", run=run.run_id)
    if isinstance(cause, OutlastError):
        error.hint = cause.hint
    error.__cause__ = cause
    return error
