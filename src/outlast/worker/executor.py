"""Runs the bodies of steps and effects, and says how each attempt ended. It knows nothing of runs and journals."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any, TypeAlias, cast

import msgspec

from outlast.clock import Threads
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.errors import AuthorError, DecodeError, EncodeError, FinalAnswerError
from outlast.journal.failure import Failure, capture, tell, without
from outlast.meter.instrument import ATTEMPTS_ENDED, ATTEMPTS_STARTED
from outlast.meter.meters import NO_METERS, Meters
from outlast.store.change import RunKey
from outlast.worker.call import Check, ThreadCall, Threw, anytime, call_async
from outlast.worker.patience import Patience, TimedOut
from outlast.worker.stall import LoopWatch
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.carry import Errand, current_errand
from outlast.workflows.completion import AskedTooEarlyError, handing_out
from outlast.workflows.definition import AttemptOptions, Effect, Step, probe_function
from outlast.workflows.heartbeat import Beats, current_beats

logger = logging.getLogger("outlast.worker")


class Returned(msgspec.Struct, frozen=True):
    """The body returned; its value as JSON."""

    value: bytes


class Raised(msgspec.Struct, frozen=True):
    """The body raised.

    Args:
        hopeless: Another attempt would end the same way.
        not_applied: An effect's error that proves that nothing happened. None does where something that was sent may have been carried out.
        returned: The body returned, and its value cannot be stored.
    """

    failure: Failure
    hopeless: bool = False
    not_applied: bool = False
    returned: bool = False


class LeftOpen(msgspec.Struct, frozen=True):
    """The body has handed the step out: its outcome comes from outside."""


class TooEarly(LeftOpen, frozen=True):
    """The body has asked for its token before what its step depends on is written: it is to be called again then."""


LateEnd: TypeAlias = Callable[[Returned | Raised], None]
"""Called with the end of an effect's attempt for which nobody waited."""

_LateBody: TypeAlias = Callable[[Any], None]
"""Called with the value of an effect's body, or with what it threw, when nobody waited for it."""

Ending: TypeAlias = Returned | Raised | TimedOut | LeftOpen

_CANCELLED = "the attempt was cancelled"

SETTLED = "the outcome came from outside"
"""The word with which an attempt is cancelled whose operation has its outcome. A body that is just handing itself out may end then."""


class _ThreadEffect(msgspec.Struct, frozen=True):
    """An effect that has a thread, or waits for one."""

    run: RunKey
    operation: str
    call: ThreadCall


class NoAnswer(Unknown, frozen=True):
    """The probe raised.

    Args:
        hopeless: Asked again it would raise the same.
    """

    hopeless: bool = False


class Executor:
    """Runs attempts.

    Args:
        threads: Where synchronous bodies run.
        watch: Told of each asynchronous body, to say which of them keeps the event loop from turning.
        meters: Told how many attempts begin, and how they end.
    """

    def __init__(
        self, threads: Threads, watch: LoopWatch | None = None, meters: Meters = NO_METERS
    ) -> None:
        self._threads = threads
        self._meters = meters
        self._watch = watch
        self._effects: dict[asyncio.Future[Any], _ThreadEffect] = {}
        self._left: dict[asyncio.Future[Any], Attempt] = {}
        """Bodies of steps that go on although their attempts have ended."""
        self._ending: set[asyncio.Future[Any]] = set()
        """Bodies whose outcome came while they were handing themselves out, on their way to their end."""

    async def end(self) -> None:
        """Cancel what is only on its way to its end."""
        for body in self._ending:
            body.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def left_of(self, attempt: Attempt) -> asyncio.Future[Any] | None:
        """Return the body of an attempt that has ended, when it goes on: its thread cannot be stopped, or it will not be cancelled."""
        return next(
            (body for body, one in self._left.items() if one == attempt and not body.done()), None
        )

    def left(self, names: Collection[str]) -> int:
        """Return how many bodies of steps of these names go on although their attempts have ended, in whichever life of the worker."""
        return sum(one.name in names and not body.done() for body, one in self._left.items())

    def _leave(
        self, body: asyncio.Future[Any], attempt: Attempt, late: _LateBody | None = None
    ) -> None:
        self._left[body] = attempt
        body.add_done_callback(self._left.pop)
        if late is None:
            body.add_done_callback(functools.partial(_log_late, attempt))
        else:
            body.add_done_callback(functools.partial(_tell_late, late))

    def _let_end(self, body: asyncio.Future[Any]) -> None:
        self._ending.add(body)
        body.add_done_callback(self._ending.discard)

    def acting(self, run: RunKey | None = None) -> bool:
        """Whether a thread is in the middle of an effect, of this run or of any. It cannot be stopped. Callable from any thread."""
        effects = tuple(self._effects.values())
        return any(one.call.has_begun and run in {None, one.run} for one in effects)

    async def returned(
        self, run: RunKey, operation: str = "", *, within: float | None = None
    ) -> None:
        """Return when no body is in the middle of an effect of this run, or of this operation of it: no thread, and none left behind.

        Args:
            within: Seconds after which to return all the same.
        """
        threads = [
            thread
            for thread, one in self._effects.items()
            if one.run == run and operation in {"", one.operation}
        ]
        threads += [
            body
            for body, one in self._left.items()
            # Only effects have a key.
            if one.key
            and RunKey(one.tenant, one.run_id) == run
            and operation in {"", one.operation}
        ]
        if threads:
            await asyncio.wait(threads, timeout=within)

    async def attempt(  # noqa: PLR0913 - as many as an attempt has
        self,
        definition: Step[..., Any] | Effect[..., Any],
        arguments: bytes,
        attempt: Attempt,
        check: Check = anytime,
        *,
        beats: Beats | None = None,
        left: timedelta | None = None,
        late: LateEnd | None = None,
    ) -> Ending:
        """Make one attempt. A cancel of the caller reaches an async body; a thread that has begun goes on until its next beat.

        Args:
            check: Called immediately before the body begins, also in a thread; what it raises ends the attempt instead.
            beats: Where the body's heartbeats are collected.
            left: No attempt takes longer, whatever it waits for; its other times are the declaration's.
            late: Of an effect: told how its body ended when the caller was cancelled, and does not learn of it. A body that ends because
                it was cancelled too is no news.
        """
        try:
            args, kwargs = definition.arguments.decode(arguments)
        except DecodeError as error:
            return Raised(capture(error), hopeless=True, not_applied=True)
        body = functools.partial(definition.function, *args, **kwargs)
        patience = Patience(beats or _beats(), definition.options, left)
        acts = isinstance(definition, Effect)
        errand = Errand(patience.seconds_left, patience.beats)

        def ended_late(value: Any) -> None:
            assert late is not None
            threw = isinstance(value, Threw)
            late(
                _raised(definition, value.error, attempt, errand)
                if threw
                else _returned(definition, value, attempt)
            )

        told = None if late is None else ended_late
        outcome = "cancelled"
        self._meters.add(ATTEMPTS_STARTED)
        try:
            value = await self._run(body, attempt, patience, check, errand, acts=acts, late=told)
            outcome = _outcome_of(value, acts=acts)
        finally:
            self._meters.add(ATTEMPTS_ENDED, 1, outcome)
            if acts:
                errand.close()
        return _ending_of(definition, value, attempt, errand)

    def start(
        self,
        step: Step[..., Any],
        arguments: bytes,
        attempt: Attempt,
        beats: Beats,
        check: Check,
        context: contextvars.Context,
    ) -> asyncio.Task[Any]:
        """Begin the body of an asynchronous step that has no times of its own; `ended` says how it ended, or `see_off` ends it.

        Args:
            context: Of the body, and of nobody else.

        Raises:
            DecodeError: The arguments do not fit the step.
        """
        args, kwargs = context.run(step.arguments.decode, arguments)
        body = functools.partial(step.function, *args, **kwargs)
        context.run(_enter, attempt, beats, Errand(_endless, beats))
        beats.is_async = True
        running = asyncio.get_running_loop().create_task(call_async(body, check), context=context)
        self._meters.add(ATTEMPTS_STARTED)
        if self._watch is not None:
            self._watch.begins(running, attempt, step.function)
        return running

    def ended(self, running: asyncio.Task[Any], step: Step[..., Any], attempt: Attempt) -> Ending:
        """Return how a body ended that `start` has begun.

        Raises:
            BaseException: It has not begun: whatever its check has raised.
        """
        outcome = "cancelled"
        try:
            value = _result(running)
            outcome = _outcome_of(value, acts=False)
        finally:
            self._forget(running, outcome)
        return _ending_of(step, value, attempt)

    def see_off(
        self, running: asyncio.Task[Any], attempt: Attempt, beats: Beats, *, settled: bool
    ) -> Coroutine[Any, Any, None]:
        """Cancel a body that `start` has begun and for which nobody waits any more; return the wait for its end.

        Args:
            settled: Its operation has its outcome.
        """
        is_ending = settled and beats.hands_out
        if is_ending:
            self._let_end(running)
        else:
            beats.stop(_CANCELLED)
            running.cancel()
        return self._seen_off(running, attempt, 0.0 if is_ending else _CANCEL_GRACE_SECONDS)

    async def _seen_off(self, running: asyncio.Task[Any], attempt: Attempt, seconds: float) -> None:
        try:
            await asyncio.wait({running}, timeout=seconds)
        finally:
            self._forget(running, "cancelled")
            if not running.done():
                self._leave(running, attempt)

    def _forget(self, running: asyncio.Task[Any], outcome: str) -> None:
        self._meters.add(ATTEMPTS_ENDED, 1, outcome)
        if self._watch is not None:
            self._watch.ends(running)

    async def probe(
        self,
        effect: Effect[..., Any],
        arguments: bytes,
        attempt: Attempt,
        check: Check = anytime,
    ) -> Applied[bytes] | NotApplied | Unknown:
        """Ask whether the effect happened. An error (`NoAnswer`), a late or a strange answer is `Unknown`; see `attempt`."""
        timeout = effect.rules.probe_timeout or effect.options.start_to_close_timeout
        options = AttemptOptions(start_to_close_timeout=timeout)
        try:
            args, kwargs = effect.arguments.decode(arguments)
            body = functools.partial(probe_function(effect), *args, **kwargs)
            patience = Patience(_beats(), options)
            looking = msgspec.structs.replace(attempt, probing=True)
            errand = Errand(patience.seconds_left, patience.beats)
            answer = await self._run(body, looking, patience, check, errand, acts=False)
            match answer:
                case TimedOut():
                    return Unknown(answer.text("the probe"))
                case Applied():
                    return Applied(effect.result.encode(cast("Applied[Any]", answer).value))
                case NotApplied() | Unknown():
                    return answer
                case Threw(error):
                    return _no_answer(effect, error, attempt)
                case _:
                    return Unknown(
                        f"the probe answered {type(answer).__name__} instead of Applied, NotApplied or Unknown"
                    )
        except Exception as error:  # noqa: BLE001 - an answer that cannot be kept is none
            return _no_answer(effect, error, attempt)

    async def _run(  # noqa: PLR0913 - as many as an attempt has
        self,
        body: functools.partial[Any],
        attempt: Attempt,
        patience: Patience,
        check: Check,
        errand: Errand,
        *,
        acts: bool,
        late: _LateBody | None = None,
    ) -> Any:
        """Return the body's value, what it threw, or which time was over; raise only what is not the body's."""
        context = contextvars.copy_context()
        context.run(_enter, attempt, patience.beats, errand)
        if inspect.iscoroutinefunction(body.func):
            patience.beats.is_async = True
            running = asyncio.create_task(call_async(body, check), context=context)
            if self._watch is None:
                return await self._in_task(running, attempt, patience, acts=acts, late=late)
            self._watch.begins(running, attempt, body.func)
            try:
                return await self._in_task(running, attempt, patience, acts=acts, late=late)
            finally:
                self._watch.ends(running)
        call = ThreadCall(functools.partial(context.run, body), check)
        return await self._in_thread(call, attempt, patience, acts=acts, late=late)

    async def _in_task(
        self,
        running: asyncio.Task[Any],
        attempt: Attempt,
        patience: Patience,
        *,
        acts: bool,
        late: _LateBody | None = None,
    ) -> Any:
        """Wait for `running`, cancel it with us, and cancel it when its time is over.

        An effect is waited for until it has really ended, however long that takes: one that still runs still acts.
        """
        patience.begin()
        try:
            over = await patience.wait(running)
            if over is None:
                return _result(running)
            patience.beats.stop(over.text("the attempt"))
            running.cancel()
            await asyncio.wait({running}, timeout=None if acts else _CANCEL_GRACE_SECONDS)
        except asyncio.CancelledError as told:
            if _may_end(told, patience):
                self._let_end(running)
                raise
            patience.beats.stop(_CANCELLED)
            running.cancel()
            try:
                await asyncio.wait({running}, timeout=_CANCEL_GRACE_SECONDS)
            finally:
                if late is not None and running.done():
                    _tell_late(late, running)
            raise
        finally:
            if not running.done():
                self._leave(running, attempt, late)
        if running.done() and not isinstance(value := _result(running), Threw):
            return value
        return over

    async def _in_thread(
        self,
        call: ThreadCall,
        attempt: Attempt,
        patience: Patience,
        *,
        acts: bool,
        late: _LateBody | None = None,
    ) -> Any:
        """Run a call in a thread. Its own times count from its beginning; one that is called off before that never begins.

        A thread cannot be stopped; its body is told at its next beat. Until it returns an effect is still acting, and what it returns
        is what happened; so an effect is waited for, however long that takes.
        """
        thread = asyncio.ensure_future(self._threads.run(call))
        if acts:
            run = RunKey(attempt.tenant, attempt.run_id)
            self._effects[thread] = _ThreadEffect(run, attempt.operation, call)
            thread.add_done_callback(lambda done: self._effects.pop(done, None))
        try:
            over = await patience.wait(thread, call.begun)
            if over is not None and call.call_off():
                thread.cancel()
                return over
            patience.begin()
            over = await patience.wait(thread)
            if over is not None:
                patience.beats.stop(over.text("the attempt"))
            if over is not None and acts:
                await asyncio.wait({thread})
        except asyncio.CancelledError as told:
            if not _may_end(told, patience):
                patience.beats.stop(_CANCELLED)
            is_off = call.call_off()
            if is_off:
                thread.cancel()
            self._leave(thread, attempt, None if is_off else late)
            raise
        if not thread.done():
            self._leave(thread, attempt)
            return over
        value = thread.result()
        return value if over is None or not _is_obedient(value) else over


def _enter(attempt: Attempt, beats: Beats, errand: Errand) -> None:
    """Let a body that runs in this context know what it is."""
    current_attempt.set(attempt)
    current_beats.set(beats)
    current_errand.set(errand)


def _endless() -> float | None:
    """Return what is left to an attempt that may take for ever."""
    return None


def _ending_of(
    definition: Step[..., Any] | Effect[..., Any],
    value: Any,
    attempt: Attempt,
    errand: Errand | None = None,
) -> Ending:
    """Return what a body's value, what it threw, or the time that was over, means to its operation."""
    is_step = isinstance(definition, Step)
    match value:
        case TimedOut():
            return value
        case Threw(error) if is_step and (ended := handing_out(error)) is not None:
            return TooEarly() if isinstance(ended, AskedTooEarlyError) else LeftOpen()
        case Threw(error):
            return _raised(definition, error, attempt, errand)
        case _:
            return _returned(definition, value, attempt)


def _outcome_of(value: Any, *, acts: bool) -> str:
    match value:
        case TimedOut():
            return "timed_out"
        case Threw(error):
            return "handed_out" if not acts and handing_out(error) is not None else "raised"
        case _:
            return "returned"


def _raised(
    definition: Step[..., Any] | Effect[..., Any],
    error: BaseException,
    attempt: Attempt,
    errand: Errand | None,
) -> Raised:
    failure = _captured(error, attempt)
    hopeless = _is_hopeless(error) or not definition.options.retry.retries(failure.type)
    proves = isinstance(definition, Effect) and isinstance(error, definition.rules.not_applied)
    acted = errand is not None and errand.sent.may_have_acted
    return Raised(failure, hopeless=hopeless, not_applied=proves and not acted)


def _captured(error: BaseException, attempt: Attempt) -> Failure:
    """Return the failure of an attempt. The workflow sees it, and what it hands on to a model: the effect's key is not in it."""
    failure = capture(error)
    return without(failure, attempt.key, "<key>") if attempt.key else failure


def _is_hopeless(error: BaseException) -> bool:
    """Whether an error would come again, whatever the policy says: one of the code, or a receiver's last word; also one in a group, which a task group makes of it."""
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, AuthorError | DecodeError | FinalAnswerError):
            return True
        if isinstance(one, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", one).exceptions
    return False


def _result(running: asyncio.Task[Any]) -> Any:
    """Return what a task that has ended gave; a body that was cancelled, by itself or by us, threw that."""
    try:
        return running.result()
    except asyncio.CancelledError as error:
        return Threw(error)


def _may_end(told: asyncio.CancelledError, patience: Patience) -> bool:
    """Whether a body is let alone although nobody waits for it: it was answered while it handed itself out."""
    return told.args == (SETTLED,) and patience.beats.hands_out


def _is_obedient(value: Any) -> bool:
    """Whether a body that was told to stop did so, and nothing else."""
    return isinstance(value, Threw) and isinstance(value.error, asyncio.CancelledError)


def _is_expected(value: Any) -> bool:
    """Whether a late end is no news: the body obeyed, or has handed out what was answered already."""
    return _is_obedient(value) or (
        isinstance(value, Threw) and handing_out(value.error) is not None
    )


def _beats() -> Beats:
    """Return a place for beats that nobody carries anywhere."""
    return Beats(asyncio.get_running_loop().time)


def _returned(
    definition: Step[..., Any] | Effect[..., Any], value: Any, attempt: Attempt
) -> Returned | Raised:
    try:
        return Returned(definition.result.encode(value))
    except EncodeError as error:
        error.step = attempt.name
        error.operation = attempt.operation
        error.run = attempt.run_id
        return Raised(_captured(error, attempt), hopeless=True, returned=True)


_CANCEL_GRACE_SECONDS = 5.0
"""How long a cancelled async body may clean up before it is left behind."""


def _no_answer(effect: Effect[..., Any], error: BaseException, attempt: Attempt) -> NoAnswer:
    failure = _captured(error, attempt)
    is_mistake = isinstance(error, AuthorError | DecodeError | EncodeError)
    hopeless = is_mistake or not effect.probe_retry.retries(failure.type)
    return NoAnswer(f"the probe raised {tell(failure)}", hopeless=hopeless)


def _tell_late(late: _LateBody, body: asyncio.Future[Any]) -> None:
    """Tell how a body ended for which nobody waits; not when it was called off, or has obeyed."""
    if body.cancelled():
        return
    error = body.exception()
    value = body.result() if error is None else Threw(error)
    # What is no `Exception` was raised by us, before the body began: it must not act, or its loop is closed.
    if isinstance(value, Threw) and not isinstance(value.error, Exception):
        return
    late(value)


def _log_late(attempt: Attempt, thread: asyncio.Future[Any]) -> None:
    if thread.cancelled() or (thread.exception() is None and _is_expected(thread.result())):
        return
    threw = thread.exception() is not None or isinstance(thread.result(), Threw)
    logger.warning(
        "run %s: attempt %d of %s (%s) %s after its time; the result is dropped",
        attempt.run_id,
        attempt.number,
        attempt.name,
        attempt.operation,
        "ended in an error" if threw else "returned",
        extra={
            "tenant": attempt.tenant,
            "run": attempt.run_id,
            "operation": attempt.operation,
            "step": attempt.name,
            "attempt": attempt.number,
        },
    )
