"""The requests of a tenant that came with an idempotency key: begin one, end it, and say what became of one that nobody has ended.

Invariant: the text of a key goes into its hash and nowhere else, neither into the store nor into a log.
"""

from __future__ import annotations

import hashlib
import logging
import re
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, cast

import msgspec

from outlast.client.access import check_workflow
from outlast.client.page import check_limit
from outlast.client.port import Port
from outlast.errors import (
    DefinitionError,
    EncodeError,
    RequestStateError,
    StoreCorruptError,
    StoreError,
)
from outlast.store.bound import CORRUPT, MAX_BODY_BYTES, unstorable_part
from outlast.store.change import Applied, Conflict, Refused, Verdict
from outlast.store.request import (
    BeginRequest,
    EndRequest,
    HoldRequest,
    PurgeRequests,
    RequestChange,
    RequestRow,
    RequestState,
    ResolveRequest,
)

logger = logging.getLogger("outlast.client")

Standing: TypeAlias = Literal["running", "done", "in doubt", "freed", "expired"]
"""Where a request stands: `in doubt` is one that nobody holds any more and nobody has ended; `freed` one that did not happen, as an
operator said; `expired` one that is kept no longer."""

_READ = "read requests that came with an idempotency key"
_STANDING = frozenset(RequestState) - {RequestState.EXPIRED}
_ID = re.compile(r"[0-9a-f]{64}")
_PURGED_AT_ONCE = 1000
_KINDS: dict[str, type] = {
    "fingerprint": str,
    "token": str,
    "by": str,
    "reason": str,
    "hold": timedelta,
    "keep": timedelta,
    "note": bytes,
    "answer": bytes,
}
_REFUSALS = {
    "unknown": (
        "there is no request of this id, or it is kept no longer",
        "see `outlast requests list`, and check the database and the tenant",
    ),
    "mismatch": (
        "another request has begun under its key since it was looked at",
        "look at it as it is now: `outlast requests show`",
    ),
    "running": (
        "it is running: whoever began it still holds it",
        "wait until it has ended, or is in doubt: `outlast requests show` says when",
    ),
    "done": (
        "it is done: it was ended, or somebody has resolved it, meanwhile",
        "see what its answer is: `outlast requests show`",
    ),
    "freed": (
        "somebody has said already that it did not happen",
        "see who, and why: `outlast requests show`",
    ),
}


class RequestView(msgspec.Struct, frozen=True):
    """A request under an idempotency key, to be looked at.

    Args:
        request_id: SHA-256 of tenant and key, 64 hex digits.
        fingerprint: Of what was asked.
        token: Of whoever began it.
        held_until: When it is in doubt, unless it has ended.
        expires_at: From when on it is as good as gone; None while it has not ended.
        answer: What was answered; None while it is not done, and in lists.
        note: What whoever began it says of it, for people.
        by: The operator who resolved it; empty when none did.
        reason: Why, in his words.
        resolved_at: When.
        now: The store's time, by which the state is told.
    """

    request_id: str
    state: Standing
    fingerprint: str
    token: str
    started_at: datetime
    held_until: datetime
    expires_at: datetime | None
    answer: bytes | None
    note: bytes
    by: str
    reason: str
    resolved_at: datetime | None
    now: datetime


def request_id_of(tenant: str, key: str) -> str:
    """Return under what the request of a key is kept: SHA-256 of the tenant, a NUL, and the key, in hex."""
    return hashlib.sha256(f"{tenant}\0{key}".encode(errors="surrogatepass")).hexdigest()


class Requests:
    """The requests of a tenant that came with an idempotency key: a record of each, in the store of the runs.

    Whoever handles a request begins it under a token that it has drawn, holds it while it works, and ends it with the answer. Only one
    has it at a time. One that is not ended is in doubt when it is held no longer, and stays so: no time makes the key free.
    """

    def __init__(self, client: Port) -> None:
        self._client = client

    async def begin(
        self,
        key: str,
        *,
        fingerprint: str,
        token: str,
        hold: timedelta,
        keep: timedelta,
        note: bytes = b"",
    ) -> RequestView:
        """Begin a request, and return its record; or the one that stands under the key: another token says that it is another's.

        The same token again finds what it has begun. One that has expired, or was freed by an operator, is begun anew.

        Args:
            key: Any text. What only the server knows of its sender belongs into it, so that nobody can ask for another's answer.
            fingerprint: Of what is asked, to tell another request under the same key from the same one sent again.
            token: A random text of the caller's own.
            hold: How long nobody doubts it; to be renewed by `hold`.
            keep: How long an operator's answer is kept, if it comes to that.
            note: Said of it to operators.

        Raises:
            DefinitionError: A text or a time that no store can keep.
            EncodeError: The note is too long.
            StoreCorruptError: The record that stands there cannot be read.
        """
        change = BeginRequest(
            self._client.tenant, self._id_of(key), fingerprint, token, hold, keep, note
        )
        verdict = await self._commit(change)
        match verdict:
            case Applied(request=RequestRow() as row) | Conflict(request=RequestRow() as row):
                return self._view(row)
            case _:
                raise _odd(verdict, change.request_id)

    async def hold(self, key: str, token: str, hold: timedelta) -> bool:
        """Hold a request on from now; False when it has ended, has gone, or is another's.

        Raises:
            DefinitionError: A text or a time that no store can keep.
        """
        change = HoldRequest(self._client.tenant, self._id_of(key), token, hold)
        return isinstance(await self._commit(change), Applied)

    async def end(
        self, key: str, token: str, answer: bytes | None, keep: timedelta
    ) -> RequestView | None:
        """End a request, also one that is in doubt by now, and return its record as it stands then; None where there is none.

        What an operator has said meanwhile stands, and so does what another has begun; that the outcome came late is a warning in the
        log then. One exception: the answer of a request that was freed, and that nobody has begun anew, is recorded, so that it
        is not done again.

        Args:
            answer: What is answered from now on; None when nothing happened: its record goes, and another may begin.
            keep: For how long.

        Raises:
            DefinitionError: A text or a time that no store can keep.
            EncodeError: The answer is too long.
        """
        tenant, request_id = self._client.tenant, self._id_of(key)
        happened = answer is not None
        change = EndRequest(tenant, request_id, token, happened, keep, answer or b"")
        verdict = await self._commit(change)
        match verdict:
            case Applied(request=row):
                if row is not None and row.resolved_at is not None:
                    _warn(request_id, f"{row.by or 'an operator'} had resolved it before")
            case Conflict(request=row):
                _warn(request_id, _standing_of(row, token))
            case _:
                raise _odd(verdict, request_id)
        return None if row is None else self._view(row)

    async def get(self, key: str) -> RequestView | None:
        """Return the request of a key, to whoever has its text; None where another may begin."""
        found = await self._look(self._id_of(key))
        return None if found is None or found.state in ("freed", "expired") else found

    async def find(self, request_id: str) -> RequestView | None:
        """Return a request by the hash under which it is kept, in whatever state; None where there is none.

        Raises:
            StoreCorruptError: Its record cannot be read.
            NotAuthorisedError: Whoever acts may not read what belongs to no workflow.
        """
        await check_workflow(self._client, "read", words=_READ)
        return await self._look(request_id)

    async def list(
        self,
        *,
        state: Standing | None = None,
        limit: int = 100,
        before: RequestView | None = None,
    ) -> list[RequestView]:
        """Return a page of requests, newest first, without their answers.

        Args:
            state: Only those; all but expired ones by default.
            limit: So many at most.
            before: The last one of the page before.

        Raises:
            DefinitionError: There is no such state, or the limit is no number from 0 to 1,000,000.
            NotAuthorisedError: Whoever acts may not read what belongs to no workflow.
        """
        await check_workflow(self._client, "read", words=_READ)
        rows = await self._client.store.requests(
            self._client.tenant,
            states=_STANDING if state is None else frozenset({_state_of(state)}),
            limit=check_limit(limit, what="requests"),
            before=(before.started_at, before.request_id) if before else None,
        )
        return [msgspec.structs.replace(self._view(row), answer=None) for row in rows]

    async def resolve(
        self,
        request_id: str,
        *,
        answer: bytes | None,
        reason: str,
        seen_token: str,
        corrects: datetime | None = None,
    ) -> None:
        """Say what became of a request in doubt, as an operator; kept with who says so and why.

        Args:
            request_id: The hash under which it is kept.
            answer: It happened, and this is answered from now on; None: it did not happen, and another may begin.
            seen_token: The token of the record that was looked at: nothing is said of one that has begun since.
            corrects: The `resolved_at` of an operator's answer that this one replaces, since nobody can read it; only while that one stands.

        Raises:
            RequestStateError: It is not in doubt, not as it was seen, or not there.
            DefinitionError: No request can have that id.
            EncodeError: The answer is too long.
            NotAuthorisedError: Whoever acts may not resolve what belongs to no workflow.
        """
        await check_workflow(self._client, "resume", words="say what became of a request")
        if not isinstance(cast("object", request_id), str) or not _ID.fullmatch(request_id):
            raise DefinitionError(
                f"{str(request_id)[:80]!r} is the id of no request",
                hint="give the 64 digits 0-9a-f that `outlast requests list` shows",
            )
        tenant, by = self._client.tenant, self._client.principal
        change = ResolveRequest(
            tenant,
            request_id,
            seen_token,
            answer is not None,
            by,
            reason,
            answer or b"",
            corrects,
        )
        verdict = await self._commit(change)
        match verdict:
            case Applied():
                said = "happened" if change.happened else "did not happen"
                logger.info("request %s %s, says %s: %s", request_id, said, by, reason)
            case Refused(reason=refusal) if refusal in _REFUSALS:
                text, hint = _REFUSALS[refusal]
                raise RequestStateError(
                    f"request {request_id} was not resolved: {text}", reason=refusal, hint=hint
                )
            case _:
                raise _odd(verdict, request_id)

    async def purge(self) -> int:
        """Remove all expired requests, and return how many they were.

        Nobody needs to: each request that begins removes a few of them.
        """
        removed = 0
        while True:
            verdict = await self._commit(PurgeRequests(self._client.tenant, _PURGED_AT_ONCE))
            if not isinstance(verdict, Applied):
                raise _odd(verdict, "of this tenant")
            removed += verdict.removed
            if verdict.removed < _PURGED_AT_ONCE:
                return removed

    async def _look(self, request_id: str) -> RequestView | None:
        row = await self._client.store.request(self._client.tenant, request_id)
        return None if row is None else self._view(row)

    def _id_of(self, key: str) -> str:
        given: Any = key
        if not isinstance(given, str):
            raise DefinitionError(f"{given!r:.80} is no idempotency key", hint="give its text")
        return request_id_of(self._client.tenant, given)

    async def _commit(self, change: RequestChange) -> Verdict:
        _check(change)
        return await self._client.commit(change)

    def _view(self, row: RequestRow) -> RequestView:
        return RequestView(
            request_id=row.request_id,
            state=row.state.value,
            fingerprint=row.fingerprint,
            token=row.token,
            started_at=row.started_at,
            held_until=row.held_until,
            expires_at=row.expires_at,
            answer=row.answer if row.state is RequestState.DONE else None,
            note=row.note,
            by=row.by,
            reason=row.reason,
            resolved_at=row.resolved_at,
            now=self._client.store.now(),
        )


def _state_of(state: str) -> RequestState:
    if state not in frozenset(RequestState):
        words = ", ".join(repr(one.value) for one in RequestState)
        raise DefinitionError(
            f"no request has the state {state!r:.80}", hint=f"write one of {words}"
        )
    return RequestState(state)


def _check(change: RequestChange) -> None:
    """Refuse what no store can keep, before it is sent."""
    for name in change.__struct_fields__:
        value, kind = getattr(change, name), _KINDS.get(name)
        if kind is not None and not isinstance(value, kind):
            raise DefinitionError(
                f"the {name} of a request is {value!r:.80}, and no {kind.__name__}",
                hint="give it as timedelta(seconds=60)" if kind is timedelta else "convert it",
            )
    part = unstorable_part(change)
    if part in ("note", "answer"):
        raise EncodeError(
            f"the {part} of a request has more than {MAX_BODY_BYTES >> 20} MiB, and is not kept",
            path=f"$.{part}",
            hint="keep it elsewhere, and its address here",
        )
    if part:
        raise DefinitionError(
            f"the {part} of a request is {getattr(change, part)!r:.80}, which no store can keep",
            hint="give a time longer than nothing and shorter than a hundred years"
            if part in ("hold", "keep")
            else "give text without NUL and lone surrogates",
        )


def _standing_of(row: RequestRow | None, token: str) -> str:
    if row is None:
        return "its record has gone: another request may do the same again"
    if row.token != token:
        return "another request has begun under its key since: it may do the same again"
    if row.resolved_at is not None:
        return f"what {row.by or 'an operator'} said before stands"
    return "it has ended otherwise before, and that stands"


def _warn(request_id: str, what: str) -> None:
    logger.warning("the outcome of request %s came late: %s", request_id, what)


def _odd(verdict: Verdict, request_id: str) -> StoreError:
    if isinstance(verdict, Refused) and verdict.reason == CORRUPT:
        return StoreCorruptError(
            f"the record of request {request_id} cannot be read ({verdict.part})",
            hint="keep the database, and restore a backup or mend the row; `outlast doctor` checks",
        )
    return StoreError(f"the store answered {verdict} about request {request_id}")
