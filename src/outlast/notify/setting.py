"""What a notifier is told: whom to reach by what, how much a message shows, and where its links lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from outlast.effects.key import check_tenant
from outlast.errors import DefinitionError
from outlast.notify.channel import AppriseChannel, Channel
from outlast.notify.link import Key, Links

Show: TypeAlias = Literal["summary", "full", "nothing"]
"""Names of effects and the beginning of the subject; all of it; or that somebody is asked, and nothing of what."""

EVERYBODY = "*"
"""Stands for each role that has no channels of its own, and for all tenants."""

_SHOWS = ("summary", "full", "nothing")


@dataclass(frozen=True, slots=True)
class Notify:
    """How people are told of requests, for `outlast.open(notify=…)`.

    Args:
        channels: By role, what its people are reached by: URLs of apprise, or channels of one's own. `"*"` is for roles that are not named.
        link_base: Where `outlast.http.approvals()` answers, as `https://agents.example.org/approvals`; no links without it.
        key: Signs the links: at least 32 characters that nobody else knows; several, the newest last, while keys change.
        show: How much a message holds of what the run asks.
        tenant: Whose requests are told of: the tenant of the app or worker by default; `"*"` for all tenants of the store.

    Raises:
        DefinitionError: There is no channel, one that is none, or a link without a key.

    Example:
        ```python
        import asyncio
        from datetime import timedelta

        import outlast

        @outlast.workflow
        async def publish(text: str) -> str:
            grant = await outlast.approval({"text": text}, role="editor", expires_in=timedelta(hours=1))
            return grant.by

        class Printer:
            name = "printer"

            async def send(self, title: str, body: str, notice_id: str) -> None:
                print(title)
                told.set()

        told = asyncio.Event()
        notify = outlast.Notify({"editor": [Printer()]})  # or ["mailto://…", "slack://…"]
        async with outlast.open("memory://", notify=notify) as app:
            await app.start(publish("hello"), id="post-1")
            await told.wait()
        ```
    """

    channels: Mapping[str, Sequence[str | Channel]] = field(repr=False)
    link_base: str = ""
    key: Key = field(default="", repr=False)
    show: Show = "summary"
    tenant: str = ""
    by_role: Mapping[str, tuple[Channel, ...]] = field(init=False, repr=False)
    links: Links | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the channels: what is wrong with one is said before anybody has to be reached."""
        object.__setattr__(self, "by_role", _by_role(self.channels))
        if self.show not in _SHOWS:
            raise DefinitionError(
                f"show={self.show!r} is no amount of what a message shows",
                hint='write "summary", "full" or "nothing"',
            )
        if self.link_base and not _is_base(self.link_base):
            raise DefinitionError(
                f"link_base={self.link_base[:200]!r} is no place that a link can lead to",
                hint="write the URL of outlast.http.approvals(), as https://agents.example.org/approvals",
            )
        if self.tenant not in ("", EVERYBODY):
            check_tenant(self.tenant)
        if bool(self.link_base) != bool(self.key):
            raise DefinitionError(
                "links need both a link_base and a key",
                hint="give both, or neither: messages then say what to type, and hold no link",
            )
        object.__setattr__(self, "links", Links(self.key) if self.key else None)

    def channels_of(self, role: str) -> tuple[Channel, ...]:
        """Return by what those of a role are reached."""
        return self.by_role.get(role, self.by_role.get(EVERYBODY, ()))


def _by_role(given: Any) -> Mapping[str, tuple[Channel, ...]]:
    if not isinstance(given, Mapping) or not given:
        raise DefinitionError(
            "there is nobody to reach: channels is empty, or no mapping",
            hint='write {"maintainer": ["mailto://…"], "*": ["slack://…"]}',
        )
    roles = cast("Mapping[Any, Any]", given)
    return {_role(role): _channels(role, ways) for role, ways in roles.items()}


def _role(role: object) -> str:
    if isinstance(role, str) and role:
        return role
    raise DefinitionError(
        f"a key of channels is no role: {role!r}", hint='name a role, or "*" for all others'
    )


def _channels(role: str, ways: object) -> tuple[Channel, ...]:
    several = isinstance(ways, Sequence) and not isinstance(ways, str | bytes)
    if not several or not ways:
        raise DefinitionError(
            f"the channels of {role!r} are no list, or an empty one",
            hint=f'write {{"{role}": ["mailto://…"]}}',
        )
    found = tuple(_channel(role, one) for one in cast("Sequence[object]", ways))
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise DefinitionError(
            f"two channels of {role!r} have one name", hint="name each otherwise, or leave one out"
        )
    return found


def _channel(role: str, way: object) -> Channel:
    if isinstance(way, str):
        return AppriseChannel(way)
    if isinstance(way, Channel):
        return way
    raise DefinitionError(
        f"a channel of {role!r} is none: {type(way).__name__}",
        hint="give a URL of apprise, or an object with a name and `async def send(title, body, notice_id)`",
    )


def _is_base(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and " " not in text
    is_whole = bool(parts.netloc) and not parts.query and not parts.fragment
    return is_plain and is_whole and parts.scheme in {"http", "https"}
