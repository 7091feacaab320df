# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Which of the rows that are due are taken: the oldest of each place are chosen without a lock, then locked by age, until there are enough.

So whoever takes n rows locks n, however many places it looks at. What others have locked is passed over; where they have locked so much
of what was chosen that too little is left, more is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from outlast.store.postgres.session import Pending, Session
from outlast.store.row import Row

_TRIES = 4
_MORE = 4
"""So often it is chosen, and each time so many times as much: 63 others may take as many of one place at the same moment."""


class Table(Struct, frozen=True):
    """Where rows wait.

    Args:
        name: Of the table, and in what is asked of its rows.
        key: Its columns.
        place: The columns by which a worker finds what it may take.
        columns: What is read of a row that is taken.
    """

    name: str
    key: tuple[str, ...]
    place: tuple[str, ...]
    columns: str


def choosing(table: Table, fit: str, order: str, condition: str) -> str:
    """Return the statement that locks the first rows of all places, each led by what gives its turn, and before that the most chosen of a place.

    Args:
        fit: Begins the statement, and gives the places by the name `fit`.
        order: The column that gives a row its turn.
        condition: What else holds of the rows.
    """
    name = table.name
    keys = ", ".join(f"{name}.{one}" for one in table.key)
    found = ", ".join(f"found.{one}" for one in table.key)
    places = ", ".join(f"{name}.{one}" for one in table.place)
    in_place = " AND ".join(f"{name}.{one} = fit.{one}" for one in table.place)
    place = ", ".join(table.place)
    is_chosen = " AND ".join(f"{name}.{one} = chosen.{one}" for one in table.key + table.place)
    return f"""
{fit}, chosen AS MATERIALIZED (
    SELECT found.* FROM fit, LATERAL (
        SELECT {name}.{order} AS turn, {keys}, {places} FROM $s.{name} AS {name}
        WHERE {in_place} AND {condition} ORDER BY {name}.{order}, {keys} LIMIT %b
    ) AS found ORDER BY found.turn, {found}
), free AS MATERIALIZED (
    SELECT one.* FROM chosen, LATERAL (
        SELECT {name}.{order} AS turn, {table.columns} FROM $s.{name} AS {name}
        WHERE {is_chosen} AND {condition} FOR UPDATE SKIP LOCKED
    ) AS one LIMIT %b
)
SELECT (SELECT count(*) FROM chosen GROUP BY {place} ORDER BY 1 DESC LIMIT 1), free.* FROM (SELECT 1) AS always LEFT JOIN free ON true
"""


class Choice:
    """A statement of `choosing` that was sent, within an open transaction.

    Args:
        places: Values of the statement's beginning.
        times: Values of its condition.
        limit: How many rows are wanted.
    """

    def __init__(
        self, session: Session, sql: str, places: Sequence[Any], times: Sequence[Any], limit: int
    ) -> None:
        self._session = session
        self._sql = sql
        self._places = places
        self._times = times
        self._limit = limit
        self._pending = self._send(limit)

    def _send(self, width: int) -> Pending:
        values = (*self._places, *self._times, width, *self._times, self._limit)
        return self._session.send(self._sql, values)

    def rows(self) -> list[Row]:
        """Return them, locked, each without the count."""
        width = self._limit
        for _ in range(_TRIES - 1):
            rows, most = self._read()
            if len(rows) >= self._limit or most < width:
                return rows
            width *= _MORE
            self._pending = self._send(width)
        return self._read()[0]

    def _read(self) -> tuple[list[Row], int]:
        found = self._pending.rows()
        return [row[1:] for row in found if row[1] is not None], found[0][0] or 0
