"""The health of an app's worker as an ASGI application: for an app that is served anyway.

It is answered by the event loop that it tells of. One that stands still does not answer at all, which says the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.app import App
from outlast.http.asgi import send_whole
from outlast.worker.vital import livez, readyz

_JUDGES = {"livez": livez, "readyz": readyz}
_HEADERS = (
    ("content-type", "application/json"),
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
)


def health(app: App) -> HealthPages:
    """Return an ASGI application that answers `/livez` and `/readyz` for the app's worker: 200, or 503 with the reasons.

    It may stand alone or be mounted at any path. It tells how many runs the worker has, and nothing of any.

    Args:
        app: Open while the application answers.

    Example:
        ```python
        import outlast
        from outlast.http import health

        async with outlast.open("memory://") as app:
            pages = health(app)  # Starlette: Mount("/health", pages)
        ```
    """
    return HealthPages(app)


class HealthPages:
    """The application. Made by `health`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"health is told by HTTP, not by {scope['type']}")
        judge = _JUDGES.get(_path_of(scope))
        if judge is None:
            await send_whole(send, 404, _HEADERS, b"")
        elif scope["method"] not in {"GET", "HEAD"}:
            await send_whole(send, 405, (*_HEADERS, ("allow", "GET, HEAD")), b"")
        else:
            found = judge(self._app.worker.vitals)
            status = 200 if found.is_ok else 503
            body = msgspec.json.encode(found) if scope["method"] == "GET" else b""
            await send_whole(send, status, _HEADERS, body)


def _path_of(scope: Any) -> str:
    """Return the path below where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    return path.removeprefix("/")
