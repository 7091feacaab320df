"""Asks whether people may still do what they did: who started the run, and who approved an effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from outlast.errors import ApprovalUnauthorisedError
from outlast.store.change import Guard
from outlast.worker.control import Control


class Authority(Protocol):
    """Who may do what, now."""

    async def holds(self, tenant: str, subject: str, role: str, resource: str) -> bool:
        """Whether somebody holds a role."""
        ...

    async def may(self, tenant: str, subject: str, verb: str, resource: str) -> bool:
        """Whether somebody may do something."""
        ...


class Authorised:
    """Asks for one run.

    Args:
        authority: Who is asked; None where everybody may do everything.
        starter: Who started the run.
    """

    def __init__(
        self, authority: Authority | None, tenant: str, workflow: str, starter: str
    ) -> None:
        self._authority = authority
        self._tenant = tenant
        self._workflow = workflow
        self._starter = starter

    @property
    def must_be_asked(self) -> bool:
        """Whether there is anybody to ask."""
        return self._authority is not None

    def guards(self, control: Control) -> tuple[Guard, ...]:
        """Return the rows on which the answers rest."""
        return () if self._authority is None else (control.by_roles,)

    async def check(self, voters: Iterable[tuple[str, str]]) -> None:
        """Return where who started the run may act, and each of those who approved holds their role.

        Raises:
            ApprovalUnauthorisedError: One may not, or nobody could find out.
        """
        if not await self.may("act"):
            raise _unauthorised(self._starter, "", "who started the run may not act any more")
        for who, role in voters:
            if not await self._holds(who, role):
                raise _unauthorised(who, role, "who approved it does not hold the role any more")

    async def may(self, verb: str) -> bool:
        """Return whether who started the run may do something; a bypass where nobody says so is none."""
        if self._authority is None:
            return verb != "bypass"
        try:
            return (
                await self._authority.may(self._tenant, self._starter, verb, self._workflow) is True
            )
        except Exception:  # noqa: BLE001 - the border to a directory of others: what fails is a no
            return False

    async def _holds(self, who: str, role: str) -> bool:
        if self._authority is None:
            return True
        try:
            return await self._authority.holds(self._tenant, who, role, self._workflow) is True
        except Exception:  # noqa: BLE001 - as above
            return False


def _unauthorised(who: str, role: str, what: str) -> ApprovalUnauthorisedError:
    return ApprovalUnauthorisedError(
        f"{what}: {who or 'nobody known'}{f' as {role}' if role else ''}",
        who=who,
        role=role,
        hint="`outlast roles list` says who holds what; then ask for another approval",
    )
