"""Whether a request is sent again, and when: a decision after each answer or error, without any I/O, for both transports.

Guards: what is not safe to repeat is sent once; nothing is sent after the time of the attempt; and what is raised in the end claims no
more than is known: after a try that may have been carried out, no later one that was not can stand for all of them.
Source: RFC 9110 section 9.2.2, and the draft on the Idempotency-Key header (409 in progress, 422 other content).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from outlast.effects.retry import RetryPolicy
from outlast.errors import DefinitionError, KeyReusedError, ReceiverBusyError
from outlast.http.carry import (
    REPEATABLE,
    SAFE,
    Target,
    body_of,
    check_flag,
    checked_targets,
    describe,
    identity_of,
    passage_of,
    refuse_keyless,
)
from outlast.http.reply import (
    IN_PROGRESS,
    LATER,
    final_error,
    is_replayed,
    may_be_final,
    retry_after,
)
from outlast.workflows.attempt import current_attempt
from outlast.workflows.carry import current_errand

TRIES = RetryPolicy(
    initial_interval=timedelta(seconds=0.5),
    maximum_interval=timedelta(seconds=8),
    maximum_attempts=4,
)
"""How often one request is sent by default: after 0.5, 1 and 2 seconds again. What is still open then is the next attempt's."""

LONGEST_WAIT = timedelta(seconds=30)

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors after which the receiver has had nothing of the request."""
_IN_FRONT = frozenset({401, 403, 407})
"""Statuses of what stands in front of a receiver: such an answer says nothing of what that did with an earlier request."""
_LEAVES = ("send_request_headers.started", "send_request_body.started")
"""How httpcore's trace names the moments after all waiting for a connection, at which something leaves."""
_ELSEWHERE = frozenset({304, 307, 308})
_OWN_FAULT = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a transport treats requests.

    Args:
        targets: Hosts that are treated otherwise than by default; the first that matches counts.
        retry: How often one request is sent, and the waits in between.
        longest_wait: What a receiver asks for beyond that is left to the next attempt.
        requires_key: Whether a POST or PATCH without a key is refused.

    Raises:
        DefinitionError: One of them is nothing of the kind, or requests would be repeated without end.
    """

    targets: Sequence[Target] = ()
    retry: RetryPolicy = TRIES
    longest_wait: timedelta = LONGEST_WAIT
    requires_key: bool = False

    def __post_init__(self) -> None:
        """Refuse what has no end, and what is nothing of the kind."""
        retry: Any = self.retry
        if not isinstance(retry, RetryPolicy):
            raise DefinitionError(
                f"retry={retry!r} is no policy", hint="write retry=RetryPolicy(maximum_attempts=4)"
            )
        wait: Any = self.longest_wait
        if not isinstance(wait, timedelta) or wait < timedelta(0):
            raise DefinitionError(
                f"longest_wait={wait!r} is no time", hint="write longest_wait=timedelta(seconds=30)"
            )
        if self.retry.maximum_attempts == 0:
            raise DefinitionError(
                "a transport would repeat a request without end",
                hint="give its retry a maximum_attempts; beyond that the next attempt of the effect goes on",
            )
        object.__setattr__(self, "targets", checked_targets(self.targets))
        check_flag(self.requires_key)


class Course:
    """The tries of one request.

    Args:
        now: Seconds since 1970.
    """

    def __init__(self, request: httpx.Request, rules: Rules, now: Callable[[], float]) -> None:
        self._request = request
        self._rules = rules
        self._now = now
        self._passage = passage_of(request, rules.targets)
        if rules.requires_key:
            refuse_keyless(request, self._passage)
        may = request.method in REPEATABLE or self._passage.is_known
        self._may_repeat = may and body_of(request) is not None
        self._errand = current_errand.get(None)
        self._tries = 0
        self._is_final = False
        """Whether the answer would come again, however often the request is sent."""
        self._acts = request.method not in SAFE and self._passage.target.carries
        self._same = identity_of(request, self._passage)
        self._open = self._lost()
        """How the first try ended that may have been carried out, also one of an equal request before."""

    def next(self) -> httpx.Request:
        """Return the request as it is sent now: with the key, and no more time than the attempt has left.

        Raises:
            httpx.TransportError: The attempt has no time left: of an earlier try, or a PoolTimeout where none was made.
        """
        extensions = dict(self._request.extensions)
        if self._errand is not None:
            if self._errand.is_over:
                raise self._told(
                    httpx.PoolTimeout(
                        f"{describe(self._request)} was not sent: the time of the attempt is over",
                        request=self._request,
                    )
                )
            extensions["timeout"] = _within(extensions.get("timeout"), self._errand.left())
            if self._acts:
                self._errand.sent.goes(self, self._same)
        self._tries += 1
        return httpx.Request(
            self._request.method,
            self._request.url,
            headers=self._passage.headers(self._request),
            stream=self._request.stream,
            extensions=extensions,
        )

    def watched(self, sent: httpx.Request) -> httpx.Request:
        """Return a request that is given up where the time of the attempt is over when its connection is ready.

        A thread cannot be stopped, and its times for pool, connection and TLS add up. Transports that have no trace send it as it is.
        """
        errand = self._errand
        if errand is None:
            return sent
        own = sent.extensions.get("trace")

        def trace(event: str, info: Any) -> None:
            if own is not None:
                own(event, info)
            if event.endswith(_LEAVES) and errand.is_over:
                kind = httpx.WriteTimeout if event.endswith(_LEAVES[1]) else httpx.ConnectTimeout
                what = (
                    f"{describe(self._request)} was not sent whole: the time of the attempt is over"
                )
                raise kind(what, request=self._request)

        sent.extensions["trace"] = trace
        return sent

    def failed(self, error: httpx.TransportError) -> float:
        """Return how many seconds to wait after a try without an answer.

        Raises:
            httpx.TransportError: No further one follows.
        """
        arrived = not isinstance(error, _UNSENT)
        if self._open is None and arrived:
            self._open = error
        if self._errand is not None:
            self._errand.sent.has_failed(self, error, arrived=arrived)
        wait = self._gap(0.0)
        name = f"{type(error).__module__}.{type(error).__qualname__}"
        if isinstance(error, _OWN_FAULT) or wait is None or not self._rules.retry.retries(name):
            raise self._told(error)
        return wait

    def must_read(self, response: httpx.Response) -> bool:
        """Whether the answer may say something about the key for good, for which its body is read."""
        return may_be_final(response, self._passage)

    def judge(self, response: httpx.Response) -> None:
        """Look at an answer that had to be read.

        Raises:
            KeyReusedError: The receiver refuses the key with this content.
            FinalAnswerError: In a step or effect, when the receiver has answered for good, and has no result.
            ReceiverInDoubtError: In a step or effect, when the receiver does not know what became of the request.
        """
        response.request = self._request
        error = final_error(self._request, response, self._passage)
        self._is_final = error is not None
        is_attempt = current_attempt.get(None) is not None
        if error is not None and (is_attempt or isinstance(error, KeyReusedError)):
            raise error from self._open

    def answered(self, response: httpx.Response) -> float | None:
        """Return how many seconds to wait after an answer, or None where it is the one to give back.

        Raises:
            ReceiverBusyError: It asks for more time than one attempt has; a step or effect waits that long before the next one.
            httpx.TransportError: It settles nothing, and an earlier try may have been carried out.
        """
        status = response.status_code
        self._note(status)
        if self._open is not None and self._acts and status in _IN_FRONT:
            self._open.add_note(_settles_nothing(status))
            raise self._open
        is_later = status in LATER or (status == IN_PROGRESS and self._passage.is_known)
        if not is_later or not self._may_repeat or self._is_kept(response):
            return None
        asked = retry_after(response, self._now())
        wait = self._gap(asked or 0.0)
        if wait is not None:
            return wait
        if self._open is not None:
            # The engine reads how long to wait from any exception.
            vars(self._open)["retry_after"] = asked
            self._open.add_note(_settles_nothing(status))
            raise self._open
        attempt = current_attempt.get(None)
        if attempt is None or asked is None:
            return None
        raise ReceiverBusyError(
            f"{describe(self._request)} was answered {status}, to come back in {asked:g} s",
            status=status,
            retry_after=asked,
            run=attempt.run_id,
            step=attempt.name,
            operation=attempt.operation,
            hint="nothing needs to be done: the next attempt waits that long, a day at most, if the retry policy allows one",
        )

    def _is_kept(self, response: httpx.Response) -> bool:
        """Whether the receiver gives this answer again, for as long as it keeps it."""
        return self._is_final or (self._passage.is_known and is_replayed(response))

    def _lost(self) -> httpx.TransportError | None:
        attempt = self._passage.attempt
        if self._errand is None or attempt is None or not attempt.key:
            return None  # a step proves nothing, and may look at each answer
        error = self._errand.sent.lost(self._same)
        return error if isinstance(error, httpx.TransportError) else None

    def _note(self, status: int) -> None:
        """Note what an answer says of the request. Of equal ones before it a receiver speaks that knows the key; or it is done anyway."""
        if self._errand is None:
            return
        says_nothing = status in _IN_FRONT or status in LATER or status == IN_PROGRESS
        acted = 200 <= status < 400 and status not in _ELSEWHERE
        is_told = self._passage.is_known and status < 500 and not says_nothing
        settles = is_told or (acted and self._request.method in REPEATABLE)
        self._errand.sent.was_answered(self, acted=acted, settles=settles)

    def _gap(self, asked: float) -> float | None:
        """Return how long to wait before another try; None where none may follow."""
        rules = self._rules
        if not self._may_repeat or not rules.retry.allows_another(self._tries):
            return None
        wait = max(rules.retry.gap(self._tries).total_seconds(), asked)
        if asked > rules.longest_wait.total_seconds():
            return None
        if self._errand is not None:
            left = self._errand.left()
            if self._errand.is_over or (left is not None and wait >= left):
                return None
        return wait

    def _told(self, error: httpx.TransportError) -> httpx.TransportError:
        """Return what is raised in the end: the error of the first try that may have been carried out, where there is one."""
        if self._open is None or self._open is error or not isinstance(error, _UNSENT):
            return error
        self._open.add_note(f"sent again, it ended in {type(error).__name__}: {error}")
        return self._open


def _settles_nothing(status: int) -> str:
    return f"sent again, it was answered {status}, which settles nothing"


def _within(timeout: Any, left: float | None) -> Any:
    """Return httpx's four timeouts, none of them longer than the seconds that are left."""
    if left is None:
        return timeout
    given: dict[str, float | None] = timeout or {}
    names = ("connect", "read", "write", "pool")
    return {name: left if (own := given.get(name)) is None else min(own, left) for name in names}
