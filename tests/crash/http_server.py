"""A server process: payments under an Idempotency-Key, served by uvicorn from a database and counted in a file.

`python http_server.py DATABASE FILE` prints its port. What the file says is what happened; while the file named by the body exists, the handler
stands where the body says: `begun`, `acted`, or `answered`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import outlast
from outlast.http import IdempotencyMiddleware, IdempotencyPolicy

HOLD = timedelta(seconds=0.4)


def note(file: Path, what: str) -> None:
    """Write a line that a kill does not take back."""
    with file.open("a") as out:
        out.write(f"{what}\n")
        out.flush()
        os.fsync(out.fileno())


def app_of(database: str, file: Path) -> Starlette:
    """Return the application."""

    async def stand(order: dict[str, str], where: str) -> None:
        note(file, where)
        while order["stands"] == where and Path(order["while"]).exists():
            await asyncio.sleep(0.01)

    async def pay(request: Request) -> JSONResponse:
        order = await request.json()
        await stand(order, "begun")
        await stand(order, "acted")
        return JSONResponse(
            {"paid": order["amount"]}, 201, background=BackgroundTask(stand, order, "answered")
        )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        async with outlast.connect(database, create=True) as client:
            yield {"outlast": client}

    policy = IdempotencyPolicy(principal=lambda _: "ann", hold=HOLD)
    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])], lifespan=lifespan)
    app.add_middleware(
        IdempotencyMiddleware, client=lambda scope: scope["state"]["outlast"], policy=policy
    )
    return app


def main() -> None:
    """Serve until killed."""
    database, file = sys.argv[1:]
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(json.dumps(listening.getsockname()[1]), flush=True)
    config = uvicorn.Config(app_of(database, Path(file)), log_level="warning", lifespan="on")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
