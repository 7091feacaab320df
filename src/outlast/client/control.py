"""How a control row is changed: read, change, write, and again when somebody else was faster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from outlast.client.port import Port
from outlast.errors import StoreError
from outlast.store.change import Applied, Conflict, PutControl

_TRIES = 20
"""So many others may be faster, one after another."""


async def change_row(
    client: Port,
    tenant: str,
    name: str,
    changed: Callable[[tuple[int, bytes] | None], Awaitable[bytes]],
) -> None:
    """Write what `changed` makes of a control row, which nobody has changed meanwhile.

    Args:
        changed: Given version and body, or None where there is no such row; raises where it may not be, or cannot be, changed.

    Raises:
        StoreError: Others were faster each time, or the store answers something else.
    """
    for _ in range(_TRIES):
        row = await client.store.control(tenant, name)
        version = 0 if row is None else row[0]
        body = await changed(row)
        verdict = await client.commit(PutControl(tenant, name, version, body))
        match verdict:
            case Applied():
                return
            case Conflict():
                # An answer that was lost: what stands there is ours.
                if await client.store.control(tenant, name) == (version + 1, body):
                    return
            case _:
                raise StoreError(f"the store did not keep the row {name!r}: it answered {verdict}")
    raise StoreError(
        f"the row {name!r} was changed by somebody else {_TRIES} times in a row",
        hint="try again",
    )
