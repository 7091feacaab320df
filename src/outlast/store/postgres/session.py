"""One connection, used by one thread: opened when it is needed, opened anew when it was lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import psycopg

from outlast.store.bound import keeps
from outlast.store.postgres.failure import UnreplicatedError, is_lost
from outlast.store.postgres.setting import PostgresSetting
from outlast.store.row import Row

logger = logging.getLogger("outlast.store")

_PREPARE_AFTER = 2
_MOST = (1 << 63) - 1
_LEAST = -(1 << 63)
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Whatever the user's default is: what is read after a lock was waited for is read as it is by then, not as it was before the wait."""
OF_A_SESSION = """
SET default_transaction_isolation = 'read committed';
SET idle_in_transaction_session_timeout = '10s';
SET lock_timeout = '10s';
"""
"""A process that stands still in a transaction holds rows for so long at most, and nobody waits longer for them."""
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
"""What is told as committed is on the disk, whatever the server does by default; where it does more it stays."""
OF_A_TRANSACTION = "SELECT set_config('idle_in_transaction_session_timeout', '10s', true), set_config('lock_timeout', '10s', true)"
"""The same behind a pooler: what is set for a session there is set for whoever gets the session next."""
OF_RENEWALS = MappingProxyType({"lock_timeout": "2s", "statement_timeout": "3s"})
"""Who renews a lease gives up in time to try again before it is over: whatever holds the row, or the server, may be gone by then."""
_ON_THE_SAME_HISTORY = ", $s.must_go_on(%b)"
"""A pooler keeps the connection when it changes servers: each transaction that writes looks whether it is on the one that was looked at."""


_WAITS_FOR_STANDBYS = "SyncRepWaitForLSN"
"""The function of the server that warns of a wait which somebody has ended: its text is in the server's language, this is not."""


class Statements:
    """SQL of this package for one schema: `$s.` stands for it."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._known: dict[str, bytes] = {}

    def __call__(self, text: str) -> bytes:
        """Return the statement."""
        known = self._known.get(text)
        if known is None:
            # Names of schemas are checked: they need no quoting beyond this.
            known = self._known[text] = text.replace("$s.", f'"{self.schema}".').encode()
        return known


class Pending:
    """The rows of a statement that was sent and not waited for."""

    def __init__(self, cursor: psycopg.Cursor[Row]) -> None:
        self._cursor = cursor

    def rows(self) -> list[Row]:
        """Return them, once they are there."""
        return self._cursor.fetchall()

    def count(self) -> int:
        """Return how many rows were written."""
        return self._cursor.rowcount


class Session:
    """A connection for one thread.

    Args:
        opened: Called with each connection that was opened, before it is used.
        limits: Settings of the server, over those of every session.

    Attributes:
        history: Of the server, as this session has looked at it last; empty before.
    """

    def __init__(
        self,
        setting: PostgresSetting,
        opened: Callable[[Session], None] | None = None,
        limits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._setting = setting
        self._of_a_session = OF_A_SESSION + "".join(
            f"SET {name} = '{value}';\n" for name, value in limits.items()
        )
        self._of_a_transaction = OF_A_TRANSACTION + "".join(
            f", set_config('{name}', '{value}', true)" for name, value in limits.items()
        )
        self._opened = opened
        self._connection: psycopg.Connection[Row] | None = None
        self._recovered = 0
        self._unreplicated = ""
        self.history = ""
        self.statements = Statements(setting.schema)

    @property
    def connection(self) -> psycopg.Connection[Row]:
        """The connection, opened if there is none.

        Raises:
            psycopg.Error: It cannot be opened.
        """
        known = self._connection
        if known is not None and not known.closed:
            return known
        pooled = self._setting.pooled
        known = psycopg.connect(self._setting.conninfo, autocommit=True)
        try:
            known.prepare_threshold = None if pooled else _PREPARE_AFTER
            known.add_notice_handler(self._notice)
            if not pooled:
                known.execute(self._of_a_session.encode())
                if not self._setting.risk:
                    known.execute(_DURABLE.encode())
            self._connection = known
            if self._opened is not None:
                self._opened(self)
        except BaseException:
            self._connection = None
            known.close()
            raise
        return known

    def open(self) -> None:
        """Have a connection, so that what fails from now on may have been sent.

        Raises:
            psycopg.Error: It cannot be opened.
        """
        _ = self.connection

    @property
    def is_closed(self) -> bool:
        """Whether there is no connection now."""
        return self._connection is None or self._connection.closed

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of one statement; none where a value is a text that no row can hold."""
        if not _are_kept(values):
            return []
        with self.guarded():
            return self.send(sql, [_clamped(one) for one in values]).rows()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement; return how many rows it has written."""
        with self.guarded():
            return self.send(sql, values).count()

    def write(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run one statement that writes, and return its rows; behind a pooler in a transaction, as `begin` begins it."""
        if not self._setting.pooled or not _are_kept(values):
            return self.rows(sql, values)
        with self.pipeline():
            self.begin()
            sent = self.send(sql, values)
            self.send("COMMIT")
        return sent.rows()

    def send(self, sql: str, values: Sequence[Any] = ()) -> Pending:
        """Send a statement, within a pipeline without waiting for it."""
        cursor = self.connection.cursor(binary=True)
        cursor.execute(self.statements(sql), values)
        return Pending(cursor)

    def begin(self) -> None:
        """Send the beginning of a transaction that writes."""
        self.send(BEGIN)
        if self._setting.pooled and self.history:
            self.send(self._of_a_transaction + _ON_THE_SAME_HISTORY, (self.history,))
        elif self._setting.pooled:
            self.send(self._of_a_transaction)

    @contextlib.contextmanager
    def guarded(self) -> Generator[None, None, None]:
        """Leave no connection behind that is of no use, and no open transaction, when something goes wrong inside.

        Raises:
            UnreplicatedError: What was committed inside may be on this server alone: it counts as nothing that anybody was told.
        """
        self._unreplicated = ""
        try:
            yield
            if self._unreplicated:
                raise UnreplicatedError(self._unreplicated)
        except psycopg.Error as error:
            self.recover(error)
            raise
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def pipeline(self) -> Generator[None, None, None]:
        """Send what is sent inside together, in one round trip where nobody asks for rows before the end."""
        with self.guarded():
            pipeline = self.connection.pipeline()
            pipeline.__enter__()
            try:
                yield
            except BaseException:
                # What went wrong inside is what is told; that nothing behind it was done is no news.
                with contextlib.suppress(psycopg.Error):
                    pipeline.__exit__(None, None, None)
                raise
            pipeline.__exit__(None, None, None)

    def _notice(self, told: psycopg.errors.Diagnostic) -> None:
        """Hear of a commit that was to wait for a standby, and was told to wait no more."""
        if told.source_function == _WAITS_FOR_STANDBYS:
            self._unreplicated = told.message_primary or _WAITS_FOR_STANDBYS

    def recover(self, error: psycopg.Error) -> None:
        """Make the connection fit for the next transaction, or let go of it."""
        connection = self._connection
        if connection is None:
            return
        if is_lost(error) or connection.closed:
            self.close()
            return
        try:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                # Another text each time: psycopg forgets what it has prepared, which the server may not have, for one that is new to it only.
                self._recovered += 1
                connection.execute(f"ROLLBACK /* {self._recovered} */".encode())
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def _are_kept(values: Sequence[Any]) -> bool:
    return all(keeps(one) for one in values if isinstance(one, str))


def _clamped(value: Any) -> Any:
    """Return a number within what a column can hold: whatever is beyond it is on the same side of all that is stored."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return max(_LEAST, min(value, _MOST)) if is_number else value
