"""Where in the author's code a failure came from, read from what a journal keeps of it.

A stored stack names files without their folders, so the library's frames are told by file and function together.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.journal.entry import EffectFailed, EffectRefused, Entry, StepFailed
from outlast.journal.failure import Failure, leaves_of

_LIBRARY = {
    "agenda.py": ("Agenda.",),
    "approval.py": (
        "approval",
        "ask",
        "_look",
        "_effect_of",
        "_undone_by",
        "_cover",
        "_remade",
        "_schema",
        "Approvals.",
    ),
    "attempt.py": ("attempt", "idempotency_key"),
    "call.py": ("Call.", "call_async", "plain"),
    "child.py": (
        "run_child",
        "run_handle",
        "start_child",
        "ChildHandle.",
        "ExternalRun.",
        "_ChildCall.",
        "_identify",
        "_request",
    ),
    "client.py": (
        "Client.commit",
        "Client.commit_all",
        "Client.run",
        "Client.start",
        "Client.store",
        "Client._",
    ),
    "codec.py": ("TypeCodec.", "ArgumentCodec."),
    "completion.py": ("completion_token", "complete_later", "_step"),
    "condition.py": ("Conditions.", "_holds", "check_predicate"),
    "definition.py": ("Definition.", "Workflow.", "Step.", "Effect."),
    "effects.py": ("Effects.", "_check_agent", "_remake_of"),
    "executor.py": ("Executor.",),
    "handle.py": ("RunHandle.",),
    "heartbeat.py": ("heartbeat", "heartbeat_details", "_beats"),
    "home.py": ("Home.",),
    "inside.py": (
        "all_handlers_finished",
        "info",
        "now",
        "publish",
        "random",
        "receive",
        "sleep",
        "uuid4",
        "wait_condition",
        "_seconds",
    ),
    "handler.py": ("Handlers.", "_result_of", "on_signal", "on_update"),
    "growth.py": ("continue_as_new", "patched", "deprecate_patch"),
    "key.py": ("check_name", "check_run_id", "check_tenant", "_check_text", "_encodable"),
    "ledger.py": ("EffectLedger.", "Grant."),
    "locks.py": (
        "Barrier.",
        "Condition.",
        "Event.",
        "Lock.",
        "Semaphore.",
        "_ContextManagerMixin.",
    ),
    "loop.py": ("WorkflowLoop.",),
    "machine.py": ("Machine.",),
    "mailbox.py": ("Mailbox.",),
    "message.py": ("Signal.", "Update.", "encoded"),
    "other_run.py": ("OtherRuns.", "_StartedChild."),
    "patch.py": ("Patches.",),
    "publication.py": ("Publications.",),
    "purpose.py": ("Purposes.", "Seconds.", "SameAs."),
    "query.py": ("on_query", "Queries.", "Query."),
    "queues.py": ("Queue.",),
    "refusal.py": ("refuse", "_refusal."),
    "roll.py": ("roll_over", "RollOver."),
    "saga.py": ("saga", "save_point", "Saga.", "Sagas.", "SavePoint.", "Try."),
    "scope.py": ("open_saga", "still_open"),
    "taskgroups.py": ("TaskGroup.",),
    "tasks.py": (
        "sleep",
        "wait",
        "wait_for",
        "gather",
        "shield",
        "_wait",
        "_wait_for_one",
        "_cancel_and_wait",
    ),
    "terms.py": ("Approval.", "checked", "listed", "check_steps", "_bad", "_check_time"),
    "timeouts.py": ("Timeout.",),
    "wait.py": ("wait_for", "_wait_for", "_wrap_future", "_run_coroutine_threadsafe"),
}
"""Files of Outlast and of asyncio, each with functions, and with what the names of its methods begin with. `agent()` is missing: a file of
that name is the author's."""


def place_of(failure: Failure) -> str:
    """Return the innermost frame of the author's code, as `agent.py:12 in plan`; empty where none is kept."""
    for frame in reversed(failure.stack.splitlines()):
        file, _, rest = frame.partition(":")
        function = rest.partition(" in ")[2]
        if function and not _is_librarys(file, function):
            return frame
    places = [place_of(member) for member in failure.members]
    return next((place for place in places if place), "")


def _is_librarys(file: str, function: str) -> bool:
    names = (function, function.partition(".")[0])
    return any(
        function.startswith(one) if one[-1] in "._" else one in names
        for one in _LIBRARY.get(file, ())
    )


def origin_of(failure: Failure, entries: Iterable[Entry]) -> str:
    """Return where the failure that ended a run was raised, as `at agent.py:12 in plan`; empty where nothing is known.

    In a step or effect, where one raised it, else in the workflow.

    Args:
        entries: The run's journal.
    """
    awaited = place_of(failure)
    for leaf in leaves_of(failure):
        for entry in entries:
            if not isinstance(entry, StepFailed | EffectFailed | EffectRefused):
                continue
            if (entry.failure.type, entry.failure.message) == (leaf.type, leaf.message):
                raised = place_of(entry.failure)
                at = f"at {raised}, " if raised else ""
                where = f"{at}by {entry.name} ({entry.operation})"
                return f"{where}, awaited at {awaited}" if awaited else where
    return f"at {awaited}" if awaited else ""
