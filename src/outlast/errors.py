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
│   └── EncodeError                   a value that cannot be stored; names the path in it
├── RunError                          what became of a run or of one of its operations
│   ├── StepFailedError               a step or effect failed with a type that is not rebuilt
│   ├── WorkflowFailedError           the run ended as `failed`
│   ├── RunCancelledError             the run ended as `cancelled`
│   ├── RunTerminatedError            the run was ended by an operator
│   ├── RunBlockedError               the run waits for an operator
│   ├── RunNotFoundError              no run of that id in this tenant
│   └── RunConflictError              the id is taken by a run with other input
├── ApprovalError                     an approval that does not permit
│   ├── ApprovalDeniedError           a person said no
│   ├── ApprovalExpiredError          nobody decided, or the effect came too late
│   ├── ApprovalMismatchError         the action is not the one that was approved
│   ├── ApprovalSpentError            the grant was used already
│   └── DecisionRefusedError          a decision that the store did not accept
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
    """A decorator, signature or registration that cannot work; raised at import or at start."""

    code = "definition"


class ForbiddenInWorkflowError(AuthorError):
    """Workflow code asked for a clock, socket, thread or other thing that replay cannot repeat."""

    code = "forbidden_in_workflow"


class EffectOutsideWorkflowError(AuthorError):
    """An effect was called outside a workflow, or inside a step, where nothing would make it safe."""

    code = "effect_outside_workflow"


class OutsideWorkflowError(AuthorError):
    """Something that only a workflow can ask for was asked for elsewhere, as `outlast.now()` in a step."""

    code = "outside_workflow"


class NonDeterminismError(AuthorError):
    """Replay asked for something else than the journal holds.

    Args:
        position: Of the journal's entry that does not fit, from 0; None where it is not about one entry.
        recorded: What the journal holds there, in words.
        asked: What the code asks for instead.
    """

    code = "non_determinism"

    def __init__(
        self,
        message: str,
        *,
        position: int | None = None,
        recorded: str = "",
        asked: str = "",
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.position = position
        self.recorded = recorded
        self.asked = asked


class RepeatedEffectError(AuthorError):
    """An equal effect already succeeded in this run."""

    code = "repeated_effect"


class EncodeError(AuthorError):
    """A value cannot be stored.

    Args:
        path: Where in the value, as `$.items[3].price`.
    """

    code = "encode"

    def __init__(self, message: str, *, path: str = "$", **where: Any) -> None:
        super().__init__(message, **where)
        self.path = path


class RunError(OutlastError):
    """What became of a run or of one of its operations."""

    code = "run"


class StepFailedError(RunError):
    """A step or effect failed with an exception whose type is not rebuilt.

    Args:
        type_name: The name of the original type, as `httpx.ConnectError`.
        stack: The scrubbed stack of the original, as text.
    """

    code = "step_failed"

    def __init__(self, message: str, *, type_name: str = "", stack: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.type_name = type_name
        self.stack = stack


class WorkflowFailedError(RunError):
    """The run ended as `failed`; the cause is the workflow's exception, rebuilt as far as its type allows."""

    code = "workflow_failed"


class RunCancelledError(RunError):
    """The run ended as `cancelled`."""

    code = "run_cancelled"


class RunTerminatedError(RunError):
    """The run was ended by an operator without running its clean-up."""

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


class RunNotFoundError(RunError):
    """No run of that id exists in this tenant."""

    code = "run_not_found"


class RunConflictError(RunError):
    """The id is taken by a run of another workflow, with other input, or by a closed run that may not start again."""

    code = "run_conflict"


class ApprovalError(OutlastError):
    """An approval does not permit the action."""

    code = "approval"


class ApprovalDeniedError(ApprovalError):
    """A person said no.

    Args:
        by: Who.
        reason: Why, in their words.
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
    """

    code = "approval_expired"

    def __init__(self, message: str, *, stage: str = "decide", **where: Any) -> None:
        super().__init__(message, **where)
        self.stage = stage


class ApprovalMismatchError(ApprovalError):
    """The action is not the one that was approved."""

    code = "approval_mismatch"


class ApprovalSpentError(ApprovalError):
    """The grant was used already, by another operation."""

    code = "approval_spent"


class DecisionRefusedError(ApprovalError):
    """The store did not accept a decision: late, already decided, for another hash, or for an unknown request.

    Args:
        reason: `expired`, `decided`, `mismatch`, `unknown` or `withdrawn`.
    """

    code = "decision_refused"

    def __init__(self, message: str, *, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.reason = reason


class StoreError(OutlastError):
    """Where the work is kept cannot be used."""

    code = "store"


class StoreUnavailableError(StoreError):
    """The store cannot be opened, read or written now; nothing was lost."""

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
    """

    code = "decode"

    def __init__(self, message: str, *, path: str = "$", **where: Any) -> None:
        super().__init__(message, **where)
        self.path = path


class NoWorkerWarning(UserWarning):
    """A run waits, and no live worker could run it."""
