"""The health of an app's worker, where the app is served anyway."""

import asyncio
import json

import outlast
from outlast.http import health


@outlast.workflow
async def nothing_at_all() -> None:
    """Do nothing."""


async def ask(pages, path, method="GET", root=""):
    """Return status, headers and body of one request."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": root}
    await pages(scope, None, send)
    start, body = sent
    return start["status"], dict(start["headers"]), body["body"]


def test_health_of_an_app():
    """Ready while it is open, alive and not ready after; mounted or not; nothing but two paths and two methods."""

    async def main():
        async with outlast.open("memory://", workflows=[nothing_at_all]) as app:
            pages = health(app)
            status, headers, body = await ask(pages, "/readyz")
            assert status == 200
            assert headers[b"content-type"] == b"application/json"
            assert json.loads(body)["worker"] == app.worker.id
            assert (await ask(pages, "/health/livez", root="/health"))[0] == 200
            assert (await ask(pages, "/readyz", "HEAD"))[2] == b""
            status, headers, body = await ask(pages, "/readyz", "POST")
            assert (status, headers[b"allow"], body) == (405, b"GET, HEAD", b"")
            assert (await ask(pages, "/other"))[::2] == (404, b"")
        assert (await ask(pages, "/readyz"))[0] == 503
        assert (await ask(pages, "/livez"))[0] == 200

    asyncio.run(main())


def test_only_http():
    """A socket of another kind is refused as such."""

    async def main():
        async with outlast.open("memory://", workflows=[nothing_at_all]) as app:
            try:
                await health(app)({"type": "websocket"}, None, None)
            except RuntimeError as error:
                return str(error)

    assert asyncio.run(main()) == "health is told by HTTP, not by websocket"
