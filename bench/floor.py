"""The floor: single rows of the same size, each committed by itself, as fast as the disk or the server takes them."""

from __future__ import annotations

import json
import time

import apsw
import psycopg

from bench.figure import latency
from bench.flows import PAYLOAD
from bench.place import Place

BODY = json.dumps(PAYLOAD)


def floor(place: Place, number: int = 2000) -> dict[str, float]:
    """Return how many synced single-row commits there are in a second, and how long one takes."""
    if place.name == "memory":
        return {}
    took = (_sqlite if place.name == "sqlite" else _postgres)(place.fresh(), number)
    return {"rate": number / sum(took), **latency(took)}


def _sqlite(url: str, number: int) -> list[float]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = full")
    connection.execute(
        "CREATE TABLE t (run TEXT, position INTEGER, body TEXT, PRIMARY KEY (run, position)) WITHOUT ROWID"
    )
    took: list[float] = []
    for position in range(number):
        began = time.perf_counter()
        connection.execute("INSERT INTO t VALUES ('r', ?, ?)", (position, BODY))
        took.append(time.perf_counter() - began)
    connection.close()
    return took


def _postgres(url: str, number: int) -> list[float]:
    took: list[float] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (run text, position int, body text, PRIMARY KEY (run, position))"
        )
        for position in range(number):
            began = time.perf_counter()
            connection.execute("INSERT INTO t VALUES ('r', %b, %b)", (position, BODY), prepare=True)
            took.append(time.perf_counter() - began)
    return took


def round_trip(url: str, number: int = 500) -> float:
    """Return the median seconds of the shortest question to a server."""
    took: list[float] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(number):
            began = time.perf_counter()
            connection.execute("SELECT 1", prepare=True)
            took.append(time.perf_counter() - began)
    return sorted(took)[number // 2]
