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
from outlast.worker.call import Check, ThreadCall, Threw, call_async
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
        returned: The body returned, and its value cannot be stored.
    """

    failure: Failure
    hopeless: bool = False
    not_applied: bool = False
    returned: bool = False


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt was not done in its time."""

    after: timedelta


Ending: TypeAlias = Returned | Raised | TimedOut


@dataclass(frozen=True, slots=True)
class _ThreadEffect:
    """An effect that has a thread, or waits for one."""

    run: RunKey
    operation: str
    call: ThreadCall


def _anytime() -> None:
    """Nothing keeps the body from beginning."""


class Executor:
    """Runs attempts.

    Args:
        threads: Where synchronous bodies run.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._effects: dict[asyncio.Future[Any], _ThreadEffect] = {}

    def acting(self, run: RunKey | None = None) -> bool:
        """Whether a thread is in the middle of an effect, of this run or of any. It cannot be stopped. Callable from any thread."""
        effects = tuple(self._effects.values())
        return any(one.call.has_begun and run in {None, one.run} for one in effects)

    async def returned(
        self, run: RunKey, operation: str = "", *, within: float | None = None
    ) -> None:
        """Return when no thread is in the middle of an effect of this run, or of this operation of it.

        Args:
            within: Seconds after which to return all the same.
        """
        threads = [
            thread
            for thread, one in self._effects.items()
            if one.run == run and operation in {"", one.operation}
        ]
        if threads:
            await asyncio.wait(threads, timeout=within)

    async def attempt(
        self,
        definition: Step[..., Any] | Effect[..., Any],
        arguments: bytes,
        attempt: Attempt,
        check: Check = _anytime,
    ) -> Ending:
        """Make one attempt. A cancel of the caller reaches an async body; a thread that has begun goes on unseen.

        Args:
            check: Called immediately before the body begins, also in a thread; what it raises ends the attempt instead.
        """
        timeout = definition.options.start_to_close_timeout
        try:
            args, kwargs = definition.arguments.decode(arguments)
        except DecodeError as error:
            return Raised(capture(error), hopeless=True, not_applied=True)
        body = functools.partial(definition.function, *args, **kwargs)
        try:
            value = await self._run(
                body, attempt, timeout, check, acts=isinstance(definition, Effect)
            )
        except _OutOfTimeError:
            assert timeout is not None
            return TimedOut(timeout)
        if isinstance(value, Threw):
            return self._raised(definition, value.error)
        try:
            return Returned(definition.result.encode(value))
        except EncodeError as error:
            error.step = attempt.name
            error.operation = attempt.operation
            error.run = attempt.run_id
            return Raised(capture(error), hopeless=True, returned=True)

    async def probe(
        self,
        effect: Effect[..., Any],
        arguments: bytes,
        attempt: Attempt,
        check: Check = _anytime,
    ) -> Applied[bytes] | NotApplied | Unknown:
        """Ask whether the effect happened. An error, a late or a strange answer is `Unknown`; see `attempt`."""
        timeout = effect.options.start_to_close_timeout
        try:
            args, kwargs = effect.arguments.decode(arguments)
            body = functools.partial(probe_function(effect), *args, **kwargs)
            answer = await self._run(body, attempt, timeout, check, acts=False)
            match answer:
                case Applied():
                    return Applied(effect.result.encode(cast("Applied[Any]", answer).value))
                case NotApplied() | Unknown():
                    return answer
                case Threw(error):
                    return _no_answer(error)
                case _:
                    return Unknown(
                        f"the probe answered {type(answer).__name__} instead of Applied, NotApplied or Unknown"
                    )
        except _OutOfTimeError:
            return Unknown(f"the probe was not done within {timeout}")
        except Exception as error:  # noqa: BLE001 - an answer that cannot be kept is none
            return _no_answer(error)

    async def _run(
        self,
        body: functools.partial[Any],
        attempt: Attempt,
        timeout: timedelta | None,  # noqa: ASYNC109 - the attempt's own
        check: Check,
        *,
        acts: bool,
    ) -> Any:
        """Return the body's value or what it threw; raise only what is not the body's."""
        context = contextvars.copy_context()
        context.run(current_attempt.set, attempt)
        if inspect.iscoroutinefunction(body.func):
            running = asyncio.create_task(call_async(body, check), context=context)
            try:
                return await _within(running, timeout, patient=acts)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return Threw(error)
            finally:
                if not running.done():
                    running.add_done_callback(functools.partial(_log_late, attempt))
        call = ThreadCall(functools.partial(context.run, body), check)
        return await self._in_thread(call, attempt, None if acts else timeout, acts=acts)

    async def _in_thread(
        self,
        call: ThreadCall,
        attempt: Attempt,
        timeout: timedelta | None,  # noqa: ASYNC109 - the attempt's own
        *,
        acts: bool,
    ) -> Any:
        """Run a call in a thread. Its time counts from its beginning; one that is cancelled before that never begins.

        A thread cannot be stopped. Until it returns an effect is still acting, and what it returns is what happened; so an
        effect is given no timeout here.
        """
        thread = asyncio.ensure_future(self._threads.run(call))
        if acts:
            run = RunKey(attempt.tenant, attempt.run_id)
            self._effects[thread] = _ThreadEffect(run, attempt.operation, call)
            thread.add_done_callback(lambda done: self._effects.pop(done, None))
        try:
            await asyncio.wait({thread, call.begun}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(
                {thread}, timeout=None if timeout is None else timeout.total_seconds()
            )
        except asyncio.CancelledError:
            if call.call_off():
                thread.cancel()
            thread.add_done_callback(functools.partial(_log_late, attempt))
            raise
        if thread.done():
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
    if running.done() and not running.cancelled() and not isinstance(running.result(), Threw):
        return running.result()
    raise _OutOfTimeError


_CANCEL_GRACE_SECONDS = 5.0
"""How long a cancelled async body may clean up before it is left behind."""


def _no_answer(error: BaseException) -> Unknown:
    failure = capture(error)
    return Unknown(f"the probe raised {failure.type}: {failure.message}")


def _log_late(attempt: Attempt, thread: asyncio.Future[Any]) -> None:
    if thread.cancelled():
        return
    threw = thread.exception() is not None or isinstance(thread.result(), Threw)
    logger.warning(
        "run %s: attempt %d of %s (%s) %s after its time; the result is dropped",
        attempt.run_id,
        attempt.number,
        attempt.name,
        attempt.operation,
        "ended in an error" if threw else "returned",
    )
