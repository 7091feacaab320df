"""What a store knows of having been put back to an earlier state, and what was released since: the body of a control row for all tenants.

Invariant: a store that may have forgotten something is held until somebody says what goes on: a row that cannot be read holds too.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec.structs import replace

from outlast.errors import DecodeError
from outlast.journal.asking import Moment
from outlast.journal.parse import read_as

RESTORATION = "restoration"
"""Name of the control row."""

EVERYBODY = ""
"""The tenant of what counts for all of them."""

_KEPT = 100
"""So many releases are told of; older ones are dropped."""


class Restoration(msgspec.Struct, frozen=True):
    """That the store was put back.

    Args:
        timeline: The id of its history from then on.
        former: The one before.
        at: When that was noticed, or done.
        until: Up to when nothing is forgotten: the time of the newest change that is still there.
        why: How it is known.
    """

    timeline: str
    former: str
    at: Moment
    until: Moment
    why: str


class Released(msgspec.Struct, frozen=True):
    """What somebody let go on.

    Args:
        what: In words: which runs.
        runs: How many that were.
        trusted: They vouched that nothing was forgotten.
    """

    at: Moment
    by: str
    reason: str
    what: str
    runs: int = 0
    trusted: bool = False


class Releases(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row.

    Args:
        restored: The last time that the store was put back.
        held: Since then not everything was released: workers move only what was.
        trusted: Since then somebody vouched for all runs that nothing was forgotten.
        times: How often everything was released. A worker that was started paused goes on when it grows.
        log: The last releases, oldest first.
    """

    restored: Restoration | None = None
    held: bool = False
    trusted: bool = False
    times: int = 0
    log: tuple[Released, ...] = ()

    def putting_back(self, restoration: Restoration) -> Releases:
        """Return the row of a store that was put back."""
        return replace(self, restored=restoration, held=True, trusted=False)

    def releasing(self, released: Released, *, everything: bool) -> Releases:
        """Return the row after a release."""
        log = (*self.log, released)[-_KEPT:]
        if not everything:
            return replace(self, log=log)
        trusted = self.trusted or released.trusted
        return replace(self, log=log, held=False, trusted=trusted, times=self.times + 1)

    def encode(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Releases:
        """Return what `encode` wrote.

        Raises:
            DecodeError: It did not write that.
        """
        return read_as(_rows, data, "what was released after a restore")

    @staticmethod
    def of(row: tuple[int, bytes] | None) -> Releases:
        """Return what a control row holds; where there is none, nothing was put back.

        Raises:
            DecodeError: It cannot be read.
        """
        return Releases() if row is None else Releases.decode(row[1])


def put_back(body: bytes | None, restoration: Restoration) -> bytes:
    """Return the body of the row of a store that was put back.

    Args:
        body: As it stands; None where there is none. One that cannot be read is replaced.
    """
    try:
        known = Releases() if body is None else Releases.decode(body)
    except DecodeError:
        known = Releases()
    return known.putting_back(restoration).encode()


def moment_of(known: datetime | None, now: datetime) -> datetime:
    """Return up to when nothing is forgotten, never later than now.

    Args:
        known: The time of the newest change; None where there is none.
    """
    return now if known is None else min(known, now)


_rows = msgspec.json.Decoder(Releases)
