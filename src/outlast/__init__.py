"""Outlast: durable execution for AI agents. No lost work, no doubled effects, approvals that mean what they say."""

from outlast.app import App, connect, open
from outlast.client import Client, RunHandle, RunStatus
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    ApprovalDeniedError,
    ApprovalError,
    ApprovalExpiredError,
    ApprovalMismatchError,
    ApprovalSpentError,
    DecisionRefusedError,
    DecodeError,
    DefinitionError,
    EffectOutsideWorkflowError,
    EncodeError,
    ForbiddenInWorkflowError,
    NonDeterminismError,
    NoWorkerWarning,
    OutlastError,
    OutsideWorkflowError,
    RepeatedEffectError,
    RunCancelledError,
    RunConflictError,
    RunNotFoundError,
    RunTerminatedError,
    StepFailedError,
    StoreError,
    StoreUnavailableError,
    WorkflowFailedError,
)
from outlast.replay.context import RunInfo
from outlast.replay.ledger import Grant
from outlast.worker.growth import HistoryLimits
from outlast.workflows.attempt import Attempt, attempt, idempotency_key
from outlast.workflows.call import Call
from outlast.workflows.decorator import effect, step, workflow
from outlast.workflows.growth import continue_as_new, deprecate_patch, patched
from outlast.workflows.inside import (
    approval,
    info,
    now,
    random,
    receive,
    sleep,
    uuid4,
    wait_condition,
)
from outlast.workflows.message import Signal

__all__ = [
    "App",
    "Applied",
    "ApprovalDeniedError",
    "ApprovalError",
    "ApprovalExpiredError",
    "ApprovalMismatchError",
    "ApprovalSpentError",
    "Attempt",
    "Call",
    "Client",
    "DecisionRefusedError",
    "DecodeError",
    "DefinitionError",
    "EffectOutsideWorkflowError",
    "EncodeError",
    "ForbiddenInWorkflowError",
    "Grant",
    "HistoryLimits",
    "NoWorkerWarning",
    "NonDeterminismError",
    "NotApplied",
    "OutlastError",
    "OutsideWorkflowError",
    "RepeatedEffectError",
    "RetryPolicy",
    "RunCancelledError",
    "RunConflictError",
    "RunHandle",
    "RunInfo",
    "RunNotFoundError",
    "RunStatus",
    "RunTerminatedError",
    "Signal",
    "StepFailedError",
    "StoreError",
    "StoreUnavailableError",
    "Unknown",
    "WorkflowFailedError",
    "approval",
    "attempt",
    "connect",
    "continue_as_new",
    "deprecate_patch",
    "effect",
    "idempotency_key",
    "info",
    "now",
    "open",
    "patched",
    "random",
    "receive",
    "sleep",
    "step",
    "uuid4",
    "wait_condition",
    "workflow",
]
