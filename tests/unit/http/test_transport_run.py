"""Effects whose requests go out by the transport, to a real server: one key whatever happens, and an end where a key is reused."""

# ruff: noqa: D102, D103 - the doubles, workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import http_sf
import httpx
import pytest

import outlast
from outlast.errors import KeyReusedError
from outlast.http.transport import IdempotentTransport, SyncIdempotentTransport
from outlast.journal.entry import EffectIntended
from outlast.store.change import Status
from outlast.testing import attempt
from outlast.workflows.carry import Errand, current_errand
from outlast.workflows.heartbeat import Beats

# A receiver on loopback that knows keys, as the draft says: the first answer again, 409 while it is busy, 422 for other content.


class Shop:
    """What the server knows, and what is to happen.

    Args:
        applied: Each order that was carried out.
        seen: Each request: its key as it was sent, and its body.
        busy: So many requests find that the first one with their key is in progress.
        after: Called once when an order was carried out, before it is answered.
    """

    def __init__(self) -> None:
        self.url = ""
        self.applied: list[object] = []
        self.seen: list[tuple[str | None, bytes]] = []
        self.busy = 0
        self.after: Callable[[bytes], None] | None = None
        self._known: dict[str, tuple[bytes, bytes]] = {}
        self._lock = threading.Lock()

    def order(self, header: str | None, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            self.seen.append((header, body))
            if header is None:
                return 400, b'{"title": "a key is needed"}'
            key, _ = http_sf.parse(header.encode(), tltype="item")
            assert type(key) is str
            if self.busy:
                self.busy -= 1
                return 409, b'{"title": "in progress"}'
            if key in self._known:
                content, answer = self._known[key]
                if content != body:
                    return 422, b'{"title": "the key is used"}'
                return 201, answer
            order = json.loads(body)
            if order.get("amount", 1) < 1:
                return 400, b'{"title": "amount must be positive"}'
            self.applied.append(order)
            answer = json.dumps({"order": len(self.applied)}).encode()
            self._known[key] = (body, answer)
            after, self.after = self.after, None
        if after is not None:
            after(body)
        return 201, answer


@pytest.fixture
def shop() -> Iterator[Shop]:
    own = Shop()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = own.order(self.headers.get("Idempotency-Key"), body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("Content-Type", "application/json")
            if status == 409:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the client was killed
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    own.url = f"http://127.0.0.1:{server.server_port}/orders"
    yield own
    server.shutdown()
    thread.join()
    server.server_close()


QUICK = outlast.RetryPolicy(initial_interval=timedelta(milliseconds=1))
count = itertools.count()
url: list[str] = [""]


async def post(content: Any) -> Any:
    transport = IdempotentTransport(httpx.AsyncHTTPTransport(), retry=_short())
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        response = await client.post(url[0], json=content)
        return response.raise_for_status().json()["order"]


def _short() -> outlast.RetryPolicy:
    return outlast.RetryPolicy(initial_interval=timedelta(milliseconds=1), maximum_attempts=3)


class RefusedError(Exception):
    """The receiver does not take the order as it is."""


FINAL = outlast.RetryPolicy(
    initial_interval=timedelta(milliseconds=1), non_retryable_error_types=("RefusedError",)
)


@outlast.effect(idempotent=True, retry=FINAL, raises=(RefusedError,))
async def order(item: str, amount: int) -> int:
    try:
        return await post({"item": item, "amount": amount})
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 400:
            raise RefusedError(error.response.json()["title"]) from None
        raise


@outlast.effect(idempotent=True, retry=QUICK)
async def forgetful_order(item: str) -> int:
    """Sends other content each time, and loses the first answer."""
    number = next(count)
    placed = await post({"item": item, "sent": number})
    if outlast.attempt().number == 1:
        raise OSError("the answer was lost")
    return placed


@outlast.effect(idempotent=True, retry=QUICK)
def plain_order(item: str) -> int:
    with httpx.Client(transport=SyncIdempotentTransport(retry=_short()), trust_env=False) as client:
        return client.post(url[0], json={"item": item}).raise_for_status().json()["order"]


@outlast.workflow
async def buy(item: str, amount: int) -> int:
    return await order(item, amount)


@outlast.workflow
async def buy_plainly(item: str) -> int:
    return await plain_order(item)


@outlast.workflow
async def correct(item: str) -> int:
    try:
        return await order(item, 0)
    except RefusedError:
        return await order(item, 1)


@outlast.workflow
async def buy_forgetfully(item: str) -> int:
    return await forgetful_order(item)


@outlast.effect(idempotent=True, retry=QUICK, key_on=("item",))
async def order_by_item(item: str, amount: int) -> int:
    return await post({"item": item, "amount": amount})


@outlast.workflow
async def buy_by_item(item: str, amount: int) -> int:
    return await order_by_item(item, amount)


@outlast.effect(start_to_close_timeout=timedelta(seconds=0.3), settle=timedelta(0))
async def careful_order(item: str) -> int:
    return await post({"item": item})


@outlast.workflow
async def buy_carefully(item: str) -> int:
    return await careful_order(item)


def run(call: Any) -> tuple[Any, list[str]]:
    """Run a workflow in a store of its own; return what came of it, and the keys of its effects."""

    async def main() -> tuple[Any, list[str]]:
        async with outlast.open("memory://") as app:
            try:
                end: Any = await app.run(call, id="shop-1")
            except outlast.WorkflowFailedError as error:
                end = error.__cause__
            journal = await app.handle("shop-1").journal()
            entries = [one.entry for one in journal]
            return end, [one.key for one in entries if isinstance(one, EffectIntended)]

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def _address(shop) -> None:
    url[0] = shop.url


@pytest.mark.parametrize("name", ["buy", "buy_plainly"])
def test_the_key_of_the_intent_arrives_and_an_order_in_progress_is_waited_for(shop, name) -> None:
    """By the asynchronous and by the synchronous transport: three requests under one key, one order."""
    shop.busy = 2
    end, keys = run(buy("tea", 1) if name == "buy" else buy_plainly("tea"))
    assert end == 1
    assert [header for header, _ in shop.seen] == [f'"{keys[0]}"'] * 3
    assert len(keys) == 1 and len(shop.applied) == 1


def test_a_lost_answer_is_given_again(shop) -> None:
    """The connection breaks when the order is placed, in each try of the first attempt: later ones get the first one's answer."""
    broken: list[bytes] = []

    def cut(body: bytes) -> None:
        broken.append(body)
        raise ConnectionError

    shop.after = cut
    end, keys = run(buy("tea", 1))
    assert (end, len(shop.applied), len(shop.seen), len(broken)) == (1, 1, 2, 1)
    assert {header for header, _ in shop.seen} == {f'"{keys[0]}"'}


def test_a_key_with_other_content_stops_the_run_at_once(shop) -> None:
    """As a bug: one request, no further attempt although the policy has no end, and the workflow gets the error as itself."""
    assert run(buy_by_item("tea", 1))[0] == 1
    shop.seen.clear()
    end, keys = run(buy_by_item("tea", 2))
    assert isinstance(end, KeyReusedError)
    assert (end.status, end.run, end.step) == (422, "shop-1", "order_by_item")
    assert len(shop.seen) == 1 and len(shop.applied) == 1
    assert keys[0] not in str(end)


def test_content_that_changes_from_attempt_to_attempt_is_found_out(shop) -> None:
    """The first attempt was carried out; the second one sends another content under the key, and the run stops."""
    end, _ = run(buy_forgetfully("tea"))
    assert isinstance(end, KeyReusedError)
    assert len(shop.seen) == 2 and len(shop.applied) == 1


def test_corrected_content_has_another_key(shop) -> None:
    """What the receiver did not take is changed by the workflow: another call, another key."""
    end, keys = run(correct("tea"))
    assert end == 1
    assert [header for header, _ in shop.seen] == [f'"{key}"' for key in keys]
    assert len(set(keys)) == 2


def test_a_receiver_that_may_not_know_keys_is_asked_once(shop) -> None:
    """An effect that is not idempotent sends its key, and nothing twice: it goes in doubt, as its declaration says."""
    shop.busy = 1

    async def main() -> str:
        async with outlast.open("memory://") as app:
            handle = await app.start(buy_carefully("tea"), id="shop-1")
            while (status := await handle.status()).status is not Status.BLOCKED:
                await asyncio.sleep(0.01)
            return status.reason

    assert "doubt" in asyncio.run(main())
    assert len(shop.seen) == 1 and shop.seen[0][0]


def test_a_thread_whose_connection_is_ready_too_late_sends_nothing(shop) -> None:
    """Waiting for the pool, the connection and TLS has taken the attempt's time, each less than all of it."""
    left = [9.0]

    def connected(event: str, info: object) -> None:
        if event == "connection.connect_tcp.complete":
            left[0] = 0.0

    with attempt(key="k"), httpx.Client(transport=SyncIdempotentTransport()) as client:
        token = current_errand.set(Errand(lambda: left[0], Beats(lambda: 0.0)))
        with pytest.raises(httpx.ConnectTimeout, match="the time of the attempt is over"):
            client.post(shop.url, json={}, extensions={"trace": connected})
        assert not current_errand.get().sent.may_have_acted
        current_errand.reset(token)
    assert shop.seen == [] and left == [0.0]


PROGRAM = """
import asyncio, sys
import httpx, outlast
from outlast.http.transport import IdempotentTransport

@outlast.effect(idempotent=True)
async def order(item: str, url: str) -> int:
    async with httpx.AsyncClient(transport=IdempotentTransport(), trust_env=False) as client:
        response = await client.post(url, json={"item": item, "size": 1})
        return response.raise_for_status().json()["order"]

@outlast.workflow
async def buy(item: str, url: str) -> int:
    return await order(item, url)

async def main() -> None:
    async with outlast.open("sqlite:///shop.db") as app:
        print(await app.run(buy("tea", sys.argv[1]), id="shop-1"))

asyncio.run(main())
"""


@pytest.mark.crash
def test_a_process_that_dies_after_the_order_and_its_successor_send_one_key(shop, tmp_path) -> None:
    """The receiver has placed the order when the process is killed: the next one gets the first answer."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), shop.url]
    process: list[subprocess.Popen[str]] = []

    def kill(_: bytes) -> None:
        os.kill(process[0].pid, signal.SIGKILL)
        process[0].wait()

    shop.after = kill
    process.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
    process[0].communicate(timeout=60)
    assert process[0].returncode == -signal.SIGKILL
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "1"
    assert len(shop.applied) == 1 and len(shop.seen) == 2
    assert len({header for header, _ in shop.seen}) == 1
