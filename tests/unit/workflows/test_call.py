"""A call: it happens once, outside a workflow as the plain function, an effect's not at all."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from collections.abc import Callable, Coroutine
from datetime import timedelta

import pytest

import outlast
from outlast.errors import DefinitionError, EffectOutsideWorkflowError, OutlastError
from outlast.replay.context import current_context
from outlast.testing import Simulation
from outlast.workflows.approval import _cover
from outlast.workflows.attempt import Attempt, current_attempt


async def double(n: int) -> int:
    return 2 * n


def triple(n: int) -> int:
    return 3 * n


@pytest.fixture
def pay():
    """An effect."""
    return outlast.effect(idempotent=True, name="pay")(double)


def test_step_outside_a_workflow_is_the_plain_function():
    """Awaited in an ordinary test, a step runs its function, async or not; so does a workflow."""

    async def main() -> list[int]:
        return [
            await outlast.step(double)(2),
            await outlast.step(triple)(2),
            await outlast.workflow(double)(3),
            *await asyncio.gather(outlast.step(double)(4), outlast.step(triple)(4)),
        ]

    assert asyncio.run(main()) == [4, 6, 6, 8, 12]


def test_plain_calls_the_function_itself(pay):
    """`.plain(…)` is the function, without journal, key or protection."""

    async def main() -> int:
        return await pay.plain(5)

    assert asyncio.run(main()) == 10
    assert outlast.step(triple).plain(2) == 6


def test_effect_outside_a_workflow_raises(pay):
    """A lost context must never mean an unguarded effect: the error says how to mean it."""

    async def main() -> None:
        with pytest.raises(EffectOutsideWorkflowError, match="pay was called outside") as caught:
            await pay(5)
        assert ".plain(" in caught.value.hint
        with pytest.raises(EffectOutsideWorkflowError):
            await asyncio.create_task(pay(5))
        with pytest.raises(EffectOutsideWorkflowError):
            await asyncio.gather(pay(5))

    asyncio.run(main())


def test_effect_inside_a_step_raises(pay):
    """The body of a step is outside the workflow, whatever called it."""

    @outlast.step
    async def careless(n: int) -> int:
        return await pay(n)

    with pytest.raises(EffectOutsideWorkflowError):
        asyncio.run(careless(1))


def test_workflow_inside_a_workflow_is_refused():
    """A workflow's call is no operation: its function can be part of a run, the run of another one cannot."""
    flow = outlast.workflow(double)

    class Somebody:
        pass

    def inside() -> None:
        current_context.set(Somebody())
        with pytest.raises(DefinitionError, match="awaited inside a workflow"):
            flow(1).begin()

    contextvars.copy_context().run(inside)


def test_call_happens_once():
    """A second use is refused, and says what to write."""
    call = outlast.step(double)(2)

    async def main() -> None:
        assert await call == 4
        with pytest.raises(DefinitionError, match="used twice") as caught:
            await call
        assert "double(…)" in caught.value.hint
        with pytest.raises(DefinitionError, match="used twice"):
            call.begin()

    asyncio.run(main())


def test_call_is_a_coroutine_compared_by_identity():
    """A call is a coroutine to asyncio, is equal only to itself, and shows no arguments."""
    work = outlast.step(double)
    first, second = work(2), work(2)
    assert isinstance(first, Coroutine)
    assert asyncio.iscoroutine(first)
    assert first != second
    assert len({first, second}) == 2
    assert repr(first) == "<Call of double>"


def test_call_that_is_dropped_never_happens():
    """Closing, or raising into, a call that was not started starts nothing."""
    ran: list[int] = []

    @outlast.step
    async def note(n: int) -> None:
        ran.append(n)

    call = note(1)
    call.close()
    with pytest.raises(ValueError, match="no"):
        note(2).throw(ValueError("no"))
    assert ran == []


def test_cancelled_call_is_told():
    """A task of a call is cancelled as any other."""

    @outlast.step
    async def wait() -> None:
        await asyncio.Event().wait()

    async def main() -> bool:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


def test_pattern_needs_a_parameter_of_the_effect(pay):
    """A pattern names parameters, at least one."""
    with pytest.raises(DefinitionError, match="names no parameter"):
        pay.where(m=1)
    with pytest.raises(DefinitionError, match="would cover every call"):
        pay.where()
    assert pay.where(n=1).cover.where == {"n": "1"}


def test_cover_is_the_hash_of_the_effective_action(pay):
    """Effect, version and arguments make the hash; how the arguments were given does not."""

    def hashed(call):
        return _cover(call)[0].action_sha256

    newer = outlast.effect(idempotent=True, name="pay", version="2")(double)
    assert hashed(pay(1)) == hashed(pay(n=1))
    assert len({hashed(pay(1)), hashed(pay(2)), hashed(newer(1))}) == 3


@pytest.mark.parametrize("name", ["now", "random", "uuid4", "info"])
def test_workflow_functions_outside_a_workflow_raise(name):
    """What only a run can answer says so elsewhere."""
    with pytest.raises(OutlastError, match=rf"outlast\.{name} was called outside a workflow"):
        getattr(outlast, name)()


def test_waiting_functions_outside_a_workflow_raise():
    """The same for what waits."""
    waits = {
        "sleep": lambda: outlast.sleep(1),
        "receive": lambda: outlast.receive(outlast.Signal("go", int)),
        "wait_condition": lambda: outlast.wait_condition(lambda: True),
        "approval": lambda: outlast.approval(1, role="r", expires_in=timedelta(1)),
    }
    for name, wait in waits.items():
        with pytest.raises(OutlastError, match=rf"outlast\.{name} was called outside a workflow"):
            asyncio.run(wait())


def test_attempt_and_key_are_of_the_attempt_alone():
    """Outside an attempt they raise; a step has no key."""
    with pytest.raises(DefinitionError, match="outside a step or effect"):
        outlast.attempt()
    with pytest.raises(DefinitionError, match="outside an effect"):
        outlast.idempotency_key()
    token = current_attempt.set(Attempt("t", "r", "r:1", "work", 2))
    try:
        assert outlast.attempt().number == 2
        with pytest.raises(DefinitionError, match="outside an effect"):
            outlast.idempotency_key()
    finally:
        current_attempt.reset(token)


class _Inside:
    """A context that begins nothing."""

    def perform(self, request: object) -> asyncio.Future[object]:
        return asyncio.get_running_loop().create_future()


@pytest.fixture
def inside():
    """A context, as workflow code has one."""
    own = _Inside()
    token = current_context.set(own)  # pyright: ignore[reportArgumentType] - all that is asked of it
    yield own
    current_context.reset(token)


def _dropped(make: Callable[[], object]) -> list[str]:
    """Return what is warned of when what `make` returns is thrown away."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        make()
        gc.collect()
    assert all(one.category is RuntimeWarning and one.filename == __file__ for one in said)
    return [str(one.message) for one in said]


def test_forgotten_await_of_a_step_warns(inside):
    """In a workflow a step that is called and thrown away did not happen: it is said, at the author's line."""
    once = outlast.step(name="once")(double)
    (text,) = _dropped(lambda: once(2))
    assert (
        text == "call of step once was never awaited, so it did not happen; write `await once(…)`"
    )


def test_forgotten_await_of_an_effect_warns_everywhere(pay):
    """An effect means nothing without its await, in a workflow or out of it."""
    (text,) = _dropped(lambda: pay(5))
    assert text.startswith("call of effect pay was never awaited")


def test_no_warning_outside_of_workflows():
    """Outside, a step and a workflow are descriptions: `client.start(flow(…))` may fail before it uses one."""
    assert _dropped(lambda: outlast.step(double)(2)) == []
    assert _dropped(lambda: outlast.workflow(double)(2)) == []


@pytest.mark.parametrize("use", ["cover", "close", "throw", "begin"])
def test_no_warning_for_what_was_used(inside, pay, use):
    """A cover, and what asyncio closes or cancels before it began, are no mistakes."""

    async def main() -> None:
        call = pay(5)
        match use:
            case "cover":
                _cover(call)
            case "close":
                call.close()
            case "throw":
                with pytest.raises((asyncio.CancelledError, AttributeError)):
                    call.throw(asyncio.CancelledError())
            case _:
                call.begin()
        del call

    assert _dropped(lambda: asyncio.run(main())) == []


def test_no_warning_when_a_run_is_evicted(pay):
    """A parked run whose code holds calls for later leaves memory in silence, as often as it does."""
    once = outlast.step(name="for later")(double)

    @outlast.workflow(name="holds calls")
    async def hold() -> int:
        calls = [once(1), once(2), pay(3)]
        await outlast.sleep(60)
        return sum([await call for call in calls])

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(hold(), id="r")
        await sim.closed("r")
        return await handle.result()

    assert _dropped(lambda: Simulation([once, pay, hold]).run(scenario)) == []


@pytest.mark.without_always_replay("each replay forgets the await again, and warns again")
def test_forgotten_await_in_a_run_warns():
    """The guard that keeps files from workflow code does not keep the warning from its source line."""
    once = outlast.step(name="forgotten")(double)

    @outlast.workflow(name="forgets")
    async def forget() -> int:
        once(1)
        return 1

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(forget(), id="r")
        await sim.closed("r")
        return await handle.result()

    (text,) = _dropped(lambda: Simulation([once, forget]).run(scenario))
    assert "step forgotten was never awaited" in text
