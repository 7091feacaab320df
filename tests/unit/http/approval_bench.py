"""Calls the pages as a server does, and signs decisions as a sender does."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from standardwebhooks import Webhook

from outlast.http import Sender, approvals
from outlast.notify.link import Links

from ..notify.notify_bench import Office  # noqa: TID252 - the same office, seen from its front

KEY = "k" * 32
BOT = "whsec_" + base64.b64encode(b"b" * 24).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()
SENDERS = {
    "bot": Sender(BOT, may_speak_for=("*@example.org",)),
    "other": Sender((OTHER,), may_speak_for=("eve@*",)),
    "mute": Sender("whsec_" + base64.b64encode(b"m" * 24).decode()),
}


@dataclass
class Reply:
    """What a client has seen."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body holds."""
        return json.loads(self.body)


async def call(app: Any, method: str, path: str, body: bytes = b"", **scope: Any) -> Reply:
    """Send a request and return the answer."""
    parts, sent = [body[:10], body[10:]], []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(n.encode(), v.encode()) for n, v in scope.pop("headers", {}).items()]
    await app(
        {"type": "http", "method": method, "path": path, "headers": headers, **scope}, receive, send
    )
    start, end = sent
    names = [name.decode() for name, _ in start["headers"]]
    assert len(set(names)) == len(names)
    lines = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], lines, end["body"])


def signed(body: bytes, secret: str = BOT, ago: timedelta = timedelta(0)) -> dict[str, str]:
    """Return the headers of a webhook."""
    at = datetime.now(UTC) - ago
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign("msg_1", at, body.decode()),
    }


class Front:
    """An office with pages in front of it."""

    def __init__(self, senders: Any = SENDERS) -> None:
        self.office = Office()
        self.app = approvals(self.office.client, key=KEY, senders=senders)

    def link(self, run: Any, hours: int = 1, tenant: str = "default") -> str:
        """Return the path of a request's page."""
        end = self.office.clock.now() + timedelta(hours=hours)
        return f"/{Links(KEY).token(tenant, run.run_id, '1~r:1', end)}"

    async def decide(self, secret: str = BOT, headers: Any = None, **said: Any) -> Reply:
        """Post a decision; what is given as None is left out."""
        given = {
            "run_id": "run",
            "approval_id": "1~r:1",
            "decision": "approve",
            "by": "ann@example.org",
            **said,
        }
        body = json.dumps({name: value for name, value in given.items() if value is not None})
        return await self.post(body.encode(), secret, headers)

    async def post(self, body: bytes, secret: str = BOT, headers: Any = None) -> Reply:
        """Post bytes as a decision."""
        lines = signed(body, secret) if headers is None else headers
        return await call(self.app, "POST", "/decisions", body, headers=lines)
