"""The local user of a store: written once, whoever asks."""

from __future__ import annotations

import asyncio

import pytest

from outlast.errors import DecodeError, DefinitionError, StoreError
from outlast.policy.local import LOCAL, LocalUser, local_user
from outlast.store.change import Conflict, PutControl
from outlast.store.memory import MemoryStore
from outlast.testing.conformance.bench import ManualClock


def test_who_opens_a_store_first_is_its_local_user() -> None:
    """Whoever asks later is told the same; the row says since when, and is not written again."""

    async def main() -> None:
        store = MemoryStore(ManualClock())
        assert await local_user(store, "ann@box") == "ann@box"
        row = await store.control("", LOCAL)
        assert row is not None
        assert LocalUser.decode(row[1]) == LocalUser("ann@box", store.now())
        assert await local_user(store, "bob@box") == "ann@box"
        assert await local_user(store, "ann@box") == "ann@box"
        assert await store.control("", LOCAL) == row

    asyncio.run(main())


class Late(MemoryStore):
    """Somebody writes the row between looking and writing."""

    async def commit(self, changes):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Write theirs first."""
        body = LocalUser("ann@box", self.now()).encode()
        await super().commit([PutControl("", LOCAL, 0, body)])
        return await super().commit(changes)


def test_of_two_at_once_one_is_the_local_user() -> None:
    """The other one is told who."""

    async def main() -> None:
        assert await local_user(Late(ManualClock()), "bob@box") == "ann@box"

    asyncio.run(main())


class Deaf(MemoryStore):
    """Keeps nothing."""

    async def commit(self, changes):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Say that it was not written."""
        return [Conflict(0)]


def test_nobody_is_the_local_user_by_mistake() -> None:
    """A row that cannot be read, or names nobody; a store that keeps nothing; a user without a name."""

    async def main() -> None:
        for body in (b"{", b'{"subject":5}'):
            store = MemoryStore(ManualClock())
            await store.commit([PutControl("", LOCAL, 0, body)])
            with pytest.raises(DecodeError, match="the local user"):
                await local_user(store, "ann@box")
        store = MemoryStore(ManualClock())
        await store.commit([PutControl("", LOCAL, 0, LocalUser("", store.now()).encode())])
        with pytest.raises(DefinitionError):
            await local_user(store, "ann@box")
        with pytest.raises(DefinitionError):
            await local_user(MemoryStore(ManualClock()), "")
        with pytest.raises(StoreError, match="did not keep"):
            await local_user(Deaf(ManualClock()), "ann@box")

    asyncio.run(main())
