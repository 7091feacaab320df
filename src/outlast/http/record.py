"""What the server side asks of a client: where the record of each key is kept. `outlast.Client` has it as `requests`."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol


class Record(Protocol):
    """What stands under a key."""

    @property
    def request_id(self) -> str:
        """The hash under which it is kept: what operators call it."""
        ...

    @property
    def state(self) -> str:
        """`running`, `done` or `in doubt`, by the store's clock."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the request that began it."""
        ...

    @property
    def token(self) -> str:
        """Of whoever began it."""
        ...

    @property
    def answer(self) -> bytes | None:
        """What is kept, once it is done."""
        ...


class Requests(Protocol):
    """The records of a tenant."""

    async def begin(
        self,
        key: str,
        *,
        fingerprint: str,
        token: str,
        hold: timedelta,
        keep: timedelta,
        note: bytes = b"",
    ) -> Record:
        """Make a record that runs, or return the one that stands."""
        ...

    async def hold(self, key: str, token: str, hold: timedelta) -> bool:
        """Say that whoever began it still lives."""
        ...

    async def end(
        self, key: str, token: str, answer: bytes | None, keep: timedelta
    ) -> Record | None:
        """Keep an answer, or let the record go; return the one that stands."""
        ...

    async def get(self, key: str) -> Record | None:
        """Return what stands under a key."""
        ...


class Keeper(Protocol):
    """A client."""

    @property
    def requests(self) -> Requests:
        """Where records are kept."""
        ...
