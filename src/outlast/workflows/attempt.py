"""What a step or effect can ask while it runs."""

from __future__ import annotations

from contextvars import ContextVar

from msgspec import Struct

from outlast.errors import DefinitionError, EffectOutsideWorkflowError


class Attempt(Struct, frozen=True):
    """One try of a step or effect.

    Args:
        number: Counted from 1; tries cut off by a crash are not counted.
        key: The idempotency key; empty for steps.
        generation: Of the run.
        ahead: Whether the run has seen something that its journal does not hold yet: see `@workflow(durability=…)`.
        undoes_key: Of a compensation: the idempotency key of the effect that it undoes, by which a receiver may know that.
        idempotent: Of an effect: its receiver answers an equal key with the first result, so that a request under the key may be sent
            again.
        probing: What runs here only looks: the probe of an effect, or the step that says whether what a yes rests on still holds.

    Example:
        ```python
        import outlast

        @outlast.step
        async def where() -> str:
            attempt: outlast.Attempt = outlast.attempt()
            return f"{attempt.run_id} {attempt.name} {attempt.number}"

        @outlast.workflow
        async def tell() -> str:
            return await where()

        async with outlast.open("memory://") as app:
            assert await app.run(tell(), id="t") == "t where 1"
        ```
    """

    tenant: str
    run_id: str
    operation: str
    name: str
    number: int
    key: str = ""
    generation: int = 1
    ahead: bool = False
    undoes_key: str = ""
    idempotent: bool = False
    probing: bool = False


current_attempt: ContextVar[Attempt] = ContextVar("outlast_attempt")


def check_not_probing(effect: str) -> None:
    """Return unless a probe is running here, which must not call this effect.

    Raises:
        EffectOutsideWorkflowError: One is.
    """
    found = current_attempt.get(None)
    if found is not None and found.probing:
        raise EffectOutsideWorkflowError(
            f"effect {effect} was called in the probe of {found.name}",
            step=found.name,
            operation=found.operation,
            run=found.run_id,
            hint="a probe only reads: let it look up in the remote system what became of the effect, and answer Applied(value), "
            "NotApplied() or Unknown(why); Outlast calls the effect again where that is safe",
        )


def attempt() -> Attempt:
    """Return the attempt that is being made.

    Raises:
        DefinitionError: No step or effect is running here.

    Example:
        ```python
        import outlast

        @outlast.step
        async def number() -> int:
            return outlast.attempt().number

        @outlast.workflow
        async def first() -> int:
            return await number()

        async with outlast.open("memory://") as app:
            assert await app.run(first(), id="f") == 1
        ```
    """
    found = current_attempt.get(None)
    if found is None:
        raise DefinitionError(
            "outlast.attempt() was called outside a step or effect",
            hint="call it in the body of a @step or @effect, in the task or thread that runs it; a test of the plain function "
            "makes one by `with outlast.testing.attempt():`",
        )
    return found


def idempotency_key() -> str:
    """Return the key to send to the receiver: equal for every attempt of this effect, whoever makes it.

    Raises:
        DefinitionError: No effect is running here.

    Example:
        ```python
        import outlast

        @outlast.effect(idempotent=True)
        async def charge(amount: int) -> str:
            return outlast.idempotency_key()  # goes into the request's Idempotency-Key header

        @outlast.workflow
        async def pay(amount: int) -> str:
            return await charge(amount)

        async with outlast.open("memory://") as app:
            key = await app.run(pay(10), id="pay-1")
            assert len(key) == 32
        ```
    """
    found = current_attempt.get(None)
    if found is None or not found.key:
        raise DefinitionError(
            "outlast.idempotency_key() was called outside an effect",
            step=found.name if found else None,
            hint="only effects have keys: declare the function with @effect; a test of the plain function gives one by "
            '`with outlast.testing.attempt(key="k"):`',
        )
    return found.key
