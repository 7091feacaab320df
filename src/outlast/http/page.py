"""The policy as clients can read it: the draft demands that an API publishes what it expects and promises."""

from __future__ import annotations

import json
from typing import Any

from outlast.http.asgi import send_whole
from outlast.http.policy import IdempotencyPolicy


class PublishedPolicy:
    """An ASGI application that answers GET and HEAD with the policy as JSON.

    It stands at any path, as a route: mounted, it would be reached by way of a redirect, with a slash at the end.

    Example:
        ```python
        from outlast.http import IdempotencyPolicy, PublishedPolicy

        policy = IdempotencyPolicy(principal=lambda scope: scope["user"].identity)
        page = PublishedPolicy(policy)  # Starlette: Route("/idempotency", page); FastAPI: app.add_route("/idempotency", page)
        ```
    """

    def __init__(self, policy: IdempotencyPolicy) -> None:
        self._body = json.dumps(policy.describe(), indent=2).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the policy is read by HTTP, not by {scope['type']}")
        if scope["method"] not in {"GET", "HEAD"}:
            await send_whole(send, 405, [("allow", "GET, HEAD")], b"")
            return
        headers = [("content-type", "application/json"), ("cache-control", "max-age=3600")]
        await send_whole(send, 200, headers, self._body)
