"""Where a machine stands: what a worker could carry out, and what the workflow waits for, as plain data that can be compared.

Law: two machines to which the same turns were delivered stand the same, whatever was taken from either. Reading changes nothing.
"""

# It looks into the machine, which shows nobody else so much.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from outlast.journal.entry import Completed, ContinuedAsNew, OperationId
from outlast.journal.failure import Failure
from outlast.replay.asking import Asking
from outlast.replay.command import Abandon, Command, SendMessage, StartChild
from outlast.replay.machine import Machine, Outcome
from outlast.replay.operation import (
    ApprovalOperation,
    ChildOperation,
    EffectOperation,
    Operation,
    PublishOperation,
    SendOperation,
    StepOperation,
    TimerOperation,
    UpdateOperation,
    WatchOperation,
    name_of,
)

_MOST_FRAMES = 50
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")

Commands = dict[OperationId, Command]
"""The command that stands for each open operation, whoever has taken it."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one machine stands.

    Args:
        outcome: What the body came to; None while it runs. Failures without their stacks.
        closed: Whether the end is recorded.
        operations: The open ones, oldest first: kind, name, what was asked, and the whole command, if one stands.
        given_up: Operations that the workflow waits for no longer, whose outcome never came.
        receivers: How many wait for each signal.
        unread: Ids of the messages of each name that nobody took.
        conditions: How many are waited for.
        draws: How many generators each task took.
        tasks: Where each unfinished task waits, outermost frame first, as `function:line`.
        handlers: Names of the signals and of the updates that have a handler.
        patches: What the code was told at each patch.
    """

    outcome: Any
    closed: bool
    operations: dict[OperationId, dict[str, Any]]
    given_up: list[OperationId]
    receivers: dict[str, int]
    unread: dict[str, list[str]]
    conditions: int
    draws: dict[str, int]
    tasks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    handlers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    patches: dict[str, bool] = field(default_factory=dict[str, bool])


class Difference(NamedTuple):
    """One thing in which two stands differ.

    Args:
        what: The operation, as `step work at r:3`, or another part of the stand.
        one: Its side, as JSON, or a word.
        other: The other's.
    """

    what: str
    one: str
    other: str


def note_commands(commands: Commands, machine: Machine) -> Commands:
    """Bring `commands` up to date after a turn; nothing is taken. Return it."""
    for operation, command in machine._agenda._commands.items():
        if not isinstance(command, Abandon):
            commands[operation] = command
    in_doubt = machine.in_doubt
    for operation in list(commands):
        if operation in in_doubt or not machine.is_open(operation):
            del commands[operation]
    return commands


def stand_of(machine: Machine, commands: Mapping[OperationId, Command]) -> Stand:
    """Return where a machine stands.

    Args:
        commands: As `note_commands` left them after the last turn.
    """
    mailbox = machine.mailbox
    return Stand(
        outcome=_outcome(machine.outcome),
        closed=machine.closed is not None,
        operations={
            operation: _operation(one, commands.get(operation))
            for operation, one in machine._agenda._open.items()
        },
        given_up=sorted(machine._agenda._abandoned),
        receivers={name: len(waiting) for name, waiting in mailbox._waiting.items()},
        unread={name: [one.message_id for _, one in mail] for name, mail in mailbox._mail.items()},
        conditions=len(machine._conditions),
        draws=dict(machine._draws),
        tasks={task.path: _frames(task.get_coro()) for task in machine._loop.unfinished_tasks()},
        handlers={
            kind: names
            for kind, names in zip(("signals", "updates"), machine.handled, strict=True)
            if names
        },
        patches=dict(machine.patches.answers),
    )


def differences(one: Stand, other: Stand) -> list[Difference]:
    """Return in what two stands differ, what matters most first; nothing when they are the same."""
    names = [part.name for part in fields(Stand)]
    mine = {name: getattr(one, name) for name in names}
    return differences_of(mine, {name: getattr(other, name) for name in names})


def differences_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Return in what two stands differ, each given as its parts by name; a part that is left out is empty."""
    found: list[Difference] = []
    for part in fields(Stand):
        mine, theirs = one.get(part.name), other.get(part.name)
        if part.name == "operations":
            found += _in_operations(mine or {}, theirs or {})
        elif mine != theirs:
            found.append(Difference(part.name.replace("_", " "), _text(mine), _text(theirs)))
    return found


def _in_operations(mine: dict[Any, Any], theirs: dict[Any, Any]) -> list[Difference]:
    found: list[Difference] = []
    for operation in [*mine, *(one for one in theirs if one not in mine)]:
        one, other = mine.get(operation), theirs.get(operation)
        if one != other:
            told: dict[str, Any] = one or other or {}
            what = f"{told['kind']} {told['name']}".strip() + f" at {operation}"
            found.append(Difference(what, _only(one, other), _only(other, one)))
    if not found and list(mine) != list(theirs):
        orders = [", ".join(mine), ", ".join(theirs)]
        found.append(Difference("the order of the operations", *orders))
    return found


def _only(one: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    """Return what of one operation is to be shown: all of it, or the fields in which the other side has it differently."""
    if one is None:
        return "nothing"
    if other is None:
        return _text(one)
    differing = {
        name: value for name, value in one.items() if name not in other or other[name] != value
    }
    command = differing.get("command")
    if isinstance(command, dict) and len(differing) > 1:
        del differing["command"]  # it repeats what was asked
    return _text(differing)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# One part each


def _outcome(outcome: Outcome | None) -> Any:
    if outcome is None:
        return None
    word = type(outcome).__name__.lower()
    if isinstance(outcome, Completed):
        return {word: bytes(outcome.value).decode()}
    if isinstance(outcome, ContinuedAsNew):
        return {word: {"name": outcome.name, "arguments": bytes(outcome.arguments).decode()}}
    return {word: _failure(outcome.failure)}


def _failure(failure: Failure) -> Any:
    """Return a failure without its stacks, which name the frames of whoever ran the code, and without addresses."""
    return {
        "type": failure.type,
        "message": _ADDRESS.sub("0x…", failure.message),
        "notes": [_ADDRESS.sub("0x…", note) for note in failure.notes],
        "cause": None if failure.cause is None else _failure(failure.cause),
        "members": [_failure(one) for one in failure.members],
    }


def _operation(operation: Operation, command: Command | None) -> dict[str, Any]:
    kind = type(operation).__name__.removesuffix("Operation").lower()
    told: dict[str, Any] = {"kind": kind, "name": name_of(operation)}
    match operation:
        case StepOperation():
            told["arguments"] = operation.request.arguments.decode()
        case EffectOperation():
            told |= _effect(operation)
        case ApprovalOperation():
            told["approval_id"] = operation.approval_id
            told["subject_sha256"] = operation.request.subject_sha256
            told["asked"] = operation.asking.current is not None
            told |= _asking(operation.asking)
        case UpdateOperation():
            told["message_id"] = operation.message.message_id
            told["answered"] = operation.answer is not None
        case ChildOperation():
            told |= _child(operation)
        case SendOperation():
            told |= {"to": operation.request.run_id, "sent": operation.is_requested}
        case WatchOperation():
            told |= {"run_id": operation.request.run_id, "watched": operation.is_requested}
        case TimerOperation() | PublishOperation():
            pass
    told["command"] = None if command is None else _command(command)
    return told


def _command(command: Command) -> dict[str, Any]:
    """Return a command; a time from which nothing counts is left out, as from where none was known yet.

    So is when the outcomes of a child are written: a declaration that may change, and that no replay repeats.
    """
    told: dict[str, Any] = {"do": type(command).__name__, **_plain(command)}
    for said in (told, told.get("intent", {})):
        if said.get("agent") == "":
            # In nobody's name, as before there were agents.
            del said["agent"]
    told.pop("durability", None)
    if isinstance(command, StartChild | SendMessage):
        # They tell equal requests apart, and say nothing of what is done.
        told = {name: value for name, value in told.items() if name not in ("own_id", "number")}
    if told.get("scheduled_at", "") is None:
        del told["scheduled_at"]
    return told


def _effect(effect: EffectOperation) -> dict[str, Any]:
    return {
        "arguments": effect.request.arguments.decode(),
        "payload_sha256": effect.request.payload_sha256,
        "action_sha256": effect.request.action_sha256,
        "number": effect.number,
        "grant": _plain(effect.grant),
        "key": effect.intent.key if effect.intent else "",
        "in_doubt": effect.in_doubt,
        "callers": len(effect.futures()),
        "second": effect.second,
        "approval_id": effect.asking.current.approval_id if effect.asking.current else "",
        **_asking(effect.asking),
    }


def _asking(asking: Asking) -> dict[str, Any]:
    """Return what else there is to say of what an operation asks; nothing where one person decides on what was asked first."""
    told = {
        "requests": asking.count if asking.count > 1 else 0,
        "votes": [_plain(one) for one in asking.votes],
        "edited_by": asking.edit.by if asking.edit else "",
        "edits": {str(place): edit.decode() for place, edit in asking.edits.items()},
        "granted": list(asking.granted),
        "effective": asking.effective.decode(),
    }
    return {name: value for name, value in told.items() if value}


def _child(child: ChildOperation) -> dict[str, Any]:
    return {
        "run_id": child.run_id,
        "arguments": child.request.arguments.decode(),
        "parent_close": child.request.parent_close,
        "requested": child.is_requested,
        "started": child.is_started,
        "waiting": [len(child.starts), len(child.ends)],
        "cancelled": child.is_cancelled,
    }


def _plain(value: Any) -> Any:
    """Return a value of a command as JSON has it; bytes are JSON text already."""
    match value:
        case Failure():
            return _failure(value)
        case Struct():
            found = ((name, getattr(value, name)) for name in value.__struct_fields__)
            return {name: _plain(one) for name, one in found if one is not UNSET}
        case bytes() | Raw():
            return bytes(value).decode()
        case tuple():
            return [_plain(one) for one in cast("tuple[Any, ...]", value)]
        case datetime() | timedelta():
            return msgspec.to_builtins(value)
        case _:
            return value


def _frames(code: Any) -> list[str]:
    """Return where a coroutine waits: the functions that wait for each other, outermost first."""
    places: list[str] = []
    while code is not None and len(places) < _MOST_FRAMES:
        frame = getattr(code, "cr_frame", None) or getattr(code, "gi_frame", None)
        if frame is not None:
            places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        code = getattr(code, "cr_await", None) or getattr(code, "gi_yieldfrom", None)
    return places
