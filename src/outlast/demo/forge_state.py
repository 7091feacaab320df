"""What the forge double remembers: pull requests, its log of requests, and the faults it was ordered to make.

Guards: a pull request is on the disk before anybody is told of it, and a request is in the log before it is acted on; both
survive the double's own death. The log is only ever appended to.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

FAULTS = {
    "drop_before": "closes the connection, and does nothing",
    "drop_after": "acts, then closes the connection without an answer",
    "server_error": "answers 500, and does nothing",
    "rate_limit": "answers 429 with Retry-After, and does nothing",
    "hold": "acts, then keeps the answer until it is released",
}
KINDS = ("create", "list", "get", "any")


@dataclass
class Fault:
    """One order: what to do to which requests, how often."""

    fault: str
    on: str = "create"
    times: int = 1
    retry_after: int = 1

    @classmethod
    def of(cls, order: object) -> Fault:
        """Return the order that a JSON object states.

        Raises:
            ValueError: It is no such order.
        """
        try:
            fault = msgspec.convert(order, cls)
        except msgspec.ValidationError:
            fault = None
        known = {"fault", "on", "times", "retry_after"}
        unknown = isinstance(order, dict) and cast("dict[str, Any]", order).keys() - known
        if (
            unknown
            or fault is None
            or fault.fault not in FAULTS
            or fault.on not in KINDS
            or fault.times < 1
        ):
            raise ValueError(
                f"a fault is one of {', '.join(FAULTS)}, on one of {', '.join(KINDS)}, times >= 1; not {order!r:.200}"
            )
        return fault


class RequestLog:
    """The append-only log: one JSON object a line, on the disk before `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("ab")
        # A last line that a crash cut short was never acted on; what follows must not be glued to it.
        whole = path.read_bytes().rpartition(b"\n")
        self._file.truncate(len(whole[0]) + len(whole[1]))
        self._next = sum(1 for each in self.records() if each["event"] == "request") + 1

    def request(self, **fields: Any) -> int:
        """Log a request and return its number, counted from 1 over the life of the file."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._append({"event": "request", "number": number, **fields})
            return number

    def answer(self, number: int, status: int, fault: str) -> None:
        """Log what a request was answered; status 0 stands for no answer."""
        with self._lock:
            self._append({"event": "answer", "number": number, "status": status, "fault": fault})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def records(self) -> list[dict[str, Any]]:
        """Return every record, oldest first; a last line that is not whole is left out."""
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line]

    def _append(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps({**record, "at": time.time()}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class PullStore:
    """The pull requests, kept in one JSON file that is replaced as a whole."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.pulls: list[dict[str, Any]] = (
            json.loads(path.read_bytes()) if path and path.exists() else []
        )

    def add(self, pull: dict[str, Any]) -> dict[str, Any]:
        """Give a pull request the next number and keep it."""
        with self.lock:
            pull = {"number": len(self.pulls) + 1, **pull}
            self._save([*self.pulls, pull])
            return pull

    def close(self, number: int) -> None:
        """Close a pull request."""
        with self.lock:
            self._save(
                [
                    {**each, "state": "closed"} if each["number"] == number else each
                    for each in self.pulls
                ]
            )

    def _save(self, pulls: list[dict[str, Any]]) -> None:
        if self.path is not None:
            fresh = self.path.with_name(f"{self.path.name}.new")
            with fresh.open("wb") as file:
                file.write(json.dumps(pulls, indent=1).encode())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        self.pulls = pulls


class FaultBox:
    """The faults still to be made, and the answers held back."""

    def __init__(self, orders: list[Fault]) -> None:
        self._changed = threading.Condition()
        self._orders = orders
        self._held: list[int] = []
        self._released = (
            0  # counts releases, so that each frees only the answers held at that moment
        )

    def order(self, faults: list[Fault]) -> None:
        """Add orders; the oldest fitting one is carried out first."""
        with self._changed:
            self._orders += faults

    def take(self, kind: str) -> Fault | None:
        """Use up one order that fits a kind of request."""
        with self._changed:
            for fault in self._orders:
                if fault.on in (kind, "any"):
                    fault.times -= 1
                    self._orders = [each for each in self._orders if each.times > 0]
                    return fault
            return None

    def hold(self, number: int) -> None:
        """Wait until the answer to a request is released."""
        with self._changed:
            turn = self._released
            self._held.append(number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._released > turn)
            self._held.remove(number)

    def release(self) -> None:
        """Let go of every answer that is held now."""
        with self._changed:
            self._released += 1
            self._changed.notify_all()

    def state(self, *, wait_held: float = 0.0) -> dict[str, Any]:
        """Return held requests and open orders, after waiting up to some seconds for a first held one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._held), timeout=wait_held)
            return {
                "held": list(self._held),
                "faults": [vars(each).copy() for each in self._orders],
            }
