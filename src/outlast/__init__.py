"""Outlast: durable execution for AI agents. No lost work, no doubled effects, approvals that mean what they say."""

from outlast.app import App, connect, open
from outlast.client import ApprovalView, Client, Explanation, RunHandle, RunStatus, Sticky
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    ApprovalDeniedError,
    ApprovalError,
    ApprovalExpiredError,
    ApprovalMismatchError,
    ApprovalPreconditionError,
    ApprovalSpentError,
    ApprovalUnauthorisedError,
    DecisionRefusedError,
    DecodeError,
    DefinitionError,
    EffectCompensatedError,
    EffectOutsideWorkflowError,
    EffectsStoppedError,
    EncodeError,
    ForbiddenInWorkflowError,
    ForkedEffectError,
    InboxFullError,
    NobodyHoldsRoleWarning,
    NonDeterminismError,
    NotAuthorisedError,
    NoWorkerWarning,
    OpenCompensationsError,
    OutlastError,
    OutsideWorkflowError,
    PermissionDeniedError,
    QueryError,
    RepeatedEffectError,
    RequestStateError,
    RunCancelledError,
    RunConflictError,
    RunHeldWarning,
    RunNotFoundError,
    RunTerminatedError,
    SagaClosedError,
    SamePurposeError,
    StepFailedError,
    StoreError,
    StoreUnavailableError,
    UpdateFailedError,
    UpdateRejectedError,
    WorkflowFailedError,
)
from outlast.journal.asking import Rung
from outlast.notify.setting import Notify
from outlast.policy.authority import Authority, Principal
from outlast.policy.binding import RoleBinding
from outlast.portal import Portal
from outlast.replay.context import RunInfo
from outlast.replay.ledger import Grant
from outlast.worker.growth import HistoryLimits
from outlast.worker.parked import Parked
from outlast.workflows.agent import agent
from outlast.workflows.approval import approval, ask
from outlast.workflows.attempt import Attempt, attempt, idempotency_key
from outlast.workflows.call import Call
from outlast.workflows.carry import environment
from outlast.workflows.child import (
    ChildHandle,
    ExternalRun,
    run_child,
    run_handle,
    start_child,
)
from outlast.workflows.completion import complete_later, completion_token
from outlast.workflows.decorator import effect, step, workflow
from outlast.workflows.growth import continue_as_new, deprecate_patch, patched
from outlast.workflows.handler import on_signal, on_update
from outlast.workflows.heartbeat import heartbeat, heartbeat_details
from outlast.workflows.inside import (
    all_handlers_finished,
    info,
    now,
    publish,
    random,
    receive,
    sleep,
    uuid4,
    wait_condition,
)
from outlast.workflows.log import logger
from outlast.workflows.message import Signal, Update
from outlast.workflows.purpose import SameAs
from outlast.workflows.query import Query, on_query
from outlast.workflows.saga import Saga, saga, save_point
from outlast.workflows.terms import Approval

__all__ = [
    "App",
    "Applied",
    "Approval",
    "ApprovalDeniedError",
    "ApprovalError",
    "ApprovalExpiredError",
    "ApprovalMismatchError",
    "ApprovalPreconditionError",
    "ApprovalSpentError",
    "ApprovalUnauthorisedError",
    "ApprovalView",
    "Attempt",
    "Authority",
    "Call",
    "ChildHandle",
    "Client",
    "DecisionRefusedError",
    "DecodeError",
    "DefinitionError",
    "EffectCompensatedError",
    "EffectOutsideWorkflowError",
    "EffectsStoppedError",
    "EncodeError",
    "Explanation",
    "ExternalRun",
    "ForbiddenInWorkflowError",
    "ForkedEffectError",
    "Grant",
    "HistoryLimits",
    "InboxFullError",
    "NoWorkerWarning",
    "NobodyHoldsRoleWarning",
    "NonDeterminismError",
    "NotApplied",
    "NotAuthorisedError",
    "Notify",
    "OpenCompensationsError",
    "OutlastError",
    "OutsideWorkflowError",
    "Parked",
    "PermissionDeniedError",
    "Portal",
    "Principal",
    "Query",
    "QueryError",
    "RepeatedEffectError",
    "RequestStateError",
    "RetryPolicy",
    "RoleBinding",
    "RunCancelledError",
    "RunConflictError",
    "RunHandle",
    "RunHeldWarning",
    "RunInfo",
    "RunNotFoundError",
    "RunStatus",
    "RunTerminatedError",
    "Rung",
    "Saga",
    "SagaClosedError",
    "SameAs",
    "SamePurposeError",
    "Signal",
    "StepFailedError",
    "Sticky",
    "StoreError",
    "StoreUnavailableError",
    "Unknown",
    "Update",
    "UpdateFailedError",
    "UpdateRejectedError",
    "WorkflowFailedError",
    "agent",
    "all_handlers_finished",
    "approval",
    "ask",
    "attempt",
    "complete_later",
    "completion_token",
    "connect",
    "continue_as_new",
    "deprecate_patch",
    "effect",
    "environment",
    "heartbeat",
    "heartbeat_details",
    "idempotency_key",
    "info",
    "logger",
    "now",
    "on_query",
    "on_signal",
    "on_update",
    "open",
    "patched",
    "publish",
    "random",
    "receive",
    "run_child",
    "run_handle",
    "saga",
    "save_point",
    "sleep",
    "start_child",
    "step",
    "uuid4",
    "wait_condition",
    "workflow",
]
