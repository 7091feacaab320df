"""Whether the cluster is still the one that was seen before: a standby that was promoted, or a backup that was put back, may have forgotten commits.

A cluster has an identifier, and its log a timeline that goes on by one with each promotion and each recovery to a point in time. The
store's row says with which of them it was used last. When that changes, nothing is forgotten if the failover was to a synchronous
standby, which holds every commit that was told as done. This process knows that of the primary that it was connected to; and it looks
whether what it was told of last is still there. Nobody else can know: then the store is held until somebody releases it.

A connection to a server is looked at when it is made. A pooler keeps it over a change of servers: there each transaction that writes is
stopped on the server where the history is another than its session has looked at, and the session begins anew.
"""

from __future__ import annotations

import logging
import secrets
import threading

from msgspec import Struct

from outlast.store.postgres.claim import Leasing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.recall import Recall
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import PostgresSetting

logger = logging.getLogger("outlast.store")

_SEEN = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
    current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')
"""
_IS_STANDBY = "SELECT pg_is_in_recovery()"
"""What a standby follows can only be read there, and who promotes it, the next who comes will see."""
_MAY_MOVE = "SELECT has_table_privilege('$s.run', 'UPDATE')"
"""Whoever may only read moves no run, and leaves it to others to judge the history."""
_KNOWN = "SELECT history, timeline FROM $s.store"
_GONE = "what this process was told of as written is gone"
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
        recall: Knows what this process was told of.
    """

    def __init__(
        self,
        setting: PostgresSetting,
        clock: StoreClock,
        recall: Recall,
    ) -> None:
        self._setting = setting
        self._clock = clock
        self._recall = recall
        self._timeline = ""
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
                if session.rows(_IS_STANDBY)[0][0]:
                    self._is_ready = True
                    return
                seen = Seen(*session.rows(_SEEN)[0])
                session.history = seen.history
                known, timeline = session.rows(_KNOWN)[0]
                if session.rows(_MAY_MOVE)[0][0]:
                    timeline = self._judge(session, known, timeline, seen)
                self._last, self._timeline, self._is_ready = seen, timeline, True
            finally:
                self._is_looking = False

    def _judge(self, session: Session, known: str, timeline: str, seen: Seen) -> str:
        """Return the store's timeline after this look."""
        if self._timeline not in ("", timeline):
            # Somebody has begun another one: it is held already, and what is gone is known to be.
            self._recall.begin_anew()
            return timeline
        is_gone = self._last is not None and not self._recall.is_there(session)
        if known == seen.history and not is_gone:
            return timeline
        why = _GONE if is_gone else self._why_forgotten(known, seen)
        if not why:
            session.run(_ADOPT, (seen.history, known))
            if known:
                logger.warning(
                    "%s: its standby goes on with everything (timeline %s)",
                    self._setting.place,
                    seen.timeline,
                )
            return timeline
        begun = secrets.token_hex(16)
        # What is gone is gone, whatever another process has made of it.
        history = (None if is_gone else known, seen.history)
        if not Leasing(session, self._clock).begin_timeline(begun, why, history):
            return str(session.rows(_KNOWN)[0][1])
        self._recall.begin_anew()
        logger.error(
            "%s may have forgotten commits: %s; workers move nothing until `outlast release`",
            self._setting.place,
            why,
        )
        return begun

    def _why_forgotten(self, known: str, seen: Seen) -> str:
        """Return why commits may be forgotten; empty where none is."""
        if not known:
            return ""
        system = known.partition("/")[0]
        if system != seen.system:
            return f"it was restored into another cluster ({system} before, {seen.system} now)"
        last = self._last
        if self._setting.synchronous or (last is not None and last.is_synchronous):
            return ""
        return f"a standby was promoted, or the cluster was recovered to a point in time (timeline {seen.timeline} of the log)"
