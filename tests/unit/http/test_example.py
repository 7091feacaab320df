"""The example application runs, and keeps its promise when it is killed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import outlast

FOLDER = Path(__file__).parents[3] / "examples" / "idempotent_api"
ANN = {"authorization": "Bearer ann-token"}


class Api:
    """The example as a process, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        """Start it, at a port that is free."""
        self.server = subprocess.Popen(
            [sys.executable, str(FOLDER / "app.py")],
            cwd=self.folder,
            env={**os.environ, "PORT": "0", "OUTLAST_DATABASE_URL": "sqlite:///api.db"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.server.stderr is not None
        for line in self.server.stderr:
            if found := re.search(r"running on (http://\S+)", line):
                self.address = found[1]
                return
        raise AssertionError("it did not start")

    def kill(self) -> None:
        """End it, as SIGKILL does."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            assert self.server.stderr is not None
            self.server.stderr.close()

    def pay(
        self, key: str | None = '"order-4711"', *, amount: int = 5, user: Any = ANN, **order: Any
    ):
        """Ask for a payment."""
        keys = {} if key is None else {"idempotency-key": key}
        body = {"to": "shop", "amount": amount, **order}
        return httpx.post(
            f"{self.address}/payments", json=body, headers={**user, **keys}, timeout=30
        )

    async def until_started(self) -> None:
        """Wait for a payment's run."""
        async with outlast.connect(f"sqlite:///{self.folder / 'api.db'}") as client:
            while not await client.runs.list():
                await asyncio.sleep(0.02)

    @property
    def paid(self) -> list[str]:
        """What the bank has done."""
        return sorted(file.read_text() for file in (self.folder / "bank").glob("*"))


@pytest.fixture
def api(tmp_path: Path):
    """The example, running."""
    api = Api(tmp_path)
    api.start()
    yield api
    api.kill()


def test_the_example_pays_once(api: Api) -> None:
    """What its README shows, from the first payment to the policy."""
    anonymous, invalid = api.pay(user={}), api.pay(amount=-1)
    assert (anonymous.status_code, invalid.status_code) == (401, 422)
    first, again = api.pay(), api.pay("order-4711")
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert api.pay(amount=6).json()["code"] == "key_reused"
    assert api.pay(None).json()["code"] == "key_missing"
    assert api.pay(user={"authorization": "Bearer bob-token"}).json() != first.json()
    assert api.paid == ["5 to shop\n"] * 2
    policy = httpx.get(f"{api.address}/idempotency").json()
    assert policy["expires_after_seconds"] == 7 * 24 * 3600


def test_the_example_survives_a_kill(api: Api) -> None:
    """The run goes on in the next process, and the probe finds it."""
    order = {"key": '"order-4712"', "amount": 7, "after_seconds": 3}
    with ThreadPoolExecutor() as pool:
        cut_off = pool.submit(api.pay, **order)
        asyncio.run(api.until_started())
        api.kill()
        assert isinstance(cut_off.exception(), httpx.RemoteProtocolError | httpx.ReadError)
    api.start()
    while (found := api.pay(**order)).status_code == 409:
        assert found.json()["code"] == "in_progress"
    assert found.status_code == 202
    where = f"{api.address}{found.headers['location']}"
    while "receipt" not in (shown := httpx.get(where, headers=ANN).json()):
        assert shown["status"] in {"ready", "running", "waiting"}
    assert api.paid == ["7 to shop\n"]
    again = api.pay(**order)
    assert (again.status_code, again.json()) == (202, found.json())
