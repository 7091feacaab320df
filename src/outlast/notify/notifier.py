"""Tells people what they are asked: takes notices that are due, sends each by every channel of its role, and says what became of it.

A notice is taken before it is sent and marked after: sent once; once more by a sender that dies in between, or whose store does not hear
that it was sent. Each message carries an id by which a receiver can tell. No two notifiers send one notice at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from datetime import timedelta

from msgspec import Struct

from outlast.effects.key import DEFAULT_TENANT
from outlast.errors import StoreUnavailableError
from outlast.notify.channel import Channel
from outlast.notify.message import Text, inert, message_of, notice_id
from outlast.notify.setting import EVERYBODY, Notify
from outlast.store.change import Applied, DueNotice, Unknown
from outlast.store.notice import MAX_TROUBLE_BYTES, EndNotice, NoticeRow, TakeNotices
from outlast.store.protocol import Store

logger = logging.getLogger("outlast.notify")

HOLD = timedelta(seconds=90)
"""For how long a notice is a notifier's own; the sending takes less."""

SEND_SECONDS = 45.0
"""How long a channel may take: what it has not taken then counts as not sent."""

POLL_SECONDS = 30.0
"""How often to look without a hint."""

LONGEST_GAP = timedelta(minutes=15)
"""Between two tries; the first gap is a second, each one twice the one before."""

_FIRST_GAP = timedelta(seconds=1)
_AT_ONCE = 20
_PAUSE_SECONDS = 0.2
"""Between two looks: each commit of any run is a hint."""

_RETRY_SECONDS = 2.0
_LAST_SECONDS = 5.0
_SAY_TRIES = 3


class _Tried(Struct, frozen=True):
    """What came of one sending: which channels have the message by now, and of those that have not what is to be said.

    Args:
        nobody: There is no channel by which to send it.
    """

    reached: tuple[str, ...]
    trouble: str
    nobody: bool = False


_HELD_SECONDS = 1.0


class Notifier:
    """Sends the notices of a tenant, or, where its setting says so, of all tenants of a store.

    Args:
        setting: Whom to reach by what.
        tenant: Whose notices, where the setting names nobody.
        held: Whether nobody is to be told of anything now.

    Example:
        ```python
        import outlast
        from outlast.notify import Notifier

        notify = outlast.Notify({"*": ["json://127.0.0.1:9/"]})
        async with outlast.connect("sqlite:///agent.db", create=True) as client:  # no worker in this process
            notifier = Notifier(client.store, notify)
            notifier.start()
            await notifier.stop()
        ```
    """

    def __init__(
        self,
        store: Store,
        setting: Notify,
        tenant: str = DEFAULT_TENANT,
        *,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_held = held
        self._store = store
        self._setting = setting
        whose = setting.tenant or tenant
        self._tenant = "" if whose == EVERYBODY else whose
        self._hint = asyncio.Event()
        self._unsubscribe: Callable[[], None] = _nothing
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Begin to look, in a task of the running loop."""
        self._unsubscribe = self._store.subscribe(self._hint.set)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="outlast-notifier")

    async def stop(self) -> None:
        """Stop: what is being sent has a few seconds; what is left is due again when its time as somebody's own is over."""
        self._is_stopping = True
        self._unsubscribe()
        self._unsubscribe = _nothing
        self._hint.set()
        task, self._task = self._task, None
        if task is None:
            return
        await asyncio.wait([task], timeout=_LAST_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def look(self) -> float:
        """Send what is due; return how many seconds nothing is due from now on, at most.

        Raises:
            StoreUnavailableError: The store cannot be asked now.
        """
        last = None
        if self._is_held():
            return _HELD_SECONDS
        while not self._is_stopping:
            due_at = await self._store.next_notice(self._tenant)
            if due_at is None:
                return math.inf
            wait = (due_at - self._store.now()).total_seconds()
            if wait > 0:
                return wait
            (verdict,) = await self._store.commit([TakeNotices(self._tenant, _AT_ONCE, HOLD)])
            if not isinstance(verdict, Applied):
                return _RETRY_SECONDS
            if not verdict.notices and due_at == last:
                return POLL_SECONDS  # a row that cannot be read stays due; the store has said so
            last = due_at
            await asyncio.gather(*map(self._send, verdict.notices))
        return math.inf

    async def _run(self) -> None:
        while not self._is_stopping:
            self._hint.clear()
            try:
                seconds = await self.look()
            except StoreUnavailableError as error:
                logger.warning("the store cannot be read, trying again: %s", error)
                seconds = _RETRY_SECONDS
            except Exception:
                # Nobody would be told of anything any more.
                logger.exception("looking for notices broke inside Outlast")
                seconds = _RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, POLL_SECONDS)):
                    await self._hint.wait()
            if not self._is_stopping:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _send(self, due: DueNotice) -> None:
        """Send one notice by each channel that has not got it, and say what became of it."""
        notice, role = due.notice, due.asked.put.role
        channels = self._setting.channels_of(role)
        if not channels:
            # A deploy may bring one while the request still waits.
            why = f"no channel is set for the role {inert(role)}"
            tried = _Tried(notice.reached, why, nobody=True)
            return await self._say(due, tried, _gap_after(notice.tries))
        if self._store.now() + timedelta(seconds=SEND_SECONDS) > notice.due_at:
            return None  # the answer was long on its way: it is nearly somebody else's
        try:
            tried = await self._try(due, channels)
        except Exception:
            # A fault of ours in one message keeps no other from being sent.
            logger.exception("a notice of run %s cannot be told", due.asked.run)
            tried = _Tried(notice.reached, "the message could not be made")
        retry_in = _gap_after(notice.tries) if tried.trouble else None
        return await self._say(due, tried, retry_in)

    async def _try(self, due: DueNotice, channels: Sequence[Channel]) -> _Tried:
        waiting = [one for one in channels if one.name not in due.notice.reached]
        text = message_of(due, self._setting.show, self._link(due), self._store.now())
        its_id = notice_id(due.notice)
        troubles = await asyncio.gather(*(_send_by(one, text, its_id) for one in waiting))
        new = tuple(one.name for one, why in zip(waiting, troubles, strict=True) if not why)
        return _Tried((*due.notice.reached, *new), "; ".join(filter(None, troubles)))

    def _link(self, due: DueNotice) -> str:
        if self._setting.links is None:
            return ""
        run, put = due.asked.run, due.asked.put
        token = self._setting.links.token(run.tenant, run.run_id, put.approval_id, put.expires_at)
        return f"{self._setting.link_base.rstrip('/')}/{token}"

    async def _say(self, due: DueNotice, tried: _Tried, retry_in: timedelta | None) -> None:
        """Write what became of a notice; a store that does not hear it has it sent again."""
        _log(due, tried, retry_in)
        change = _end_of(due.notice, tried, retry_in)
        for _ in range(_SAY_TRIES):
            with contextlib.suppress(StoreUnavailableError):
                (verdict,) = await self._store.commit([change])
                if not isinstance(verdict, Unknown):
                    return
            await asyncio.sleep(_RETRY_SECONDS)
        logger.warning("run %s: the store does not hear what became of a notice", due.asked.run)


async def _send_by(channel: Channel, text: Text, its_id: str) -> str:
    """Send by one channel; return why it did not take the message, without what may be secret in an error's own text."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await channel.send(text.title, text.body, its_id)
    except Exception as error:
        logger.debug("channel %s failed", channel.name, exc_info=True)
        return f"{channel.name}: {type(error).__name__}"
    return ""


def _end_of(notice: NoticeRow, tried: _Tried, retry_in: timedelta | None) -> EndNotice:
    return EndNotice(
        notice.tenant,
        notice.run_id,
        notice.generation,
        notice.approval_id,
        notice.notice,
        notice.tries,
        sent=not tried.trouble,
        reached=tried.reached,
        retry_in=retry_in,
        trouble=_kept(tried.trouble),
    )


def _kept(trouble: str) -> bytes:
    """Return what the store keeps of a trouble."""
    return trouble.encode(errors="backslashreplace")[:MAX_TROUBLE_BYTES]


def _gap_after(tries: int) -> timedelta:
    return min(_FIRST_GAP * 2 ** min(tries - 1, 20), LONGEST_GAP)


def _log(due: DueNotice, tried: _Tried, retry_in: timedelta | None) -> None:
    run, asked = due.asked.run, due.asked.put.approval_id
    if not tried.trouble:
        logger.info("run %s: people are told of request %s (%s)", run, asked, due.notice.notice)
        return
    again = "never" if retry_in is None else f"{retry_in.total_seconds():g} s"
    if tried.nobody:
        is_said = due.notice.trouble == _kept(tried.trouble)
        level = logging.DEBUG if is_said else logging.ERROR
        text = "run %s: nobody is told of request %s, looking again in %s: %s"
        logger.log(level, text, run, asked, again, tried.trouble)
    else:
        text = "run %s: not all are told of request %s, trying again in %s: %s"
        logger.warning(text, run, asked, again, tried.trouble)


def _nothing() -> None:
    """There is nothing to undo yet."""
