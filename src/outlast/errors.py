"""Every exception of Outlast, in one tree.

```
OutlastError                          a stable `code`, where it happened, and a `hint` that says what to do
├── AuthorError                       the workflow's code is to be changed
│   ├── DefinitionError               a decorator or signature that cannot work; raised at import
│   ├── ForbiddenInWorkflowError      clock, socket, thread … asked for by workflow code
│   ├── EffectOutsideWorkflowError    an effect called where nothing would make it safe
│   ├── OutsideWorkflowError          `now`, `sleep`, `receive` … asked for where no workflow runs
│   ├── NonDeterminismError           replay asked for something that the journal does not hold
│   ├── RepeatedEffectError           an equal effect already succeeded in this run
│   ├── SamePurposeError              another call of the effect has the same purpose, and may have happened
│   ├── KeyReusedError                a receiver knows an effect's key with other content
│   ├── PolicyError                   a policy, or its file, that cannot be used as it is
│   └── EncodeError                   a value that cannot be stored; names the path in it
├── RunError                          what became of a run or of one of its operations
│   ├── StepFailedError               a step or effect failed with a type that is not rebuilt
│   ├── WorkflowFailedError           the run ended as `failed`
│   ├── RunCancelledError             the run ended as `cancelled`
│   ├── RunTerminatedError            the run was ended by an operator
│   ├── RunBlockedError               the run waits for an operator
│   ├── QueryError                    a question to a run that was not answered
│   ├── UpdateRejectedError           the run refused an update, and nothing of it was done
│   ├── UpdateFailedError             the handler of an update raised
│   ├── InboxFullError                the run has too many messages that it has not taken in
│   ├── RunNotFoundError              no run of that id in this tenant
│   ├── RunConflictError              the id is taken by a run with other input
│   ├── ForkedEffectError             an effect that a fork does not make
│   ├── SagaClosedError               an effect of a saga that is being undone
│   ├── EffectCompensatedError        an effect in doubt that an operator has undone
│   └── OpenCompensationsError        a run cannot be ended just so: what it did would not be undone
├── ApprovalError                     an approval that does not permit
│   ├── ApprovalDeniedError           a person said no
│   ├── ApprovalExpiredError          nobody decided, or the effect came too late
│   ├── ApprovalMismatchError         the action is not the one that was approved
│   ├── ApprovalSpentError            the grant was used already
│   ├── ApprovalUnauthorisedError     who said yes, or who started the run, may not do so any more
│   ├── ApprovalPreconditionError     what the yes rests on is not so any more
│   ├── DecisionRefusedError          a decision that the store did not accept
│   └── ReceiptError                  no receipt can be drawn, or what is read is none
├── NotAuthorisedError                whoever acts may not do this
├── PermissionDeniedError             the policy does not let an effect begin
├── EffectsStoppedError               an operator has stopped such effects
├── RequestStateError                 a request under an idempotency key that is not in doubt, or not as it was seen
├── ReceiverBusyError                 a receiver asks to be called again later
├── SignatureError                    a signed document that is not what it is taken for
├── SigningKeyError                   a key that cannot be read, written or used
├── MissingExtraError                 a package that an optional part needs is not installed
└── StoreError                        where the work is kept
    ├── StoreUnavailableError         it cannot be opened, read or written now
    ├── StoreVersionError             it was written by a newer version
    ├── StoreCorruptError             what was read is not what was written
    └── DecodeError                   stored data does not fit the type that the code names
```

Control flow that is not an error (`RunEvicted`) derives from `BaseException` and lives beside the machine that raises it.
Every error survives `copy` and pickling by its fields alone.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OutlastError(Exception):
    """The root of Outlast's exceptions.

    Args:
        message: What happened, in one sentence.
        hint: What to do about it.
        run: The id of the run, where there is one.
        operation: The id of the operation (`r:3`), where there is one.
        step: The name of the step or effect, where there is one.

    Example:
        ```python
        import outlast

        async with outlast.open("memory://") as app:
            try:
                await app.handle("no-such-run").status()
            except outlast.OutlastError as error:
                assert error.code == "run_not_found" and error.hint
        ```
    """

    code: ClassVar[str] = "outlast"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        run: str | None = None,
        operation: str | None = None,
        step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.run = run
        self.operation = operation
        self.step = step

    def __str__(self) -> str:
        """Return the message, then where it happened, then what to do."""
        places = (("run", self.run), ("step", self.step), ("operation", self.operation))
        where = ", ".join(f"{label} {value}" for label, value in places if value)
        text = f"{self.message} ({where})" if where else self.message
        return f"{text}\n  → {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the fields, since the constructor takes keywords."""
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(
    kind: type[OutlastError], args: tuple[Any, ...], fields: dict[str, Any]
) -> OutlastError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class AuthorError(OutlastError):
    """The workflow's code is to be changed."""

    code = "author"


class DefinitionError(AuthorError):
    """A decorator, signature or registration that cannot work; raised at import or at start.

    Example:
        ```python
        import outlast

        try:
            @outlast.step
            def area(width, height): ...
        except outlast.DefinitionError as error:
            assert "annotate every parameter" in error.hint
        ```
    """

    code = "definition"


class ForbiddenInWorkflowError(AuthorError):
    """Workflow code asked for a clock, socket, thread or other thing that replay cannot repeat.

    Example:
        ```python
        import time
        import outlast

        try:
            @outlast.workflow
            async def hurry() -> float:
                return time.time()  # outlast.now() is the same in every replay
        except outlast.ForbiddenInWorkflowError as error:
            assert error.step == "hurry"
        ```
    """

    code = "forbidden_in_workflow"


class EffectOutsideWorkflowError(AuthorError):
    """An effect was called outside a workflow, or inside a step, where nothing would make it safe.

    Example:
        ```python
        import outlast

        @outlast.effect(idempotent=True)
        async def pay(amount: int) -> str:
            return "paid"

        try:
            await pay(10)
        except outlast.EffectOutsideWorkflowError:
            assert await pay.plain(10) == "paid"  # the explicit way, without any protection
        ```
    """

    code = "effect_outside_workflow"


class OutsideWorkflowError(AuthorError):
    """Something that only a workflow can ask for was asked for elsewhere, as `outlast.now()` in a step.

    Example:
        ```python
        import outlast

        try:
            outlast.now()
        except outlast.OutsideWorkflowError as error:
            assert "outside a workflow" in error.message
        ```
    """

    code = "outside_workflow"


class NonDeterminismError(AuthorError):
    """Replay asked for something else than the journal holds.

    Args:
        position: Of the journal's entry that does not fit, from 0; None where it is not about one entry.
        recorded: What the journal holds there, in words.
        asked: What the code asks for instead.
        raised: What the code had raised before it came there, and where; empty when it goes on, or has returned.

    Example:
        ```python
        import outlast
        from outlast.testing import always_replay

        calls = 0

        @outlast.step
        def work() -> None: ...

        @outlast.workflow
        async def moody() -> None:
            global calls
            calls += 1  # lives outside the journal, so that a replay decides otherwise
            await work()
            if calls == 1:
                await work()

        try:
            with always_replay():
                async with outlast.open("memory://") as app:
                    await app.run(moody(), id="moody")
        except outlast.NonDeterminismError as error:
            assert error.run == "moody"
        ```
    """

    code = "non_determinism"

    def __init__(
        self,
        message: str,
        *,
        position: int | None = None,
        recorded: str = "",
        asked: str = "",
        raised: str = "",
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.position = position
        self.recorded = recorded
        self.asked = asked
        self.raised = raised


class RepeatedEffectError(AuthorError):
    """An equal effect already succeeded in this run.

    Example:
        ```python
        import outlast

        @outlast.effect(idempotent=True)
        async def pay(amount: int) -> str:
            return "paid"

        @outlast.workflow
        async def twice() -> str:
            await pay(10)
            try:
                return await pay(10)
            except outlast.RepeatedEffectError:
                return "only once; @effect(repeats=True) would mean two payments"

        async with outlast.open("memory://") as app:
            assert (await app.run(twice(), id="t")).startswith("only once")
        ```
    """

    code = "repeated_effect"


class SamePurposeError(AuthorError):
    """Another call of the effect has the same purpose, and may have happened; this one was not made.

    Args:
        first: The operation of that call.
        state: What became of it: `in flight`, `in doubt`, `done`, or `failed, and may have happened`.

    Example:
        ```python
        import outlast

        @outlast.effect(idempotent=True, same_as=outlast.SameAs("to"))
        async def invite(to: str, text: str) -> str:
            return "invited"

        @outlast.workflow
        async def twice() -> str:
            await invite("Ada", "Come at eight.")
            try:
                return await invite("Ada", "Do come, at eight!")
            except outlast.SamePurposeError as error:
                assert (error.first, error.state) == ("r:1", "done")
                return "only once"

        async with outlast.open("memory://") as app:
            assert await app.run(twice(), id="t") == "only once"
        ```
    """

    code = "same_purpose"

    def __init__(self, message: str, *, first: str = "", state: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.first = first
        self.state = state


class KeyReusedError(AuthorError):
    """A receiver refused the content that an effect sent under its key: it knows the key with other content, or may know it.

    No attempt follows: it would end the same way. It does not prove that nothing happened: what the receiver has under the key may be an
    earlier attempt of this effect, whose content was another because it held a time or a random number.

    Args:
        status: Of the receiver's answer.
        certain: Whether the receiver says that it knows the key with other content. Where it does not, it may be the content itself
            that it does not take.

    Example:
        ```python
        import httpx
        import outlast
        from outlast.http.transport import IdempotentTransport

        double = httpx.MockTransport(lambda request: httpx.Response(422))

        @outlast.effect(idempotent=True)
        async def pay(amount: int) -> None:
            async with httpx.AsyncClient(transport=IdempotentTransport(double)) as client:
                await client.post("https://bank.example/payments", json={"amount": amount})

        @outlast.workflow
        async def settle(amount: int) -> None:
            await pay(amount)

        async with outlast.open("memory://") as app:
            try:
                await app.run(settle(10), id="settle-1")
            except outlast.OutlastError as error:
                assert error.__cause__.code == "key_reused"
        ```
    """

    code = "key_reused"

    def __init__(
        self, message: str, *, status: int = 0, certain: bool = False, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.status = status
        self.certain = certain


class EncodeError(AuthorError):
    """A value cannot be stored.

    Args:
        path: Where in the value, as `$.items[3].price`.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def keep(scores: list[float]) -> int:
            return len(scores)

        async with outlast.open("memory://") as app:
            try:
                await app.start(keep([1.0, float("nan")]), id="k")
            except outlast.EncodeError as error:
                assert error.path == "$.scores[1]"
        ```
    """

    code = "encode"

    def __init__(self, message: str, *, path: str = "$", **where: Any) -> None:
        super().__init__(message, **where)
        self.path = path


class PolicyError(AuthorError):
    r"""A policy, or its file, that cannot be used as it is: nothing of it is in force.

    Args:
        file: The file, where it is one's.
        place: The table in it, as `[[deny]] number 2`.
        key: The key in that table, as `when.amount`.

    Example:
        ```python
        from outlast.errors import PolicyError
        from outlast.policy import policy_of

        try:
            policy_of('[[deny]]\ntool = "delete_*"\ntenants = "prod"\n', file="policy.toml")
        except PolicyError as error:
            assert (error.place, error.key) == ("[[deny]] number 1", "tenants")
        ```
    """

    code = "policy"

    def __init__(
        self, message: str, *, file: str = "", place: str = "", key: str = "", **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.file = file
        self.place = place
        self.key = key


class RunError(OutlastError):
    """What became of a run or of one of its operations."""

    code = "run"


class StepFailedError(RunError):
    """A step or effect failed with an exception whose type is not rebuilt.

    Args:
        type_name: The name of the original type, as `httpx.ConnectError`.
        stack: The scrubbed stack of the original, as text.

    Example:
        ```python
        import outlast

        class OddError(Exception): ...

        @outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
        def odd() -> None:
            raise OddError("seven")

        @outlast.workflow
        async def look() -> str:
            try:
                await odd()
            except outlast.StepFailedError as error:  # `raises=(OddError,)` would let it arrive as itself
                return error.type_name
            return "even"

        async with outlast.open("memory://") as app:
            assert (await app.run(look(), id="l")).endswith("OddError")
        ```
    """

    code = "step_failed"

    def __init__(self, message: str, *, type_name: str = "", stack: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.type_name = type_name
        self.stack = stack


class WorkflowFailedError(RunError):
    """The run ended as `failed`; the cause is the workflow's exception, rebuilt as far as its type allows.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def divide(by: int) -> float:
            return 1 / by

        async with outlast.open("memory://") as app:
            try:
                await app.run(divide(0), id="d")
            except outlast.WorkflowFailedError as error:
                assert isinstance(error.__cause__, ZeroDivisionError)
        ```
    """

    code = "workflow_failed"


class RunCancelledError(RunError):
    """The run ended as `cancelled`.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def wait() -> None:
            await outlast.sleep(3600)

        async with outlast.open("memory://") as app:
            handle = await app.start(wait(), id="w")
            await handle.cancel("not needed any more")
            try:
                await handle.result()
            except outlast.RunCancelledError as error:
                assert "not needed any more" in error.message
        ```
    """

    code = "run_cancelled"


class RunTerminatedError(RunError):
    """The run was ended by an operator without running its clean-up.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def wait() -> None:
            await outlast.sleep(3600)

        async with outlast.open("memory://") as app:
            handle = await app.start(wait(), id="w")
            await handle.terminate("wrong customer")
            try:
                await handle.result()
            except outlast.RunTerminatedError as error:
                assert "wrong customer" in error.message
        ```
    """

    code = "run_terminated"


class RunBlockedError(RunError):
    """The run cannot go on until somebody acts.

    Args:
        reason: Why, as in `in doubt` or `non-determinism`.
    """

    code = "run_blocked"

    def __init__(self, message: str, *, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.reason = reason


class QueryError(RunError):
    """A question to a run was not answered. Nothing was changed by it.

    Args:
        reason: `not_begun`, `unknown` (no handler), `value`, `result`, `handler` (it raised), `acts` (it tried to change something),
            `no_code`, `mismatch` (the code here does not fit the run), `undecodable`, or `budget`.
        entries: How many entries of the run's journal were replayed for it.
        build: Of the code that was asked.

    Example:
        ```python
        import asyncio
        import outlast

        @outlast.workflow
        async def silent() -> str:
            return "done"

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(silent(), id="silent-1")
                await handle.result()
                try:
                    await handle.query("progress")
                except outlast.QueryError as error:
                    assert (error.reason, error.run, error.entries) == ("unknown", "silent-1", 3)

        asyncio.run(main())
        ```
    """

    code = "query"

    def __init__(
        self, message: str, *, reason: str = "", entries: int = 0, build: str = "", **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.reason = reason
        self.entries = entries
        self.build = build


class UpdateRejectedError(RunError):
    """The run refused an update, and nothing of it was done; the cause is what its validator raised, where one did.

    Example:
        ```python
        import asyncio

        import outlast

        order = outlast.Update("order", int)

        @outlast.workflow
        async def shop() -> None:
            def check(count: int) -> None:
                if count > 10:
                    raise ValueError("no more than 10")

            outlast.on_update(order, lambda count: None, validator=check)
            await outlast.wait_condition(lambda: False)

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(shop(), id="shop-1")
                try:
                    await handle.update(order, 11)
                except outlast.UpdateRejectedError as error:
                    assert isinstance(error.__cause__, ValueError)

        asyncio.run(main())
        ```
    """

    code = "update_rejected"


class UpdateFailedError(RunError):
    """The handler of an update raised; the cause is that exception, rebuilt as far as its type allows. The run goes on.

    Example:
        ```python
        import asyncio

        import outlast

        divide = outlast.Update("divide", int, float)

        @outlast.workflow
        async def calculator() -> None:
            outlast.on_update(divide, lambda by: 1 / by)
            await outlast.wait_condition(lambda: False)

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(calculator(), id="calculator-1")
                try:
                    await handle.update(divide, 0)
                except outlast.UpdateFailedError as error:
                    assert isinstance(error.__cause__, ZeroDivisionError)
                assert await handle.update(divide, 4) == 0.25

        asyncio.run(main())
        ```
    """

    code = "update_failed"


class InboxFullError(RunError):
    """The run has too many messages that it has not taken in; this one was not accepted.

    Example:
        ```python
        import asyncio

        import outlast

        async def send_patiently(handle: outlast.RunHandle[None], number: int) -> None:
            while True:
                try:
                    return await handle.send("number", number, id=f"number-{number}")
                except outlast.InboxFullError:
                    await asyncio.sleep(1)

        @outlast.workflow
        async def listen() -> None:
            await outlast.receive(outlast.Signal("number", int))

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(listen(), id="listen-1")
                await send_patiently(handle, 1)
                await handle.result()

        asyncio.run(main())
        ```
    """

    code = "inbox_full"


class RunNotFoundError(RunError):
    """No run of that id exists in this tenant.

    Example:
        ```python
        import outlast

        async with outlast.open("memory://") as app:
            try:
                await app.handle("order-4711").status()
            except outlast.RunNotFoundError as error:
                assert error.run == "order-4711"
        ```
    """

    code = "run_not_found"


class RunConflictError(RunError):
    """An id stands for something else: for a run of another workflow, with other input, or one that has ended; for another message.

    The message says which. What is sent through the handle of a run is refused by it, too, when the run has ended, or its id has begun
    another one.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def ship(order: str) -> str:
            return order

        async with outlast.open("memory://") as app:
            await app.run(ship("a"), id="order-1")
            try:
                await app.run(ship("b"), id="order-1")  # one id, one event
            except outlast.RunConflictError as error:
                assert "other input" in error.message
        ```
    """

    code = "run_conflict"


class ForkedEffectError(RunError):
    """A fork may not do this: make this effect, start this child, send this message. Nobody has allowed it.

    Args:
        origin: The run that was forked, or that did or began it.

    Example:
        ```python
        import outlast

        @outlast.effect(idempotent=True)
        async def greet(name: str) -> str:
            return f"hello {name}"

        @outlast.step
        async def pick() -> str:
            return "Ann"

        @outlast.workflow
        async def welcome() -> str:
            return await greet(await pick())

        async with outlast.open("memory://") as app:
            await app.run(welcome(), id="welcome-1")
            origin = app.handle("welcome-1", welcome)
            fork = await origin.fork(outcome=("r:1", "Bob"), id="welcome-bob", reason="wrong name")
            try:
                await fork.result()
            except outlast.WorkflowFailedError as error:
                assert isinstance(error.__cause__, outlast.ForkedEffectError)
        ```
    """

    code = "forked_effect"

    def __init__(self, message: str, *, origin: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.origin = origin


class SagaClosedError(RunError):
    """An effect, or a saga, was to begin inside a saga that is being undone.

    Example:
        ```python
        import asyncio
        import outlast

        @outlast.effect(idempotent=True)
        async def book(what: str) -> str:
            return what

        @outlast.workflow
        async def travel() -> str:
            told = "nothing"

            async def later() -> None:
                nonlocal told
                await outlast.sleep(0.01)
                try:
                    await book("car")
                except outlast.SagaClosedError:
                    told = "no car: the flight failed"

            try:
                async with outlast.saga():
                    part = asyncio.create_task(later())
                    raise LookupError("no flight")
            except LookupError:
                await part
            return told

        async with outlast.open("memory://") as app:
            assert await app.run(travel(), id="t") == "no car: the flight failed"
        ```
    """

    code = "saga_closed"


class EffectCompensatedError(RunError):
    """It was in doubt whether the effect happened, and an operator has it undone.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        SOON = timedelta(milliseconds=10)

        @outlast.effect(idempotent=True, start_to_close_timeout=SOON)
        async def take_back(order: str) -> None: ...

        @outlast.effect(start_to_close_timeout=SOON, settle=timedelta(0), compensate=take_back)
        async def ship(order: str) -> str:
            raise ConnectionError("was it shipped?")

        @outlast.workflow
        async def sell(order: str) -> str:
            try:
                return await ship(order)
            except outlast.EffectCompensatedError:
                return "taken back"

        async with outlast.open("memory://", idle=SOON) as app:
            handle = await app.start(sell("o-1"), id="o-1")
            while (await handle.status()).reason != "in doubt":
                await asyncio.sleep(0.01)
            await handle.resolve("r:1", compensate=True, reason="nobody can tell")
            assert await handle.result() == "taken back"
        ```
    """

    code = "effect_compensated"


class OpenCompensationsError(RunError):
    """A run was to be terminated in the middle of a saga: what it did there would not be undone.

    Args:
        operations: The effects that would stand.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.effect(idempotent=True)
        async def give_back(result: str) -> None: ...

        @outlast.effect(idempotent=True, start_to_close_timeout=timedelta(seconds=9), compensate=give_back)
        async def reserve(room: str) -> str:
            return room

        @outlast.workflow
        async def stay(room: str) -> None:
            async with outlast.saga():
                await reserve(room)
                await outlast.sleep(3600)

        async with outlast.open("memory://", idle=timedelta(milliseconds=10)) as app:
            handle = await app.start(stay("7"), id="s")
            while (await handle.status()).status != "waiting":
                await asyncio.sleep(0.01)
            try:
                await handle.terminate("no longer needed")
            except outlast.OpenCompensationsError as error:
                assert error.operations == ("r:2",)  # cancel() would have it undone
            await handle.terminate("no longer needed", abandon_compensation=True)
        ```
    """

    code = "open_compensations"

    def __init__(self, message: str, *, operations: tuple[str, ...] = (), **where: Any) -> None:
        super().__init__(message, **where)
        self.operations = operations


class ApprovalError(OutlastError):
    """An approval does not permit the action.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def ask() -> str:
            try:
                await outlast.approval("?", role="boss", expires_in=timedelta(seconds=0.05))
            except outlast.ApprovalError as error:  # denied, expired, for another action, or spent
                return error.code
            return "granted"

        async with outlast.open("memory://") as app:
            assert await app.run(ask(), id="a") == "approval_expired"
        ```
    """

    code = "approval"


class ApprovalDeniedError(ApprovalError):
    """A person said no.

    Args:
        by: Who.
        reason: Why, in their words.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def ask() -> str:
            try:
                await outlast.approval("delete all?", role="boss", expires_in=timedelta(hours=1))
            except outlast.ApprovalDeniedError as no:
                return no.reason
            return "granted"

        async with outlast.open("memory://") as app:
            handle = await app.start(ask(), id="a")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            await app.approvals.deny("a", asked[0].approval_id, seen_sha256=asked[0].subject_sha256, reason="too risky")
            assert await handle.result() == "too risky"
        ```
    """

    code = "approval_denied"

    def __init__(self, message: str, *, by: str = "", reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.by = by
        self.reason = reason


class ApprovalExpiredError(ApprovalError):
    """Nobody decided in time, or the covered effect came after the grant's end.

    Args:
        stage: `decide` or `use`.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def ask() -> str:
            try:
                await outlast.approval("?", role="boss", expires_in=timedelta(seconds=0.05))
            except outlast.ApprovalExpiredError as late:
                return late.stage
            return "granted"

        async with outlast.open("memory://") as app:
            assert await app.run(ask(), id="a") == "decide"
        ```
    """

    code = "approval_expired"

    def __init__(self, message: str, *, stage: str = "decide", **where: Any) -> None:
        super().__init__(message, **where)
        self.stage = stage


class ApprovalMismatchError(ApprovalError):
    """The action is not the one that was approved.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.effect(idempotent=True)
        async def refund(amount: int) -> str:
            return f"refunded {amount}"

        @outlast.workflow
        async def drift() -> str:
            await outlast.approval("10?", covers=[refund(10)], role="boss", expires_in=timedelta(hours=1))
            try:
                return await refund(1000)
            except outlast.ApprovalMismatchError:
                return await refund(10)

        async with outlast.open("memory://") as app:
            handle = await app.start(drift(), id="a")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            await app.approvals.approve("a", asked[0].approval_id, seen_sha256=asked[0].subject_sha256)
            assert await handle.result() == "refunded 10"
        ```
    """

    code = "approval_mismatch"


class ApprovalSpentError(ApprovalError):
    """The grant was used already, by another operation.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.effect(idempotent=True, repeats=True)
        async def refund(amount: int) -> str:
            return f"refunded {amount}"

        @outlast.workflow
        async def greedy() -> str:
            await outlast.approval("10?", covers=[refund(10)], role="boss", expires_in=timedelta(hours=1))
            await refund(10)
            try:
                return await refund(10)
            except outlast.ApprovalSpentError:
                return "one yes is one refund"

        async with outlast.open("memory://") as app:
            handle = await app.start(greedy(), id="a")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            await app.approvals.approve("a", asked[0].approval_id, seen_sha256=asked[0].subject_sha256)
            assert await handle.result() == "one yes is one refund"
        ```
    """

    code = "approval_spent"


class ApprovalUnauthorisedError(ApprovalError):
    """Who said yes does not hold the role any more, or who started the run may not act.

    It is asked when the effect is about to begin, and again before each later attempt.

    Args:
        who: The person.
        role: What they would have to hold.

    Example:
        ```python
        import outlast

        error = outlast.ApprovalUnauthorisedError("ann is no treasurer any more", who="ann", role="treasurer")
        assert (error.code, error.who, error.role) == ("approval_unauthorised", "ann", "treasurer")
        ```
    """

    code = "approval_unauthorised"

    def __init__(self, message: str, *, who: str = "", role: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.who = who
        self.role = role


class ApprovalPreconditionError(ApprovalError):
    """What the yes rests on is not so any more, or nobody could find out.

    Args:
        name: Of the precondition.
        was: JSON of what it was when the request was made, cut to 500 characters; so is the other.
        now: JSON of what it is; empty where nobody could find out.

    Example:
        ```python
        import outlast

        error = outlast.ApprovalPreconditionError("the branch has moved", name="head", was='"a1"', now='"b2"')
        assert (error.code, error.name, error.was, error.now) == ("approval_precondition", "head", '"a1"', '"b2"')
        ```
    """

    code = "approval_precondition"

    def __init__(
        self, message: str, *, name: str = "", was: str = "", now: str = "", **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.name = name
        self.was = was
        self.now = now


class DecisionRefusedError(ApprovalError):
    """A decision was not accepted, and decides nothing: late, already decided, for another hash, or by somebody who may not say it.

    Args:
        reason: Of the request: `unknown`, `ambiguous`, `decided`, `edited`, `withdrawn`, `expired`, `mismatch`. Of who decides: `role`,
            `self`, `voted`, `stale`. Of what is said: `uneditable`, `unfit`.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def ask() -> str:
            return (await outlast.approval("ship?", role="boss", expires_in=timedelta(hours=1))).by

        async with outlast.open("memory://") as app:
            await app.start(ask(), id="a")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            try:
                await app.approvals.approve("a", asked[0].approval_id, seen_sha256="of something else")
            except outlast.DecisionRefusedError as error:
                assert error.reason == "mismatch"
        ```
    """

    code = "decision_refused"

    def __init__(self, message: str, *, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.reason = reason


class NotAuthorisedError(OutlastError):
    """Whoever acts may not do this. It does not say whether there is such a run.

    Args:
        who: Who acts.
        verb: What they may not do, as `start`; empty where a role is asked.
        role: Which role they do not hold; empty where a verb is asked.
        resource: The workflow; empty where it concerns all, or is not to be told.

    Example:
        ```python
        import outlast

        async with outlast.connect("sqlite:///agent.db", create=True) as client:
            await client.roles.grant("ann", "treasurer")  # from now on nobody holds a role just so
        async with outlast.connect("sqlite:///agent.db", principal="eve") as client:
            try:
                await client.roles.grant("eve", "treasurer")
            except outlast.NotAuthorisedError as error:
                assert (error.who, error.verb) == ("eve", "admin")
        ```
    """

    code = "not_authorised"

    def __init__(
        self,
        message: str,
        *,
        who: str = "",
        verb: str = "",
        role: str = "",
        resource: str = "",
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.who = who
        self.verb = verb
        self.role = role
        self.resource = resource


class PermissionDeniedError(OutlastError):
    """The policy does not let the effect begin; nothing of it has happened.

    Args:
        reason: What denied it: `rule`, `hook`, `callback`, `unlisted` (the agent does not have it), `plan` or `dont_ask` (the mode), or
            `error`: something failed that should have judged; or `definition_changed`: the foreign tool is another one than the one that was
            looked at, and nobody can be asked any more; `definition_new`: nobody has looked at it.
        rule: The rule, hook or callback that denied it; empty where none has a part in it.
        policy_version: Of the policy that decided.

    Example:
        ```python
        import outlast
        from outlast.policy import Policy, Rule

        @outlast.effect(idempotent=True)
        async def delete_all() -> str:
            return "gone"

        @outlast.workflow
        async def tidy() -> str:
            try:
                return await delete_all()
            except outlast.PermissionDeniedError as no:
                return f"{no.reason}: {no.rule}"

        policy = Policy(rules=(Rule("deny", "delete_*", reason="nothing is deleted"),))
        async with outlast.open("memory://", policy=policy) as app:
            assert await app.run(tidy(), id="t") == "rule: deny 1"
        ```
    """

    code = "permission_denied"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        rule: str = "",
        policy_version: str = "",
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.reason = reason
        self.rule = rule
        self.policy_version = policy_version


class EffectsStoppedError(OutlastError):
    """An operator has stopped such effects: those of a tenant, a tool or an agent, or all of them.

    Args:
        what: What is stopped.
        by: Who stopped it.
        reason: Why, in their words.

    Example:
        ```python
        import outlast

        error = outlast.EffectsStoppedError("tool pay is stopped: paid twice", what="tool pay", by="ann", reason="paid twice")
        assert (error.code, error.by, error.reason) == ("effects_stopped", "ann", "paid twice")
        ```
    """

    code = "effects_stopped"

    def __init__(
        self, message: str, *, what: str = "", by: str = "", reason: str = "", **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.what = what
        self.by = by
        self.reason = reason


class RequestStateError(OutlastError):
    """What an operator says of a request under an idempotency key was not accepted: it is not in doubt, or not as it was seen.

    Args:
        reason: `unknown`, `mismatch`, `running`, `done` or `freed`.

    Example:
        ```python
        from datetime import timedelta

        import outlast

        async with outlast.open("memory://") as app:
            begun = await app.requests.begin(
                "POST /orders ann 4711", fingerprint="f", token="t", hold=timedelta(minutes=1), keep=timedelta(days=1)
            )
            try:
                await app.requests.resolve(
                    begun.request_id, answer=None, reason="not in the books", seen_token=begun.token
                )
            except outlast.RequestStateError as error:
                assert error.reason == "running"  # whoever began it still works on it
        ```
    """

    code = "request_state"

    def __init__(self, message: str, *, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.reason = reason


class ReceiverBusyError(OutlastError):
    """A receiver asks to be called again later than one attempt may wait. The next attempt of the step or effect waits that long.

    Args:
        status: Of the receiver's answer.
        retry_after: Seconds to wait at least.

    Example:
        ```python
        import httpx
        import outlast
        from outlast.http.transport import IdempotentTransport

        answers = [httpx.Response(429, headers={"Retry-After": "3600"})]
        double = httpx.MockTransport(lambda request: answers.pop())

        @outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
        async def look() -> int:
            async with httpx.AsyncClient(transport=IdempotentTransport(double)) as client:
                return (await client.get("https://shop.example/stock")).status_code

        @outlast.workflow
        async def stock() -> int:
            return await look()

        async with outlast.open("memory://") as app:
            try:
                await app.run(stock(), id="stock-1")
            except outlast.OutlastError as error:
                assert error.__cause__.retry_after == 3600
        ```
    """

    code = "receiver_busy"

    def __init__(
        self, message: str, *, status: int = 0, retry_after: float = 0.0, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.status = status
        self.retry_after = retry_after


class FinalAnswerError(OutlastError):
    """A receiver has answered a key for good, and with no result: the first request failed, or its answer was not kept.

    No attempt follows: it would get the same answer, or, when the receiver has forgotten the key, be carried out a second time. What the first
    request did until it failed stands, so the effect may have happened.

    Args:
        status: Of the receiver's answer.
        detail: What it says.

    Example:
        ```python
        import httpx
        import outlast
        from outlast.http.transport import IdempotentTransport

        kept = httpx.Response(500, headers={"Idempotent-Replayed": "true"}, text="the printer is out of paper")
        double = httpx.MockTransport(lambda request: kept)

        @outlast.effect(idempotent=True)
        async def pay(amount: int) -> None:
            async with httpx.AsyncClient(transport=IdempotentTransport(double)) as client:
                await client.post("https://bank.example/payments", json={"amount": amount})

        @outlast.workflow
        async def settle(amount: int) -> None:
            await pay(amount)

        async with outlast.open("memory://") as app:
            try:
                await app.run(settle(10), id="settle-1")
            except outlast.OutlastError as error:
                assert error.__cause__.detail == "the printer is out of paper"
        ```
    """

    code = "final_answer"

    def __init__(self, message: str, *, status: int = 0, detail: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.status = status
        self.detail = detail


class ReceiverInDoubtError(OutlastError):
    """A receiver does not know whether it carried a request out, and repeats nothing under its key until somebody there has said.

    The attempts of the effect go on as its retry policy says: one that comes when it was said learns what happened.

    Args:
        status: Of the receiver's answer.
        detail: What it says.
        request_id: What whoever operates the receiver finds the request by.

    Example:
        ```python
        import httpx
        import outlast
        from outlast.http.transport import IdempotentTransport

        problem = {"type": "urn:outlast:idempotency:in-doubt", "code": "in_doubt", "request_id": "2c26b46b"}
        media_type = {"Content-Type": "application/problem+json"}
        double = httpx.MockTransport(lambda request: httpx.Response(409, headers=media_type, json=problem))

        @outlast.effect(idempotent=True, retry=outlast.RetryPolicy(maximum_attempts=1))
        async def pay(amount: int) -> None:
            async with httpx.AsyncClient(transport=IdempotentTransport(double)) as client:
                await client.post("https://bank.example/payments", json={"amount": amount})

        @outlast.workflow
        async def settle(amount: int) -> None:
            await pay(amount)

        async with outlast.open("memory://") as app:
            try:
                await app.run(settle(10), id="settle-1")
            except outlast.OutlastError as error:
                assert error.__cause__.request_id == "2c26b46b"
        ```
    """

    code = "receiver_in_doubt"

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        detail: str = "",
        request_id: str = "",
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.status = status
        self.detail = detail
        self.request_id = request_id


class ReceiptError(ApprovalError):
    """No receipt can be drawn, or what is read is none.

    Args:
        reason: `unknown` request, `ambiguous` which one, or `form` of what is read.

    Example:
        ```python
        import outlast
        from outlast.errors import ReceiptError

        @outlast.workflow
        async def greet() -> str:
            return "hello"

        async with outlast.open("memory://") as app:
            await app.run(greet(), id="g")
            try:
                await app.approvals.receipt("g")
            except ReceiptError as error:
                assert error.reason == "unknown"
        ```
    """

    code = "receipt"

    def __init__(self, message: str, *, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.reason = reason


class SignatureError(OutlastError):
    """A signed document is not what it is taken for.

    Args:
        reason: The first of `format`, `version`, `key`, `signature`, `purpose`, `tenant`, `expired` that is wrong.

    Example:
        ```python
        from datetime import UTC, datetime

        from outlast.crypto import SigningKey, sign, verify
        from outlast.errors import SignatureError

        key, now = SigningKey.generate(), datetime(2026, 1, 31, tzinfo=UTC)
        text = sign(b'{"amount":5}', "invoice", key=key, at=now)
        try:
            verify(text.replace(b"5", b"6"), "invoice", key=key.public, now=now)
        except SignatureError as error:
            assert error.reason == "signature"
        ```
    """

    code = "signature"

    def __init__(self, message: str, *, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.reason = reason


class SigningKeyError(OutlastError):
    """A key cannot be read, written or used.

    Example:
        ```python
        from outlast.crypto import VerifyingKey
        from outlast.errors import SigningKeyError

        try:
            VerifyingKey.from_pem("my key")
        except SigningKeyError as error:
            assert "BEGIN PUBLIC KEY" in error.hint
        ```
    """

    code = "signing_key"


class MissingExtraError(OutlastError):
    """A package that an optional part of Outlast needs is not installed; the hint says what to install."""

    code = "missing_extra"


class StoreError(OutlastError):
    """Where the work is kept cannot be used.

    Example:
        ```python
        import outlast

        try:
            async with outlast.connect("sqlite:///mistyped.db"):
                pass
        except outlast.StoreError as error:
            assert error.code == "store_unavailable"
        ```
    """

    code = "store"


class StoreUnavailableError(StoreError):
    """The store cannot be opened, read or written now; nothing was lost.

    Example:
        ```python
        import outlast

        try:
            async with outlast.connect("sqlite:///mistyped.db"):  # create=True, or outlast.open(), makes one
                pass
        except outlast.StoreUnavailableError as error:
            assert error.hint
        ```
    """

    code = "store_unavailable"


class StoreVersionError(StoreError):
    """The store was written by a newer version of Outlast."""

    code = "store_version"


class StoreCorruptError(StoreError):
    """What was read is not what was written."""

    code = "store_corrupt"


class DecodeError(StoreError):
    """Stored data does not fit the type that the code names.

    Args:
        path: Where in the value, as `$.items[3].price`.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def old(number: int) -> str:
            return str(number)

        @outlast.workflow(name="old")
        async def new(number: int) -> int:  # the result has another type now
            return number

        async with outlast.open("sqlite:///a.db", workflows=[old]) as app:
            await app.run(old(7), id="x")
            try:
                await app.handle("x", new).result()
            except outlast.DecodeError as error:
                assert error.path == "$"
        ```
    """

    code = "decode"

    def __init__(self, message: str, *, path: str = "$", **where: Any) -> None:
        super().__init__(message, **where)
        self.path = path


class NoWorkerWarning(UserWarning):
    """A run waits, and no live worker could run it.

    Example:
        ```python
        import warnings
        import outlast

        # A program that must not wait for ever for a worker that nobody started turns the warning into an error.
        warnings.simplefilter("error", outlast.NoWorkerWarning)
        ```
    """


class RunHeldWarning(UserWarning):
    """Somebody waits for a run that is paused or blocked: it stands until a person acts.

    Example:
        ```python
        import warnings
        import outlast

        # A program that must not wait for a person turns the warning into an error.
        warnings.simplefilter("error", outlast.RunHeldWarning)
        ```
    """


class NobodyHoldsRoleWarning(UserWarning):
    """A person is asked, and nobody holds the role that may answer.

    Example:
        ```python
        import warnings
        import outlast

        # A program that must not ask nobody turns the warning into an error.
        warnings.simplefilter("error", outlast.NobodyHoldsRoleWarning)
        ```
    """


class KeyExposedWarning(UserWarning):
    """Others can read the file of a private key, so that anybody may have signed with it."""
