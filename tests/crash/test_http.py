"""A server that is killed (SIGKILL) in the middle of a request with an Idempotency-Key, and one whose client goes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from crash_bench import until

import outlast

SCRIPT = Path(__file__).parent / "http_server.py"
KEY = {"idempotency-key": '"order-1"'}


class Scene:
    """A database, what has happened, and servers that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.database = f"sqlite:///{folder / 'shop.db'}"
        self.file = folder / "happened"
        self.file.touch()
        self.gate = folder / "gate"
        self.servers: list[subprocess.Popen[str]] = []

    def serve(self) -> tuple[subprocess.Popen[str], str]:
        """Start a server, and return it and its address."""
        command = [sys.executable, str(SCRIPT), self.database, str(self.file)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.servers.append(server)
        assert server.stdout is not None
        return server, f"http://127.0.0.1:{json.loads(server.stdout.readline())}/pay"

    def happened(self, what: str) -> int:
        """How often."""
        return self.file.read_text().split().count(what)

    def order(self, stands: str) -> dict[str, Any]:
        """A request whose handler stands somewhere as long as the gate is shut."""
        return {"json": {"amount": 5, "stands": stands, "while": str(self.gate)}, "headers": KEY}


@pytest.fixture
def scene(tmp_path: Path):
    """An empty database."""
    scene = Scene(tmp_path)
    yield scene
    for server in scene.servers:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


@asynccontextmanager
async def under_way(scene: Scene, address: str, stands: str) -> AsyncIterator[None]:
    """Have a request stand there; its client goes in the end."""
    scene.gate.touch()
    async with httpx.AsyncClient(timeout=30) as client:
        asking = asyncio.create_task(client.post(address, **scene.order(stands)))
        await asyncio.to_thread(until, lambda: scene.happened(stands), f"the handler has {stands}")
        yield
        asking.cancel()
        await asyncio.wait({asking})


async def settled(address: str, order: dict[str, Any]) -> httpx.Response:
    """Ask until nothing is in progress any more."""
    async with httpx.AsyncClient(timeout=30) as client:
        while (reply := await client.post(address, **order)).status_code == 409:
            if reply.json()["code"] != "in_progress":
                break
            assert reply.headers["retry-after"] == "1"
        return reply


def say(scene: Scene, answer: bytes | None) -> None:
    """Be the operator."""

    async def main() -> None:
        async with outlast.connect(scene.database) as client:
            (doubt,) = await client.requests.list(state="in doubt")
            assert json.loads(doubt.note)["path"] == "/pay"
            await client.requests.resolve(
                doubt.request_id, answer=answer, reason="looked it up", seen_token=doubt.token
            )

    asyncio.run(main())


def kill_at(scene: Scene, stands: str) -> tuple[str, dict[str, Any]]:
    """Kill a server in the middle of a request; return the address of another one, and the request."""

    async def main() -> None:
        server, address = scene.serve()
        async with under_way(scene, address, stands):
            server.kill()
            server.wait()

    asyncio.run(main())
    scene.gate.unlink()
    return scene.serve()[1], scene.order(stands)


ANSWER = (
    b'{"status": 201, "headers": [["content-type", "application/json"]], "body": "{\\"paid\\": 5}"}'
)


@pytest.mark.parametrize("stands", ["begun", "acted"])
@pytest.mark.parametrize("answer", [None, ANSWER], ids=["did not happen", "happened"])
def test_a_killed_server_leaves_the_key_in_doubt(
    scene: Scene, stands: str, answer: bytes | None
) -> None:
    """Before and after it acted, which nobody can tell: it is not lost, and not run twice, until an operator has spoken."""
    address, order = kill_at(scene, stands)
    reply = asyncio.run(settled(address, order))
    assert (reply.status_code, reply.json()["code"]) == (409, "in_doubt")
    assert "retry-after" not in reply.headers
    assert scene.happened("begun") == 1
    say(scene, answer)
    reply = asyncio.run(settled(address, order))
    assert (reply.status_code, reply.json()) == (201, {"paid": 5})
    assert ("idempotent-replayed" in reply.headers) == (answer is not None)
    assert scene.happened("begun") == (2 if answer is None else 1)


def test_a_server_that_is_killed_after_its_answer_has_given_it(scene: Scene) -> None:
    """It was kept before it was seen."""
    address, order = kill_at(scene, "answered")
    reply = asyncio.run(settled(address, order))
    assert (reply.status_code, reply.json()) == (201, {"paid": 5})
    assert reply.headers["idempotent-replayed"] == "true"
    assert scene.happened("acted") == 1


@pytest.mark.parametrize("stands", ["begun", "acted"])
def test_a_client_that_goes_changes_nothing(scene: Scene, stands: str) -> None:
    """The handler goes on past its hold, and whoever comes with the key next gets its answer."""

    async def main() -> httpx.Response:
        _, address = scene.serve()
        async with under_way(scene, address, stands):
            pass
        reply = await settled_meanwhile(address, scene.gate.unlink)
        assert scene.happened("acted") == 1
        return reply

    async def settled_meanwhile(address: str, release: Callable[[], None]) -> httpx.Response:
        async with httpx.AsyncClient(timeout=30) as client:
            busy = await client.post(address, **scene.order(stands))
            assert busy.json()["code"] == "in_progress"
        release()
        return await settled(address, scene.order(stands))

    reply = asyncio.run(main())
    assert (reply.status_code, reply.json()) == (201, {"paid": 5})
    assert reply.headers["idempotent-replayed"] == "true"
