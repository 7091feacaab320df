"""A call: it happens once, outside a workflow as the plain function, an effect's not at all."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from datetime import timedelta

import pytest

import outlast
from outlast.errors import DefinitionError, EffectOutsideWorkflowError, OutlastError
from outlast.replay.context import current_context
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.inside import _cover


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
