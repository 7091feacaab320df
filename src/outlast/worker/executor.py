"""Runs the bodies of steps and effects, and says how each attempt ended. It knows nothing of runs and journals."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, cast

from outlast.clock import Threads
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.errors import AuthorError, DecodeError, EncodeError
from outlast.journal.failure import Failure, capture
from outlast.store.change import RunKey
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.definition import Effect, Step, probe_function

logger = logging.getLogger("outlast.worker")


@dataclass(frozen=True, slots=True)
class Returned:
    """The body returned; its value as JSON."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Raised:
    """The body raised.

    Args:
        hopeless: Another attempt would end the same way.
        not_applied: An effect's error that proves that nothing happened.
    """

    failure: Failure
    hopeless: bool = False
    not_applied: bool = False


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt was not done in its time."""

    after: timedelta


Ending: TypeAlias = Returned | Raised | TimedOut


class Executor:
    """Runs attempts.

    Args:
        threads: Where synchronous bodies run.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._acting: dict[asyncio.Future[Any], tuple[RunKey, str]] = {}

    def acting(self, run: RunKey | None = None) -> bool:
        """Whether a thread is in the middle of an effect, of this run or of any. It cannot be stopped."""
        return any(run is None or run == whose for whose, _ in self._acting.values())

    async def returned(
        self, run: RunKey, operation: str = "", *, within: float | None = None
    ) -> None:
        """Return when no thread is in the middle of an effect of this run, or of this operation of it.

        Args:
            within: Seconds after which to return all the same.
        """
        threads = [
            thread
            for thread, whose in self._acting.items()
            if whose == (run, operation) or (whose[0] == run and not operation)
        ]
        if threads:
            await asyncio.wait(threads, timeout=within)

    async def attempt(
        self, definition: Step[..., Any] | Effect[..., Any], arguments: bytes, attempt: Attempt
    ) -> Ending:
        """Make one attempt. A cancel of the caller reaches an async body; a thread goes on unseen."""
        timeout = definition.options.start_to_close_timeout
        try:
            args, kwargs = definition.arguments.decode(arguments)
        except DecodeError as error:
            return Raised(capture(error), hopeless=True, not_applied=True)
        body = functools.partial(definition.function, *args, **kwargs)
        try:
            value = await self._run(body, attempt, timeout, acts=isinstance(definition, Effect))
        except _OutOfTimeError:
            assert timeout is not None
            return TimedOut(timeout)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Raised(capture(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the border to the author's code
            return self._raised(definition, error)
        try:
            return Returned(definition.result.encode(value))
        except EncodeError as error:
            error.step = attempt.name
            error.operation = attempt.operation
            error.run = attempt.run_id
            return Raised(capture(error), hopeless=True)

    async def probe(
        self, effect: Effect[..., Any], arguments: bytes, attempt: Attempt
    ) -> Applied[bytes] | NotApplied | Unknown:
        """Ask whether the effect happened. An error, a late or a strange answer is `Unknown`."""
        try:
            args, kwargs = effect.arguments.decode(arguments)
            body = functools.partial(probe_function(effect), *args, **kwargs)
            answer = await self._run(
                body, attempt, effect.options.start_to_close_timeout, acts=False
            )
            match answer:
                case Applied():
                    return Applied(effect.result.encode(cast("Applied[Any]", answer).value))
                case NotApplied() | Unknown():
                    return answer
                case _:
                    return Unknown(
                        f"the probe answered {type(answer).__name__} instead of Applied, NotApplied or Unknown"
                    )
        except _OutOfTimeError:
            return Unknown(f"the probe was not done within {effect.options.start_to_close_timeout}")
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the border to the author's code
            return Unknown(f"the probe raised {type(error).__name__}: {error}")

    async def _run(
        self,
        body: functools.partial[Any],
        attempt: Attempt,
        timeout: timedelta | None,  # noqa: ASYNC109 - the attempt's own
        *,
        acts: bool,
    ) -> Any:
        context = contextvars.copy_context()
        context.run(current_attempt.set, attempt)
        if inspect.iscoroutinefunction(body.func):
            running = asyncio.create_task(body(), context=context)
            return await _within(running, timeout, patient=acts)
        thread = asyncio.ensure_future(self._threads.run(functools.partial(context.run, body)))
        if acts:
            self._acting[thread] = (RunKey(attempt.tenant, attempt.run_id), attempt.operation)
            thread.add_done_callback(lambda done: self._acting.pop(done, None))
            try:
                # A thread cannot be stopped: until it returns it is still acting, and what it returns is what happened.
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                if not thread.done():
                    thread.add_done_callback(functools.partial(_log_late, attempt))
                raise
        done, _ = await asyncio.wait(
            {thread}, timeout=None if timeout is None else timeout.total_seconds()
        )
        if done:
            return thread.result()
        thread.add_done_callback(functools.partial(_log_late, attempt))
        raise _OutOfTimeError

    def _raised(
        self, definition: Step[..., Any] | Effect[..., Any], error: BaseException
    ) -> Raised:
        failure = capture(error)
        hopeless = isinstance(
            error, AuthorError | DecodeError
        ) or not definition.options.retry.retries(failure.type)
        proves = isinstance(definition, Effect) and isinstance(error, definition.rules.not_applied)
        return Raised(failure, hopeless=hopeless, not_applied=proves)


class _OutOfTimeError(Exception):
    """The attempt's own timeout, told apart from a TimeoutError that the body raised."""


async def _within(running: asyncio.Task[Any], timeout: timedelta | None, *, patient: bool) -> Any:  # noqa: ASYNC109
    """Wait for `running`, cancel it with us, and cancel it when its time is over.

    Args:
        patient: Wait until a cancelled body has really ended, however long that takes: an effect that still runs still acts.
    """
    try:
        done, _ = await asyncio.wait(
            {running}, timeout=None if timeout is None else timeout.total_seconds()
        )
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait({running}, timeout=_CANCEL_GRACE_SECONDS)
        raise
    if done:
        return running.result()
    running.cancel()
    await asyncio.wait({running}, timeout=None if patient else _CANCEL_GRACE_SECONDS)
    if running.done() and not running.cancelled() and running.exception() is None:
        return running.result()
    raise _OutOfTimeError


_CANCEL_GRACE_SECONDS = 5.0
"""How long a cancelled async body may clean up before it is left behind."""


def _log_late(attempt: Attempt, running: asyncio.Future[Any]) -> None:
    if running.cancelled():
        return
    error = running.exception()
    ending = f"raised {type(error).__name__}" if error else "returned"
    logger.warning(
        "run %s: attempt %d of %s %s after its time; the result is dropped",
        attempt.run_id,
        attempt.number,
        attempt.name,
        ending,
    )
