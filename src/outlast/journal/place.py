"""Where in the author's code a failure came from, read from what a journal keeps of it.

A stored stack names files without their folders, so the library's frames are told by file and function together.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.journal.entry import EffectFailed, EffectRefused, Entry, StepFailed
from outlast.journal.failure import Failure, leaves_of

_LIBRARY = {
    "call.py": ("Call.", "call_async", "plain"),
    "child.py": ("run_child", "start_child", "ChildHandle.", "ExternalRun.", "_ChildCall."),
    "client.py": ("Client.commit", "Client.run", "Client.start", "Client.store", "Client._"),
    "codec.py": ("TypeCodec.", "ArgumentCodec."),
    "condition.py": ("Conditions.", "_holds", "check_predicate"),
    "definition.py": ("Definition.", "Workflow.", "Step.", "Effect."),
    "executor.py": ("Executor.",),
    "handle.py": ("RunHandle.",),
    "home.py": ("Home.",),
    "inside.py": (
        "sleep",
        "receive",
        "wait_condition",
        "publish",
        "approval",
        "_cover",
        "_seconds",
    ),
    "handler.py": ("Handlers.", "_result_of", "on_signal", "on_update"),
    "growth.py": ("continue_as_new", "patched", "deprecate_patch"),
    "ledger.py": ("EffectLedger.",),
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
    "query.py": ("on_query", "Queries."),
    "queues.py": ("Queue.",),
    "refusal.py": ("refuse", "_refusal."),
    "roll.py": ("roll_over",),
    "taskgroups.py": ("TaskGroup.",),
    "tasks.py": ("sleep", "wait", "wait_for", "gather", "shield", "_wait", "_cancel_and_wait"),
    "timeouts.py": ("Timeout.",),
    "wait.py": ("wait_for", "_wait_for", "_wrap_future", "_run_coroutine_threadsafe"),
}
"""Files of Outlast and of asyncio, each with how the names of its functions begin."""


def place_of(failure: Failure) -> str:
    """Return the innermost frame of the author's code, as `agent.py:12 in plan`; empty where none is kept."""
    for frame in reversed(failure.stack.splitlines()):
        file, _, rest = frame.partition(":")
        function = rest.partition(" in ")[2]
        if function and not function.startswith(_LIBRARY.get(file, ())):
            return frame
    places = [place_of(member) for member in failure.members]
    return next((place for place in places if place), "")


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
