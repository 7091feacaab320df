"""Whether the cluster is still the one that was seen before: a standby that was promoted, or a backup that was put back, may have forgotten commits.

A cluster has an identifier, and its log a timeline that goes on by one with each promotion and each recovery to a point in time. The
store's row says with which of them it was used last. When that changes, nothing is forgotten if the failover was to a synchronous
standby, which holds every commit that was told as done. This process knows that of the primary that it was connected to; and it looks
whether what it was told of last is still there. Nobody else can know: then the store is held until somebody releases it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable

from msgspec import Struct

from outlast.store.postgres.claim import Leasing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import PostgresSetting

logger = logging.getLogger("outlast.store")

_SEEN = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
    current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')
"""
_MAY_MOVE = "SELECT has_table_privilege('$s.run', 'UPDATE')"
"""Whoever may only read moves no run, and leaves it to others to judge the history."""
_KNOWN = "SELECT history FROM $s.store"
_ADOPT = "UPDATE $s.store SET history = %b WHERE history = %b"


class Seen(Struct, frozen=True):
    """The cluster as it is.

    Args:
        system: Its identifier, which a copy of its files shares.
        timeline: Of its log.
        is_synchronous: Whether a commit is told as done only once a standby has it.
    """

    system: str
    timeline: str
    is_synchronous: bool

    @property
    def history(self) -> str:
        """What the store's row keeps."""
        return f"{self.system}/{self.timeline}"


class History:
    """What this process has seen of the cluster.

    Args:
        is_there: Returns whether everything that this process was told of is in the store.
    """

    def __init__(
        self,
        setting: PostgresSetting,
        clock: StoreClock,
        is_there: Callable[[Session], bool],
    ) -> None:
        self._setting = setting
        self._clock = clock
        self._is_there = is_there
        self._last: Seen | None = None
        self._lock = threading.RLock()
        self._is_ready = False
        self._is_looking = False

    def look(self, session: Session) -> None:
        """See whether the history goes on, on a connection that was opened just now, once the tables are known to be there."""
        if self._is_ready:
            self.check(session)

    def check(self, session: Session) -> None:
        """Adopt a history that goes on, and hold the store where it may not: begin a new line of history."""
        with self._lock:
            if self._is_looking:
                # The connection that looks was lost, and this is another one for the same look.
                return
            self._is_looking = True
            try:
                seen = Seen(*session.rows(_SEEN)[0])
                known = str(session.rows(_KNOWN)[0][0])
                if known != seen.history and session.rows(_MAY_MOVE)[0][0]:
                    self._judge(session, known, seen)
                self._last, self._is_ready = seen, True
            finally:
                self._is_looking = False

    def _judge(self, session: Session, known: str, seen: Seen) -> None:
        place = self._setting.place
        why = self._why_forgotten(session, known, seen)
        if not why:
            session.run(_ADOPT, (seen.history, known))
            if known:
                logger.warning(
                    "%s: its standby goes on with everything (timeline %s)", place, seen.timeline
                )
            return
        leasing = Leasing(session, self._clock)
        if leasing.begin_timeline(secrets.token_hex(16), why, (known, seen.history)):
            logger.error(
                "%s may have forgotten commits: %s; workers move nothing until `outlast release`",
                place,
                why,
            )

    def _why_forgotten(self, session: Session, known: str, seen: Seen) -> str:
        """Return why commits may be forgotten; empty where none is."""
        if not known:
            return ""
        system = known.partition("/")[0]
        if system != seen.system:
            return f"it was restored into another cluster ({system} before, {seen.system} now)"
        last = self._last
        if last is not None and not self._is_there(session):
            return f"what this process was told of is gone (timeline {seen.timeline} of the log)"
        if self._setting.synchronous or (last is not None and last.is_synchronous):
            return ""
        return f"a standby was promoted, or the cluster was recovered to a point in time (timeline {seen.timeline} of the log)"
