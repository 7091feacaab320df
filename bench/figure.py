"""What is printed: one JSON object a line; and what is counted of a process."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil


def quiet() -> None:
    """Let Outlast say what it opens to a log that nobody reads; what goes wrong is still seen."""
    logger = logging.getLogger("outlast")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    told = logging.StreamHandler()
    told.setLevel(logging.WARNING)
    logger.addHandler(told)


def emit(scenario: str, place: str, **figures: Any) -> None:
    """Print one line; times are rounded to what they are worth."""
    print(
        json.dumps({"peer": f"Outlast/{place}", "scenario": scenario, **_rounded(figures)}),
        flush=True,
    )


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 5) if isinstance(value, float) else value
        for name, value in figures.items()
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the slowest hundredth, in milliseconds."""
    return {"p50_ms": 1000 * percentile(seconds, 0.5), "p99_ms": 1000 * percentile(seconds, 0.99)}


def resident_bytes() -> int:
    """Return how much memory this process has."""
    return psutil.Process().memory_info().rss


class Spent:
    """Wall time and CPU time of this process, and CPU time of the store's server, from entering to leaving.

    Args:
        server: Process of a server, whose children count too; None where the store has none.
    """

    def __init__(self, server: int | None = None) -> None:
        self._server = psutil.Process(server) if server is not None else None
        self.seconds = self.cpu = self.server_cpu = 0.0

    def __enter__(self) -> Spent:
        self._before = self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        after = self._now()
        self.seconds, self.cpu, self.server_cpu = (
            now - then for now, then in zip(after, self._before, strict=True)
        )

    def per(self, number: int) -> dict[str, float]:
        """Return the CPU time of one of `number` things, in microseconds."""
        told = {"cpu_us": 1e6 * self.cpu / number}
        return (
            told
            if self._server is None
            else {**told, "server_cpu_us": 1e6 * self.server_cpu / number}
        )

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), _tree_seconds(self._server)


def _tree_seconds(server: psutil.Process | None) -> float:
    """Return the CPU seconds of a server and of its processes, those that have ended included."""
    if server is None:
        return 0.0
    own = server.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in server.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def note_line(file: str, line: str) -> None:
    """Append a line, whole or not at all, whatever happens to this process next."""
    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def noted_lines(file: Path) -> list[str]:
    """Return the lines of a file, none where it is missing."""
    return file.read_text().splitlines() if file.exists() else []
