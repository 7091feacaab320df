"""The public names, and what every field that is stored may show."""

from __future__ import annotations

import importlib
import inspect
import typing
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

import outlast
import outlast.crypto
import outlast.http
import outlast.notify
import outlast.policy
import outlast.testing
from outlast.journal.entry import PAYLOAD, PLAIN

PUBLIC = [
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
"""A name is added here on purpose, typed and documented; one that goes breaks its users."""

TESTING = [
    "BodyCall",
    "CrashPoint",
    "CrashPointError",
    "Faults",
    "FaultyStore",
    "Golden",
    "InvariantViolatedError",
    "Life",
    "Process",
    "Receiver",
    "RunBlockedError",
    "SeededRandom",
    "SimulatedClock",
    "SimulatedLoop",
    "SimulatedThreads",
    "SimulatedWorker",
    "Simulation",
    "SimulationStuckError",
    "Trial",
    "WorkerOptions",
    "Workload",
    "always_replay",
    "approve_everything",
    "attempt",
    "crashed",
    "double",
    "every_crash",
    "record",
    "replay_run",
    "undisturbed",
]
"""Of `outlast.testing`; the same holds for them."""

HTTP = [
    "Answer",
    "DoubtfulRequest",
    "GuardedRequest",
    "Idempotent",
    "IdempotencyMiddleware",
    "IdempotencyPolicy",
    "KeyFormat",
    "PublishedPolicy",
    "Sender",
    "approvals",
    "fingerprint_of",
    "guarded",
    "health",
    "idempotent",
    "keeps_header",
    "keeps_status",
]
"""Of `outlast.http`."""

POLICY = [
    "Allow",
    "Allowed",
    "Annotations",
    "Ask",
    "Asked",
    "Denied",
    "Deny",
    "Finding",
    "ForeignTool",
    "Held",
    "Look",
    "Narrow",
    "Pin",
    "Pins",
    "Policy",
    "PolicyFile",
    "Predicate",
    "Rule",
    "Stop",
    "Stops",
    "ToolCall",
    "TrustedServers",
    "Window",
    "check",
    "decide",
    "definition_sha256",
    "explain",
    "policy_of",
    "strict",
    "toml_of",
]
"""Of `outlast.policy`."""

CRYPTO = ["SIGNING_KEY_VARIABLE", "Signed", "SigningKey", "VerifyingKey", "sign", "verify"]
"""Of `outlast.crypto`."""

NOTIFY = ["Channel", "Notifier", "Notify"]
"""Of `outlast.notify`."""

EACH = pytest.mark.parametrize(
    ("package", "names"),
    [
        (outlast, PUBLIC),
        (outlast.crypto, CRYPTO),
        (outlast.http, sorted(HTTP)),
        (outlast.notify, NOTIFY),
        (outlast.policy, POLICY),
        (outlast.testing, TESTING),
    ],
    ids=["outlast", "crypto", "http", "notify", "policy", "testing"],
)


@EACH
def test_public_names_are_exactly_these(package: ModuleType, names: list[str]) -> None:
    """Nothing becomes public, or stops being so, by accident."""
    assert sorted(package.__all__) == names
    assert sorted(names) == names


@EACH
def test_every_public_name_exists_and_is_documented(package: ModuleType, names: list[str]) -> None:
    """Each name of `__all__` is there, and what can carry a docstring has one of its own."""
    for name in names:
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
            assert text and not text.startswith(f"{name}("), (
                f"{package.__name__}.{name} has no docstring"
            )


@EACH
def test_nothing_else_is_public(package: ModuleType, names: list[str]) -> None:
    """The package holds no other name that looks public, but for its own modules."""
    others = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and name not in names and not isinstance(value, ModuleType)
    }
    assert not others


@EACH
def test_every_error_is_public_or_internal_on_purpose(
    package: ModuleType, names: list[str]
) -> None:
    """An exported error ends in `Error` (a warning in `Warning`), and derives from the one root."""
    for name in names:
        value = getattr(package, name)
        if inspect.isclass(value) and issubclass(value, Warning):
            assert name.endswith("Warning")
        elif inspect.isclass(value) and issubclass(value, BaseException):
            assert issubclass(value, outlast.OutlastError)
            assert name.endswith("Error")


# What a sealed store may show: the marks of `Annotated`.

ROWS = [
    "outlast.store.change",
    "outlast.store.notice",
    "outlast.store.protocol",
    "outlast.store.request",
    "outlast.store.sticky",
    "outlast.store.task",
]
ANSWERS = {
    # Told to the caller and never written, or made of rows that are marked themselves.
    "outlast.store.change": {
        "Applied",
        "Fenced",
        "Conflict",
        "Refused",
        "Unknown",
        "StampedMessage",
        "DueNotice",
    },
    "outlast.store.notice": set(),
    "outlast.store.protocol": {
        "ClaimedRun",
        "Claim",
        "RunImage",
        "LiveWorker",
        "GenerationRow",
        "DoubtRow",
    },
    "outlast.store.request": set(),
    "outlast.store.sticky": set(),
    "outlast.store.task": {"TaskClaim"},
}


def structs_of(module_name: str) -> list[type[msgspec.Struct]]:
    """The structs that a module defines."""
    module = importlib.import_module(module_name)
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module_name
    ]


def mark_of(hint: Any) -> object:
    """PLAIN, PAYLOAD, or None for a field that carries neither (or both)."""
    if get_origin(hint) is not Annotated:
        return None
    marks = [one for one in get_args(hint)[1:] if one in (PLAIN, PAYLOAD)]
    return marks[0] if len(marks) == 1 else None


def unmarked(struct: type[msgspec.Struct]) -> list[str]:
    """The fields of a struct that say neither."""
    hints = get_type_hints(struct, include_extras=True)
    return [name for name in struct.__struct_fields__ if mark_of(hints[name]) is None]


STORED = [
    pytest.param(struct, id=struct.__name__)
    for module_name in [
        "outlast.store.change",
        "outlast.store.request",
        "outlast.store.sticky",
        "outlast.store.task",
    ]
    for struct in structs_of(module_name)
    if struct.__name__ not in ANSWERS[module_name]
]


@pytest.mark.parametrize("struct", STORED)
def test_every_stored_field_says_whether_it_may_be_read(struct: type[msgspec.Struct]) -> None:
    """Each field of what is written is marked plain or payload, so that sealing is a wrapper and not a search."""
    assert unmarked(struct) == []


def test_the_journal_row_is_marked() -> None:
    """The row of an entry shows position, kind and name, and hides its body."""
    row = importlib.import_module("outlast.journal.entry").EntryRow
    assert unmarked(row) == []
    hints = get_type_hints(row, include_extras=True)
    assert [name for name in row.__struct_fields__ if mark_of(hints[name]) is PAYLOAD] == ["body"]


@pytest.mark.parametrize("module_name", ROWS)
def test_every_struct_of_the_store_is_a_stored_one_or_an_answer(module_name: str) -> None:
    """A new struct is either marked, or named as one that is only told to a caller."""
    left = {struct.__name__ for struct in structs_of(module_name) if unmarked(struct)}
    assert left == ANSWERS[module_name]


@pytest.mark.parametrize("struct", STORED)
def test_payloads_are_bytes_and_plain_fields_are_not_free_values(
    struct: type[msgspec.Struct],
) -> None:
    """A payload is bytes that a cipher can seal; bytes in the plain are digests only."""
    hints = get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        kind = get_args(hints[name])[0]
        if mark_of(hints[name]) is PAYLOAD:
            assert kind is bytes, f"{struct.__name__}.{name}"
        else:
            assert kind is not Any, f"{struct.__name__}.{name}"
            assert name == "digest" or bytes not in (kind, *typing.get_args(kind)), (
                f"{struct.__name__}.{name}"
            )


def test_a_field_without_a_mark_is_found() -> None:
    """The walk over the annotations sees a forgotten mark, and one that contradicts itself."""
    hints = {
        "marked": Annotated[str, PLAIN],
        "forgotten": str,
        "other": Annotated[str, "a note"],
        "both": Annotated[bytes, PLAIN, PAYLOAD],
    }
    row = msgspec.defstruct("Row", list(hints.items()))
    assert unmarked(row) == ["forgotten", "other", "both"]
