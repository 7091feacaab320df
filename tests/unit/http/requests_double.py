"""A double of `client.requests`, for a clock that a test moves, and ways to be out of reach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from outlast.errors import StoreUnavailableError


@dataclass(frozen=True)
class RecordDouble:
    request_id: str
    state: str
    fingerprint: str
    token: str
    started_at: datetime
    held_until: datetime
    expires_at: datetime
    answer: bytes | None
    note: bytes
    now: datetime


class RequestsDouble:
    """Keeps what the real one promises, in a dictionary. Where the store is, so is a client.

    `down` names what does not reach it ("begin", …), `deaf` what reaches it without an answer.
    """

    def __init__(self, clock) -> None:
        self.clock = clock
        self.rows: dict[str, RecordDouble] = {}
        self.down: set[str] = set()
        self.deaf: set[str] = set()
        self.calls: list[str] = []

    @property
    def requests(self) -> RequestsDouble:
        """Itself."""
        return self

    def _reached(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.down:
            raise StoreUnavailableError("the double is down")

    def _answered(self, verb: str) -> None:
        if verb in self.deaf:
            raise StoreUnavailableError("the answer of the double is lost")

    def _seen(self, key: str) -> RecordDouble | None:
        row = self.rows.get(key)
        if row is None:
            return None
        now = self.clock.now()
        lapsed = row.state == "running" and now >= row.held_until
        return replace(row, state="in doubt" if lapsed else row.state, now=now)

    async def begin(self, key, *, fingerprint, token, hold, keep, note=b""):
        """Begin, or find what stands."""
        self._reached("begin")
        now = self.clock.now()
        row = self.rows.get(key)
        if row is None or (row.state == "done" and now >= row.expires_at):
            request_id = sha256(key.encode()).hexdigest()
            self.rows[key] = RecordDouble(
                request_id,
                "running",
                fingerprint,
                token,
                now,
                now + hold,
                now + keep,
                None,
                note,
                now,
            )
        self._answered("begin")
        return self._seen(key)

    async def hold(self, key, token, hold) -> bool:
        """Hold on."""
        self._reached("hold")
        row = self.rows.get(key)
        if row is None or row.token != token or row.state != "running":
            return False
        self.rows[key] = replace(row, held_until=self.clock.now() + hold)
        return True

    async def end(self, key, token, answer, keep):
        """End by the token of whoever began."""
        self._reached("end")
        row = self.rows.get(key)
        if row is not None and row.token == token and row.state == "running":
            if answer is None:
                del self.rows[key]
            else:
                until = self.clock.now() + keep
                self.rows[key] = replace(row, state="done", answer=answer, expires_at=until)
        self._answered("end")
        return self._seen(key)

    async def get(self, key):
        """Look."""
        self._reached("get")
        return self._seen(key)

    def resolve(self, answer: bytes | None) -> None:
        """What an operator does, to the only record there is."""
        ((key, row),) = self.rows.items()
        if answer is None:
            del self.rows[key]
        else:
            self.rows[key] = replace(row, state="done", answer=answer)
