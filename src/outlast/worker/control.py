"""A worker's copy of the control rows: what is stopped, and how the roles stand.

The copy may be old, and does no harm: whatever rests on it carries the versions that it was read at, and the store refuses what rests
on others. So a yes may come from the copy. A no never does: it is asked of rows that were read after the question.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from outlast.errors import DecodeError
from outlast.policy import Stop, Stops, ToolCall
from outlast.policy.authority import Authority, Roles, StoreAuthority
from outlast.policy.binding import ROLES
from outlast.store.change import Guard, Permit
from outlast.store.protocol import Store

logger = logging.getLogger("outlast.worker")

STOPS = "stops"
"""The row that says what is stopped: in a tenant, and for everybody in the tenant that has no name."""

EVERYBODY = ""

MOST_TENANTS = 10_000
"""The rows of so many tenants are remembered; what is forgotten is read again."""


@dataclass(frozen=True, slots=True)
class Control:
    """The control rows of one tenant, as they were read.

    Args:
        stops: Those for everybody, then those of the tenant.
        unreadable: Why the kill switch cannot be read: nothing may begin then. Empty where it can.
        by_stops: The versions of the rows of the kill switch.
        by_roles: That of the row of roles.
        roles: What that says; None where it cannot be read, or where a directory of the user's takes its place.
    """

    stops: Stops
    unreadable: str
    by_stops: tuple[Guard, ...]
    by_roles: Guard
    roles: Roles | None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is stopped."""
        return not (self.stops.stops or self.unreadable)

    def find(self, call: ToolCall) -> Stop | None:
        """Return the oldest order that stops a call."""
        return self.stops.find(call)


class Controls:
    """The control rows of the tenants whose runs a worker moves."""

    def __init__(self, store: Store, authority: Authority | None) -> None:
        self._store = store
        self._roles = authority if isinstance(authority, StoreAuthority) else None
        self._known: dict[str, Control] = {}
        self._coming: dict[str, asyncio.Task[Control]] = {}
        """Readings that have not begun."""

    def known(self, tenant: str) -> Control | None:
        """Return what was read last, however long ago; None where it has to be read."""
        return self._known.get(tenant)

    def outdated(self, tenant: str, permit: Permit) -> None:
        """Have the rows read again, unless they were since: what rested on them was refused."""
        known = self._known.get(tenant)
        if known is not None and {*known.by_stops, known.by_roles} & {
            *permit.stops,
            *permit.authority,
        }:
            del self._known[tenant]

    async def read(self, tenant: str) -> Control:
        """Return the rows as they are after the call; all who ask before a reading begins share it.

        Raises:
            StoreUnavailableError: They cannot be read now.
        """
        reading = self._coming.get(tenant)
        if reading is None:
            reading = asyncio.get_running_loop().create_task(self._read_anew(tenant))
            reading.add_done_callback(_retrieve)
            self._coming[tenant] = reading
        return await asyncio.shield(reading)

    async def _read_anew(self, tenant: str) -> Control:
        # Whoever is about to ask in this turn of the loop is waited for.
        await asyncio.sleep(0)
        del self._coming[tenant]
        control = await self._read(tenant)
        self._known.pop(tenant, None)
        while len(self._known) >= MOST_TENANTS:
            del self._known[next(iter(self._known))]
        self._known[tenant] = control
        return control

    async def _read(self, tenant: str) -> Control:
        stops: list[Stop] = []
        guards: list[Guard] = []
        unreadable = ""
        for owner in dict.fromkeys((EVERYBODY, tenant)):
            version, body = await self._store.control(owner, STOPS) or (0, b"")
            guards.append(Guard(owner, STOPS, version))
            try:
                stops += Stops.decode(body).stops if body else ()
            except DecodeError as error:
                unreadable = error.message
        row = await self._store.control(tenant, ROLES)
        return Control(
            stops=Stops(tuple(stops)),
            unreadable=unreadable,
            by_stops=tuple(guards),
            by_roles=Guard(tenant, ROLES, row[0] if row is not None else 0),
            roles=self._read_roles(tenant, row),
        )

    def _read_roles(self, tenant: str, row: tuple[int, bytes] | None) -> Roles | None:
        if self._roles is None:
            return None
        try:
            return self._roles.read(tenant, row)
        except DecodeError:
            logger.exception("the roles of tenant %s cannot be read, so nobody holds any", tenant)
            return None


def _retrieve(reading: asyncio.Task[Control]) -> None:
    """Look at how a reading ended that nobody waits for."""
    if not reading.cancelled():
        reading.exception()
