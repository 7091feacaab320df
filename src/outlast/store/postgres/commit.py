"""One commit: read and lock, judge in memory, write; of runs that are known, in one round trip, of others in two, whatever the number of changes.

What another transaction has come between is tried again on what that has left. A value that the server does not take is found by halves,
and refused alone. When the connection dies while the commit is under way, or its wait for a standby is ended, nobody knows whether it was
written, and the verdicts say so: the digest on a run's head, and the ids of messages, tell when the same is sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import psycopg

from outlast.errors import StoreError, StoreUnavailableError
from outlast.store.bound import UNSTORABLE, unstorable_part
from outlast.store.change import Change, Conflict, PutMessage, Refused, Unknown, Verdict
from outlast.store.judge import Judge
from outlast.store.moment import from_micros, to_micros
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.failure import (
    AGAIN,
    NOTHING_WRITTEN,
    STALE,
    concerns_all,
    failure_of,
    is_lost,
    refusal_of,
)
from outlast.store.postgres.load import Loading
from outlast.store.postgres.look import Look
from outlast.store.postgres.recall import Recall
from outlast.store.postgres.row import instant_of
from outlast.store.postgres.session import Session
from outlast.store.postgres.write import Sending
from outlast.store.rows import Moment

logger = logging.getLogger("outlast.store")

_WHOLE_TRIES = 3
"""So often a group is tried again as a whole."""
_TRIES = 20
"""So often a commit is tried again before it is told that the store cannot be used: each try waits for the locks of the one before."""
_WRITE_SOMETHING = """
SELECT pg_logical_emit_message(true, 'outlast', '') WHERE pg_current_xact_id_if_assigned() IS NULL
"""
"""A commit that has written nothing does not wait for a standby. What is recognised as written before may not be there yet: whoever
recognises it is to wait. It stands in a row that this transaction has locked, which writes to the log, unless it is a control row."""


class _UnsureError(Exception):
    """The connection was lost while the commit was under way."""


class Committing:
    """Writes groups of changes, from one thread.

    Args:
        pause: Waits a little, longer each time, so that two that stand in each other's way part.
    """

    def __init__(
        self,
        session: Session,
        clock: StoreClock,
        recall: Recall,
        place: str,
        pause: Callable[[int], None],
    ) -> None:
        self._session = session
        self._clock = clock
        self._place = place
        self._pause = pause
        self._recall = recall

    def write(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write changes in one transaction, or in several where one of them spoils it; return their verdicts in order.

        Raises:
            StoreUnavailableError: Nothing was written.
        """
        unstorable = {
            place: part for place, part in enumerate(map(unstorable_part, changes)) if part
        }
        if unstorable:
            kept = [one for place, one in enumerate(changes) if place not in unstorable]
            verdicts = iter(self._write_storable(kept) if kept else [])
            return [
                Refused(UNSTORABLE, unstorable[place]) if place in unstorable else next(verdicts)
                for place in range(len(changes))
            ]
        return self._write_storable(changes)

    def _write_storable(self, changes: Sequence[Change]) -> list[Verdict]:
        for number in range(_TRIES):
            try:
                return self._write_once(changes)
            except _UnsureError as error:
                return [Unknown(str(error))] * len(changes)
            except AGAIN as error:
                logger.debug("%s: a commit is tried again: %s", self._place, type(error).__name__)
                if number == _WHOLE_TRIES and len(changes) > 1:
                    # One row that somebody holds, or that is not as it should be, keeps no other run back.
                    middle = len(changes) // 2
                    return self._settled(changes[:middle]) + self._settled(changes[middle:])
                self._pause(number)
            except psycopg.Error as error:
                if is_lost(error) and number == 0:
                    # An idle connection that had died meanwhile: nothing was sent on it that counts.
                    continue
                if concerns_all(error):
                    raise failure_of(error, self._place) from error
                return self._write_halves(changes, error)
        raise StoreUnavailableError(
            f"{self._place}: other transactions came between {_TRIES} times; nothing was written",
            hint="work goes on by itself; find what holds rows for long with pg_stat_activity",
        )

    def _write_halves(self, changes: Sequence[Change], error: psycopg.Error) -> list[Verdict]:
        """Write what can be written of changes that together led to an error of values."""
        if len(changes) == 1:
            logger.error("a change is refused: %s", error)
            return [refusal_of(error)]
        middle = len(changes) // 2
        first = self._write_storable(changes[:middle])
        # That stands, whatever becomes of the other half.
        return first + self._settled(changes[middle:])

    def _settled(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write changes beside others that stand; whoever sent what cannot be written now is to send it again."""
        try:
            return self._write_storable(changes)
        except StoreError as error:
            logger.warning("%s: part of a commit could not be written: %s", self._place, error)
            return [Unknown(str(error))] * len(changes)
        except Exception as error:
            logger.exception("%s: part of a commit could not be written", self._place)
            return [Unknown(str(error))] * len(changes)

    def _write_once(self, changes: Sequence[Change]) -> list[Verdict]:
        # A connection that is made anew clears what is known: before anything is judged by it.
        self._session.open()
        known = self._recall.split(changes)
        if not known:
            return self._write_read(changes)
        quick = [changes[place] for place in known]
        verdicts = dict(zip(known, self._write_known(quick), strict=True))
        others = [place for place in range(len(changes)) if place not in verdicts]
        if others:
            verdicts |= zip(
                others, self._settled([changes[place] for place in others]), strict=True
            )
        return [verdicts[place] for place in range(len(changes))]

    def _write_known(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write on what is known of the runs, in one round trip; where that is not so any more, read first."""
        session, look = self._session, Look(changes)
        rows, now = self._recall.rows(look), self._clock.now()
        micros = to_micros(now)
        judge = Judge(rows, Moment(now, instant_of(micros)), checked=True)
        verdicts, renewed = judge.judge(changes)
        if any(map(_is_turned_away, changes, verdicts)):
            # What was consumed is not known here, and may be the same message.
            return self._write_read(changes)
        self._recall.forget(look)
        try:
            with session.pipeline():
                session.begin()
                self._recall.ask(session, look, rows, micros, changes)
                Sending(session).send(rows, renewed, set())
                session.send("COMMIT")
        except psycopg.Error as error:
            if error.sqlstate in NOTHING_WRITTEN:
                raise
            if is_lost(error) or session.is_closed:
                raise _UnsureError(str(error)) from error
            if error.sqlstate == STALE or isinstance(error, AGAIN):
                return self._write_read(changes)
            raise
        self._recall.written(rows, look.workers)
        return verdicts

    def _write_read(self, changes: Sequence[Change]) -> list[Verdict]:
        """Read, judge and write, in two round trips."""
        look = Look(changes)
        look.whole = self._recall.unknown(look)
        session = self._session
        self._recall.forget(look)
        with session.guarded():
            rows, micros = Loading(session, look, self._clock).load()
            now = from_micros(micros)
            judge = Judge(rows, Moment(now, instant_of(micros)), checked=True)
            verdicts, renewed = judge.judge(changes)
            try:
                with session.pipeline():
                    Sending(session).send(rows, renewed, look.early)
                    if any(isinstance(verdict, Conflict) for verdict in verdicts):
                        session.send(_WRITE_SOMETHING)
                    session.send("COMMIT")
            except psycopg.Error as error:
                is_unsure = error.sqlstate not in NOTHING_WRITTEN
                if is_unsure and (is_lost(error) or session.is_closed):
                    raise _UnsureError(str(error)) from error
                raise
        self._recall.know_controls(look, rows)
        self._recall.written(rows, look.workers)
        return verdicts


def _is_turned_away(change: Change, verdict: Verdict) -> bool:
    return isinstance(change, PutMessage) and isinstance(verdict, Refused)
