"""A DOUBLE of GitHub's REST API for pull requests. It is not GitHub: it is a local server that behaves as GitHub documents.

It knows one repository, whose branches it reads from a bare git repository, and serves listing, reading and creating pull
requests: query parameters, Link headers, error bodies and the ignored bare `head` are GitHub's. Beside that it logs each
request and makes faults on order (`/_double/…`). Guards: it acts or does not act exactly as the log and the orders say.

    python -m outlast.demo.forge_double --repo owner/name --repository-git remote.git --log requests.jsonl --port 0

The first line on its standard output is a JSON object with its `url`. Source: GitHub's REST documentation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlsplit

from outlast.demo.forge_answer import API_VERSIONS, Answer, Forge, Request, natural, problem
from outlast.demo.forge_state import Fault, FaultBox, PullStore, RequestLog
from outlast.journal.parse import NotJsonError, parse

_BODY_LIMIT = 1 << 20
_LONGEST_WAIT = 60.0  # seconds of one long poll


class ForgeServer(ThreadingHTTPServer):
    """The double as a server on loopback: one thread a connection, so that a held answer holds nobody else."""

    daemon_threads = True

    def __init__(self, port: int, forge: Forge, log: RequestLog, faults: FaultBox) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.forge, self.log, self.faults = forge, log, faults
        forge.url = f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        """Bind without asking a name server who 127.0.0.1 is, as the parent's parent would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away: that is what the double is for."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Reads requests, carries out faults, sends answers."""

    protocol_version = "HTTP/1.1"
    server: ForgeServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Keep quiet; the log is a file."""

    def do_GET(self) -> None:
        """Answer a GET."""
        self._serve()

    def do_POST(self) -> None:
        """Answer a POST."""
        self._serve()

    def _serve(self) -> None:
        length = natural(self.headers.get("Content-Length"), 0)
        if length > _BODY_LIMIT or self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            self._send(problem(413, "Payload too large"))
            return
        address = urlsplit(self.path)
        query = {
            key: values[-1]
            for key, values in parse_qs(address.query, keep_blank_values=True).items()
        }
        request = Request(
            self.command, address.path, query, self.rfile.read(length), self.headers.get("Authorization", ""),
            self.headers.get("X-GitHub-Api-Version", ""), self.headers.get("User-Agent", ""),
        )  # fmt: skip
        if request.path.startswith("/_double/"):
            self._send(self._control(request))
        else:
            self._documented(request)

    def _documented(self, request: Request) -> None:
        forge, log, faults = self.server.forge, self.server.log, self.server.faults
        kind = forge.kind(request)
        number = log.request(
            kind=kind, method=request.method, path=request.path, query=request.query, version=request.version,
            accept=self.headers.get("Accept", ""), authorized=bool(request.authorization), body=_logged(request.body),
        )  # fmt: skip
        fault = faults.take(kind)
        name = fault.fault if fault else ""
        if name == "drop_before":
            self._drop(number, name)
            return
        answer = _refused(fault) or forge.refusal(request) or forge.act(kind, request)
        if name == "hold":
            faults.hold(number)
        if name == "drop_after":
            self._drop(number, name)
            return
        log.answer(number, answer.status, name)
        self._send(answer)

    def _control(self, request: Request) -> Answer:
        server, faults = self.server, self.server.faults
        match (request.method, request.path):
            case ("GET", "/_double/state"):
                wait = min(float(natural(request.query.get("wait_held"), 0)), _LONGEST_WAIT)
                return Answer(
                    200, {"pulls": server.forge.pulls.pulls, **faults.state(wait_held=wait)}
                )
            case ("GET", "/_double/log"):
                return Answer(200, server.log.records())
            case ("POST", "/_double/faults"):
                try:
                    faults.order([Fault.of(order) for order in parse(request.body)])
                except (ValueError, TypeError) as error:
                    return Answer(400, {"message": str(error)})
                return Answer(200, faults.state())
            case ("POST", "/_double/release"):
                faults.release()
                return Answer(200, faults.state())
            case ("POST", "/_double/close"):
                server.forge.pulls.close(int(request.query.get("number", "0")))
                return Answer(200, {})
            case _:
                return Answer(404, {"message": "the double has no such control"})

    def _drop(self, number: int, fault: str) -> None:
        self.server.log.answer(number, 0, fault)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in (
            *answer.headers,
            ("Content-Type", "application/json; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ):
            self.send_header(name, value)
        self.send_header(
            "X-GitHub-Api-Version-Selected",
            self.headers.get("X-GitHub-Api-Version", API_VERSIONS[0]),
        )
        self.end_headers()
        self.wfile.write(body)


def _refused(fault: Fault | None) -> Answer | None:
    if fault is not None and fault.fault == "server_error":
        return problem(500, "Server Error")
    if fault is not None and fault.fault == "rate_limit":
        limited = problem(
            429,
            "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
        )
        return Answer(429, limited.body, (("Retry-After", str(fault.retry_after)),))
    return None


def _logged(body: bytes) -> Any:
    try:
        return parse(body) if body else None
    except NotJsonError:
        return body.decode(errors="replace")


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(0)


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outlast.demo.forge_double",
        description="A local double of GitHub's pull-request API. It is not GitHub.",
    )
    add = parser.add_argument
    add("--repo", required=True, help="owner/name of the one repository it knows")
    add(
        "--repository-git", required=True, type=Path, help="the bare git repository of its branches"
    )
    add("--log", required=True, type=Path, help="file that each request is appended to")
    add("--state", type=Path, help="file of the pull requests; without it they die with the double")
    add("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    add("--token", default="", help="the only token it accepts; without it, any")
    add("--fault", action="append", default=[], help='as {"fault": "drop_after", "on": "create"}')
    add(
        "--until-stdin-closes",
        action="store_true",
        help="end when the process that started it ends",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the double until it is told to end; return 1 if it cannot start."""
    wish = _parser().parse_args(arguments)
    try:
        forge = Forge(wish.repo, wish.repository_git, PullStore(wish.state), wish.token)
        faults = FaultBox([Fault.of(parse(order)) for order in wish.fault])
        server = ForgeServer(wish.port, forge, RequestLog(wish.log), faults)
    except (OSError, ValueError) as error:
        print(f"the forge double cannot start: {error}", file=sys.stderr)
        return 1
    with server:
        signal.signal(signal.SIGTERM, _end)  # a double has nothing to tidy up: all is on the disk
        if wish.until_stdin_closes:
            threading.Thread(target=_end_with_stdin, daemon=True).start()
        first = {"url": forge.url, "port": server.server_address[1], "pid": os.getpid()}
        print(json.dumps(first), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
