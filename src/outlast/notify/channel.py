"""By what a person is reached: a protocol, and the channels of apprise behind it.

Invariant: neither the name of a channel nor what is said of its failure holds anything of its URL but the scheme: URLs hold passwords.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Protocol, runtime_checkable

from outlast.errors import DefinitionError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
INSTALL = "in a clone of Outlast, pip install '.[notify]'"


@runtime_checkable
class Channel(Protocol):
    """A way to reach somebody.

    Example:
        ```python
        import outlast
        from outlast.notify import Channel

        class Pager:
            name = "pager-of-the-maintainers"  # the same after a restart: what a channel has is not sent to it again

            async def send(self, title: str, body: str, notice_id: str) -> None:
                print(title)  # raise when it did not arrive: it is tried again

        assert isinstance(Pager(), Channel)
        outlast.open("memory://", notify=outlast.Notify({"maintainer": [Pager()]}))
        ```
    """

    @property
    def name(self) -> str:
        """Which channel it is, for the log and for what was reached; holds no secret, and is the same after a restart."""
        ...

    async def send(self, title: str, body: str, notice_id: str) -> None:
        """Send a message, and return once it is accepted.

        Args:
            body: Plain text.
            notice_id: The same for each sending of the same notice, so that a receiver can tell them from two.

        Raises:
            Exception: Whatever it is, the message counts as not sent, and is sent again later.
        """
        ...


class AppriseChannel:
    """One URL of apprise.

    Args:
        url: As `mailto://…`, `slack://…`, `json://…`.
    """

    def __init__(self, url: str) -> None:
        scheme = _SCHEME.match(url)
        if scheme is None:
            raise DefinitionError(
                "a channel is no URL of apprise",
                hint="write one as mailto://user:password@example.org, slack://…, json://…; apprise's wiki lists them",
            )
        self.name = f"{scheme[0].lower()}-{hashlib.sha256(url.encode(errors='backslashreplace')).hexdigest()[:8]}"
        try:
            import apprise
        except ModuleNotFoundError as error:
            raise DefinitionError(f"the channel {self.name} needs apprise", hint=INSTALL) from error
        # What a run wrote is text, whatever it looks like.
        asset = apprise.AppriseAsset(
            app_id="Outlast", app_desc="Outlast", secure_logging=True, interpret_escapes=False
        )
        self._apprise: Any = apprise.Apprise(asset=asset)
        self._text = apprise.NotifyFormat.TEXT
        if not self._is_known(url):
            raise DefinitionError(
                f"apprise does not know what to do with the channel {self.name}",
                hint="see how its URL is written: `apprise --details`, or apprise's wiki",
            )

    def _is_known(self, url: str) -> bool:
        try:
            return bool(self._apprise.add(url))
        except Exception:  # noqa: BLE001 - whichever service the URL names reads it with code of its own
            return False

    async def send(self, title: str, body: str, notice_id: str) -> None:
        """Send a message by way of apprise, whose blocking calls are made in its own threads."""
        text = f"{body}\nnotice {notice_id}"
        if not await self._apprise.async_notify(body=text, title=title, body_format=self._text):
            raise ConnectionError("the service did not take it")
