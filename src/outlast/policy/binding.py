"""Who holds which role where, as data: the body of a tenant's control row `roles`, and what may be done to it.

Invariant: whoever holds a role has a binding of their own, or one by which somebody delegates it who has one: a delegate's delegate holds
nothing. And somebody can always administer the tenant, everywhere and without an end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from outlast.errors import DefinitionError, PolicyError
from outlast.journal.asking import Moment
from outlast.journal.parse import read_as
from outlast.policy.glob import check_glob, covers, fits
from outlast.policy.shown import shown

ROLES = "roles"
"""Name of the control row."""

Verb: TypeAlias = Literal[
    "start", "message", "decide", "resume", "act", "fork", "read", "stop", "pin", "admin", "bypass"
]
"""What is asked for: to start a run; to send to it; to decide a request that names no role; to cancel, pause, resume, resolve or end a run;
to have effects made in one's name; to fork or retry a run; to read arguments, results and what is asked; to throw the kill switch; to
pin definitions of foreign tools; to change roles; to work in the mode `bypass`."""

VERBS: tuple[str, ...] = get_args(Verb)

FREE: frozenset[str] = frozenset({"start", "message", "resume", "act", "fork", "read"})
"""What everybody may do until a role is granted for it."""

OWN = "outlast:"
"""Begins the roles that stand for a verb, as `outlast:start`."""

ADMIN = OWN + "admin"

MOST_BINDINGS = 10_000
"""Of a tenant."""

KEPT_ACTS = 1_000
"""So many acts are remembered; the oldest is forgotten first."""

LONGEST_NAME = 200
"""Characters of a subject or role."""

LONGEST_REASON = 1_000
"""Characters."""

EVERYWHERE = "*"


class RoleBinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One role of one person.

    Args:
        subject: Who holds it.
        role: As requests name it, or `outlast:VERB` for a verb of its own.
        resource: Where: a glob over names of workflows.
        until: From then on it counts no more; None for no end.
        by: Who gave it.
        delegated_by: Whose delegate they are by it. It counts only while that one holds the role by a binding of their own.

    Example:
        ```python
        from outlast import RoleBinding

        binding = RoleBinding(subject="ann", role="treasurer", resource="pay_*")
        assert binding.resource == "pay_*" and binding.until is None
        ```
    """

    subject: str
    role: str
    resource: str = EVERYWHERE
    until: Moment | None = None
    by: str = ""
    delegated_by: str = ""

    def counts(self, role: str, resource: str, now: datetime) -> bool:
        """Whether it gives this role there and now, whoever it is from."""
        is_over = self.until is not None and now >= self.until
        return self.role == role and not is_over and fits(self.resource, resource)

    def is_as(self, other: RoleBinding) -> bool:
        """Whether it says the same, the end apart: one takes the place of the other."""
        return _place(self) == _place(other)


def _place(one: RoleBinding) -> tuple[str, str, str, str]:
    return one.subject, one.role, one.resource, one.delegated_by


class RoleAct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done to the roles of a tenant, for the record.

    Args:
        verb: `grant`, `revoke` or `delegate`.
    """

    verb: Literal["grant", "revoke", "delegate"]
    subject: str
    role: str
    resource: str = EVERYWHERE
    until: Moment | None = None
    by: str
    at: Moment
    reason: str = ""


class Bindings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The roles of a tenant.

    Args:
        bindings: The oldest first.
        guarded: The roles `outlast:VERB` that were ever granted: these verbs are free no more.
        acts: The latest of what was done, the oldest first.
    """

    bindings: tuple[RoleBinding, ...] = ()
    guarded: tuple[str, ...] = ()
    acts: tuple[RoleAct, ...] = ()

    def holding(
        self, subject: str, role: str, resource: str, now: datetime
    ) -> Iterator[RoleBinding]:
        """Return by which bindings somebody holds a role somewhere, those of their own first."""
        own = self._own_holders(role, resource, now)
        found = [
            one
            for one in self.bindings
            if one.subject == subject
            and one.counts(role, resource, now)
            and (not one.delegated_by or one.delegated_by in own)
        ]
        return iter(sorted(found, key=lambda one: bool(one.delegated_by)))

    def holders(self, role: str, resource: str, now: datetime) -> list[str]:
        """Return who holds a role somewhere, in order."""
        own = self._own_holders(role, resource, now)
        lent = {
            one.subject
            for one in self.bindings
            if one.delegated_by in own and one.counts(role, resource, now)
        }
        return sorted(own | lent)

    def _own_holders(self, role: str, resource: str, now: datetime) -> set[str]:
        return {
            one.subject
            for one in self.bindings
            if not one.delegated_by and one.counts(role, resource, now)
        }

    def owns(self, subject: str, role: str, resource: str, now: datetime) -> bool:
        """Whether somebody holds a role by a binding of their own, everywhere where a glob of workflows fits."""
        return any(
            one.subject == subject
            and one.role == role
            and not one.delegated_by
            and (one.until is None or now < one.until)
            and covers(one.resource, resource)
            for one in self.bindings
        )

    def granting(self, binding: RoleBinding, now: datetime, reason: str = "") -> Bindings:
        """Return these and one more, in the place of one that says the same; those that are over are dropped.

        Raises:
            DefinitionError: A name, glob, end or reason cannot be kept, or there are too many.
        """
        check_binding(binding, now)
        others = [
            one
            for one in self.bindings
            if not one.is_as(binding) and (one.until is None or now < one.until)
        ]
        if len(others) >= MOST_BINDINGS:
            raise DefinitionError(
                f"the tenant has {len(others)} role bindings, and takes no more",
                hint="revoke some, or give a role to a group in a directory of your own: outlast.open(authority=…)",
            )
        owned = {binding.role} if binding.role.startswith(OWN) else set[str]()
        act = RoleAct(
            verb="delegate" if binding.delegated_by else "grant",
            subject=binding.subject,
            role=binding.role,
            resource=binding.resource,
            until=binding.until,
            by=binding.by,
            at=now,
            reason=check_reason(reason),
        )
        return Bindings(
            (*others, binding), tuple(sorted({*self.guarded, *owned})), self._acts_with(act)
        )._checked()

    def revoking(self, revoked: Revoked, now: datetime, reason: str = "") -> Bindings:
        """Return these without what is revoked, and without what those delegate who do not hold the role any more.

        Raises:
            DefinitionError: There is no such binding, or nobody could administer the tenant any more.
        """
        kept = tuple(one for one in self.bindings if not revoked.names(one))
        if len(kept) == len(self.bindings):
            raise DefinitionError(
                f"{shown(revoked.subject)} has no such binding of the role {shown(revoked.role)}",
                hint="see `outlast roles list`; the resource is written as it was granted",
            )
        own = {(one.subject, one.role) for one in kept if not one.delegated_by}
        kept = tuple(
            one for one in kept if not one.delegated_by or (one.delegated_by, one.role) in own
        )
        act = RoleAct(
            verb="revoke",
            subject=revoked.subject,
            role=revoked.role,
            resource=EVERYWHERE if revoked.resource is None else revoked.resource,
            by=revoked.by,
            at=now,
            reason=check_reason(reason),
        )
        return replace(self, bindings=kept, acts=self._acts_with(act))._checked()

    def _acts_with(self, act: RoleAct) -> tuple[RoleAct, ...]:
        return (*self.acts, act)[-KEPT_ACTS:]

    def _checked(self) -> Bindings:
        if any(
            one.role == ADMIN and one.resource == EVERYWHERE and one.until is None
            for one in self.bindings
        ):
            return self
        raise DefinitionError(
            "nobody could change the roles of this tenant any more",
            hint=f"grant {ADMIN} to somebody else first, everywhere and without an end",
        )

    def encode(self) -> bytes:
        """Return them as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Bindings:
        """Return what `encode` wrote.

        Raises:
            DecodeError: It did not write that. Nobody holds a role then.
        """
        return read_as(_bindings(), data, "the roles of the tenant")


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """What is taken from somebody.

    Args:
        resource: The glob as it was granted; None for all of them.
        by: Who takes it.
        delegated_by: Only what this one delegates; None for whatever it is from.
    """

    subject: str
    role: str
    resource: str | None = None
    by: str = ""
    delegated_by: str | None = None

    def names(self, one: RoleBinding) -> bool:
        """Whether a binding is meant."""
        return (
            (one.subject, one.role) == (self.subject, self.role)
            and self.resource in (None, one.resource)
            and self.delegated_by in (None, one.delegated_by)
        )


@cache
def _bindings() -> msgspec.json.Decoder[Bindings]:
    return msgspec.json.Decoder(Bindings)


def first_bindings(author: str) -> Bindings:
    """Return the roles of a tenant that had none: whoever sets them up administers it."""
    check_subject(author)
    return Bindings((RoleBinding(subject=author, role=ADMIN, by=author),), (ADMIN,))


def check_binding(binding: RoleBinding, now: datetime) -> None:
    """Refuse a binding that cannot be kept, or that would never count."""
    check_subject(binding.subject)
    check_role(binding.role)
    check_resource(binding.resource)
    until: Any = binding.until
    if until is not None and not (isinstance(until, datetime) and until.tzinfo and until > now):
        raise DefinitionError(
            f"until={until!r} is no end of a role",
            hint="give an aware datetime that is still to come, as datetime.now(UTC) + timedelta(days=7)",
        )
    if binding.delegated_by and (until is None or binding.role.startswith(OWN)):
        raise DefinitionError(
            f"the role {shown(binding.role)} cannot be delegated without an end"
            if until is None
            else f"{binding.role} cannot be delegated",
            hint="give until=: an aware datetime" if until is None else "an admin grants it",
        )


def check_subject(subject: Any) -> str:
    """Return who somebody is, or refuse what is no name of anybody."""
    return _check_text(subject, "somebody")


def check_role(role: Any) -> str:
    """Return a role, or refuse what no request names and no verb has."""
    _check_text(role, "a role")
    if role.startswith(OWN):
        if role.removeprefix(OWN) not in VERBS:
            raise DefinitionError(
                f"{shown(role)} is the role of no verb",
                hint=f"the verbs are {', '.join(VERBS)}",
            )
    elif ":" in role or "#" in role:
        raise DefinitionError(
            f"{shown(role)} cannot be the name of a role",
            hint="a role holds no ':' and no '#', but for the library's own, as outlast:start",
        )
    return role


def check_resource(resource: Any) -> str:
    """Return a glob over names of workflows, or refuse what is none."""
    try:
        return check_glob(resource, "resource")
    except PolicyError as error:
        raise DefinitionError(error.message, hint=error.hint) from None


def check_reason(reason: Any) -> str:
    """Return a reason, or refuse one that cannot be kept."""
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON:
        raise DefinitionError(
            f"reason={shown(reason)} cannot be kept",
            hint=f"write a text of at most {LONGEST_REASON} characters",
        )
    return reason.encode(errors="replace").decode()


def _check_text(given: Any, what: str) -> str:
    if (
        not isinstance(given, str)
        or not given.strip()
        or len(given) > LONGEST_NAME
        or not given.isprintable()
    ):
        raise DefinitionError(
            f"{shown(given)} cannot be the name of {what}",
            hint=f"write a text that is not blank, of at most {LONGEST_NAME} characters, and without control characters",
        )
    return given
