"""Who the local user of a store is, as data: the body of the control row `local` for everybody, written once, by who opens it first.

Invariant: there is one local user of a store, whichever process asks, and of whichever tenant.
"""

from __future__ import annotations

import msgspec

from outlast.errors import StoreError
from outlast.journal.asking import Moment
from outlast.journal.parse import read_as
from outlast.policy.binding import check_subject
from outlast.store.change import Applied, PutControl
from outlast.store.protocol import Store

LOCAL = "local"
"""Name of the control row."""

EVERYBODY = ""
"""The tenant of what counts for all of them."""

_TRIES = 20
"""So often the row is read and, where there is none, written."""


class LocalUser(msgspec.Struct, frozen=True):
    """The row.

    Args:
        subject: Who holds every role of a tenant whose roles were never set.
        since: When that was written.
    """

    subject: str
    since: Moment

    def encode(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> LocalUser:
        """Return what `encode` wrote.

        Raises:
            DecodeError: It did not write that.
        """
        return read_as(_users, data, "the local user")


async def local_user(store: Store, subject: str) -> str:
    """Return who is the local user of a store: who is written there; where nobody is, `subject`, who is from now on.

    Args:
        subject: The user of the operating system who asks.

    Raises:
        DecodeError: The row cannot be read: nobody can be told from anybody else then.
        StoreError: It can be neither read nor written.
    """
    for _ in range(_TRIES):
        row = await store.control(EVERYBODY, LOCAL)
        if row is not None:
            return check_subject(LocalUser.decode(row[1]).subject)
        body = LocalUser(check_subject(subject), store.now()).encode()
        (verdict,) = await store.commit([PutControl(EVERYBODY, LOCAL, 0, body)])
        if isinstance(verdict, Applied):
            return subject
    raise StoreError(
        "the store did not keep who its local user is", hint="try again, and see `outlast doctor`"
    )


_users = msgspec.json.Decoder(LocalUser)
