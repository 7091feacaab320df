"""Requests for people as an ASGI application: a page behind each link, and decisions that come in signed.

Invariant: what is read changes nothing, however often and by whomever; the only thing that decides is a signed POST to `/decisions`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from outlast.client import ApprovalView, Client
from outlast.errors import (
    DecisionRefusedError,
    NotAuthorisedError,
    OutlastError,
    RunNotFoundError,
)
from outlast.http.answer import Answer
from outlast.http.asgi import Receive, Scope, Send, send_whole
from outlast.http.body import BodyTooLargeError, read_body
from outlast.http.decision import LARGEST_BYTES, Mailroom, Sender, too_large
from outlast.http.sheet import HEADERS, broken_page, no_page, request_page
from outlast.notify.link import Key, Links, Shown

logger = logging.getLogger("outlast.http")

_DECISIONS = "decisions"


def approvals(
    client: Client, *, key: Key, senders: Mapping[str, Sender] | None = None
) -> ApprovalPages:
    """Return an ASGI application that shows what links lead to, and takes decisions from webhooks.

    It may stand alone or be mounted at any path. Requests of the client's tenant are shown, and no others.

    Args:
        client: An app, or a connection; open while the application answers.
        key: Of the links, as in `outlast.Notify`.
        senders: By name, whose webhooks decide; nobody's by default.

    Raises:
        DefinitionError: The key is short, or a secret is; or what they need is not installed.

    Example:
        ```python
        import outlast
        from outlast.http import Sender, approvals

        key = "a secret of thirty-two characters or more"
        bot = Sender("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", may_speak_for=("*@example.org",))
        async with outlast.open("memory://") as app:
            pages = approvals(app, key=key, senders={"chat": bot})  # Starlette: Mount("/approvals", pages)
        ```
    """
    mailroom = Mailroom(client, senders) if senders else None
    return ApprovalPages(client, Links(key), mailroom)


class ApprovalPages:
    """The application. Made by `approvals`."""

    def __init__(self, client: Client, links: Links, mailroom: Mailroom | None) -> None:
        self._client = client
        self._links = links
        self._mailroom = mailroom

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"requests are shown by HTTP, not by {scope['type']}")
        path = _path_of(scope)
        if path == _DECISIONS and self._mailroom is not None:
            answer = await self._take(self._mailroom, scope, receive)
        elif scope["method"] in {"GET", "HEAD"}:
            answer = await self._show(path)
        else:
            answer = Answer(405, (("allow", "GET, HEAD"),), b"")
        if answer is not None:
            await _send(scope, send, answer)

    async def _take(self, mailroom: Mailroom, scope: Scope, receive: Receive) -> Answer | None:
        """Return the answer to a decision; None when its sender has gone before all of it was there."""
        if scope["method"] != "POST":
            return Answer(405, (("allow", "POST"),), b"")
        try:
            body = await read_body(scope, receive, LARGEST_BYTES)
        except BodyTooLargeError:
            return too_large()
        return None if body is None else await mailroom.answer(scope, body)

    async def _show(self, token: str) -> Answer:
        now = self._client.store.now()
        shown = self._links.read(token, now)
        if shown is None or shown.tenant != self._client.tenant:
            return Answer(404, HEADERS, no_page())
        try:
            view = await self._find(shown)
            page = request_page(view, shown.tenant, now)
        except (DecisionRefusedError, RunNotFoundError):
            return Answer(404, HEADERS, no_page())
        except NotAuthorisedError as error:
            logger.warning("run %s: a request is shown to nobody: %s", shown.run_id, error.message)
            return Answer(404, HEADERS, no_page())
        except OutlastError as error:
            logger.warning("run %s: a request cannot be shown: %s", shown.run_id, error.message)
            return Answer(500, HEADERS, broken_page())
        return Answer(200, HEADERS, page)

    async def _find(self, shown: Shown) -> ApprovalView:
        return await self._client.approvals.get(shown.run_id, shown.approval_id)


def _path_of(scope: Scope) -> str:
    """Return the path below where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    return path.removeprefix("/")


async def _send(scope: Scope, send: Send, answer: Answer) -> None:
    """Send an answer; to HEAD the same without its body."""
    if scope["method"] != "HEAD":
        await send_whole(send, answer.status, answer.headers, answer.body)
        return
    length = ("content-length", str(len(answer.body)))
    lines = [(name.encode(), value.encode()) for name, value in (*answer.headers, length)]
    await send({"type": "http.response.start", "status": answer.status, "headers": lines})
    await send({"type": "http.response.body", "body": b""})
