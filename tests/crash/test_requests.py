"""Requests under an idempotency key and the death of who handles them: one has each, and what it left behind is in doubt."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta

import outlast
from outlast.app import SystemClock
from outlast.client import Client
from outlast.store.sqlite.store import open_sqlite
from outlast.testing import SeededRandom

HOLD = timedelta(minutes=10)
KEEP = timedelta(days=1)
HANDLER = """
import asyncio, os, sys
from datetime import timedelta
import outlast

url, name, count, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

async def main():
    async with outlast.connect(url, create=True) as client:
        print("ready", flush=True)
        sys.stdin.readline()

        async def handle(number):
            given = {"fingerprint": "f", "hold": timedelta(minutes=10), "keep": timedelta(days=1)}
            found = await client.requests.begin(f"k{number}", token=name, note=name.encode(), **given)
            if found.token == name:
                print(f"k{number}", flush=True)
                if end == "ends":
                    await client.requests.end(f"k{number}", name, name.encode(), timedelta(days=1))

        await asyncio.gather(*map(handle, range(count)))
        print("done", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


class Handler:
    """A process that handles requests."""

    def __init__(self, url: str, name: str, count: int, end: str = "ends") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HANDLER, url, name, str(count), end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        """Let it begin, or end."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def began(self) -> list[str]:
        """Return the keys that it has begun, once it is done."""
        assert self.process.stdout is not None
        return [*iter(lambda: self.process.stdout.readline().strip(), "done")]

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=30)
        assert self.process.returncode == -signal.SIGKILL


class Later(SystemClock):
    """The machine's clock, some time later."""

    def now(self):
        """Return the wall time after the hold."""
        return super().now() + HOLD


def test_two_processes_share_no_request(tmp_path) -> None:
    """However many come at once through two processes, each key is begun by exactly one of them, and answered by it."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    handlers = [Handler(url, name, 60) for name in ("a", "b")]
    try:
        for handler in handlers:
            handler.go()
        begun = [handler.began() for handler in handlers]

        async def look() -> dict[str, bytes]:
            async with outlast.connect(url) as client:
                found = {
                    f"k{number}": await client.requests.get(f"k{number}") for number in range(60)
                }
            return {key: one.answer for key, one in found.items()}

        answers = asyncio.run(look())
    finally:
        for handler in handlers:
            handler.kill()
    assert sorted(begun[0] + begun[1]) == sorted(answers)
    assert answers == {
        key: name for keys, name in zip(begun, (b"a", b"b"), strict=True) for key in keys
    }


def test_killed_in_the_middle(tmp_path) -> None:
    """What a killed process has begun is running to all others, in doubt when it is held no longer, and free when somebody says so."""
    path = tmp_path / "s.db"
    handler = Handler(f"sqlite:///{path}", "a", 2, "stays")
    handler.go()
    assert sorted(handler.began()) == ["k0", "k1"]
    handler.kill()
    given = {"fingerprint": "f", "token": "b", "hold": HOLD, "keep": KEEP}

    async def go_on() -> None:
        async with outlast.connect(f"sqlite:///{path}") as client:
            found = await client.requests.begin("k0", **given)
            assert (found.token, found.state, found.note) == ("a", "running", b"a")
        store = await open_sqlite(path, clock=Later())
        try:
            requests = Client(store, random=SeededRandom(1), principal="root").requests
            assert (await requests.begin("k0", **given)).state == "in doubt"
            doubts = await requests.list(state="in doubt")
            assert len(doubts) == 2
            for one in doubts:
                answer = b"by hand" if one.request_id == found.request_id else None
                await requests.resolve(one.request_id, answer=answer, reason="x", seen_token="a")
            assert (await requests.begin("k0", **given)).answer == b"by hand"
            assert (await requests.begin("k1", **given)).token == "b"
        finally:
            await store.close()

    asyncio.run(go_on())
