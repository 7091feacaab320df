"""What would become of a recorded run under the code of today: does it replay, where does it stop or fail, and what would help.

Nothing is carried out and nothing is written. A run that replays here is taken up by a worker with this code; what it asks for after
its last entry is not judged. Of a run that no worker has taken up yet, only the arguments are looked at.
"""

# It looks into the machine for the place of an entry that cannot be decoded.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outlast.errors import DecodeError, DefinitionError, NonDeterminismError
from outlast.journal.entry import Entry, Failed, StampedRow, Started
from outlast.journal.failure import tell
from outlast.journal.place import place_of
from outlast.replay.delivery import each_turn
from outlast.replay.loop import ROOT
from outlast.replay.machine import Machine
from outlast.replay.task import TaskPath
from outlast.testing.golden import Golden
from outlast.workflows.registry import Registry

FAILED = "failed"
ELSEWHERE = "stands elsewhere"
_NOT_A_WORD = re.compile(r"[^A-Za-z0-9]+")
_MOST_FRAMES = 50
_NOT_THE_AUTHORS = (str(Path(__file__).parents[1]), str(Path(asyncio.__file__).parent))
_PLACE = re.compile(r" at r[^;, ]*")


class Rehearsal(Struct, frozen=True):
    """How one journal replayed.

    Args:
        entries: How long the journal is.
        stops: An empty string where it replays; else `non-determinism`, `undecodable`, `no code` or `internal error`, which block it,
            or `failed`: the code raises where the journal goes on, and the run would end with that; or `stands elsewhere`: a worker would go
            on with it, but after some turn the code asks for something else, or waits elsewhere, than a golden journal says.
        why: The first line of the error.
        position: Of the entry at which it stops, or after which it fails, from 0.
        recorded: What the journal holds there.
        asked: What the code asks for instead.
        waits: Where the author's code waits then, outermost function first, as `agent.py:12 in fix`.
        remedy: What can be done, in lines of text.
        patches: What the code was told at each patch that it came to.
        sides: Where it stands elsewhere, in lines of text: what differs, in the golden journal and now.
    """

    run_id: str
    workflow: str
    generation: int
    entries: int
    stops: str = ""
    why: str = ""
    position: int | None = None
    recorded: str = ""
    asked: str = ""
    waits: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    patches: dict[str, bool] = {}
    sides: tuple[str, ...] = ()


def rehearse(golden: Golden, registry: Registry) -> Rehearsal:
    """Replay a journal as a worker does that takes the run up. To be called from a plain callback."""
    told = Rehearsal(golden.run_id, golden.workflow, golden.generation, len(golden.rows))
    try:
        workflow = registry.workflow(golden.workflow)
        machine = Machine(
            workflow,
            tenant=golden.tenant,
            run_id=golden.run_id,
            generation=golden.generation,
        )
    except DefinitionError as error:
        return replace(told, stops="no code", why=error.message, remedy=(error.hint,))
    try:
        entries = golden.entries()
        failed = _deliver(machine, entries)
        if not machine.begun and entries and isinstance(entries[0][0], Started):
            # A worker that takes it up decodes them before anything else.
            machine._agenda.position = 0
            workflow.arguments.decode(bytes(entries[0][0].arguments))
    except NonDeterminismError as error:
        return _mismatch(told, error, machine)
    except DecodeError as error:
        return replace(
            told,
            stops="undecodable",
            why=error.message,
            position=min(machine._agenda.position, len(golden.rows) - 1),
            remedy=("let the types of the code read what is stored: give a new field a default",),
        )
    except Exception as error:  # noqa: BLE001 - whatever stops it here would block it in a worker
        return replace(told, stops="internal error", why=repr(error))
    else:
        told = replace(told, patches=dict(machine.patches.answers))
        if failed is not None and not machine.closed:
            return _failure(told, *failed)
        return _compared(told, golden, registry) if golden.stands else told
    finally:
        machine.evict()


def _deliver(
    machine: Machine, entries: Sequence[tuple[Entry, StampedRow]]
) -> tuple[int, Failed] | None:
    """Deliver a whole journal; return after which entry the code had failed, and with what."""
    failed: tuple[int, Failed] | None = None
    for _ in each_turn(machine, entries):
        if failed is None and isinstance(machine.outcome, Failed):
            failed = machine._agenda.position - 1, machine.outcome
    return failed


def _compared(told: Rehearsal, golden: Golden, registry: Registry) -> Rehearsal:
    """Compare where the code stands after each turn with where a golden journal says that the run stood."""
    try:
        golden.check(registry)
    except NonDeterminismError as error:
        what, *sides = error.message.splitlines()
        return replace(told, stops=ELSEWHERE, why=what, remedy=(error.hint,), sides=tuple(sides))
    except DecodeError as error:
        return replace(told, stops="undecodable", why=error.message, remedy=(error.hint,))
    return told


def _failure(told: Rehearsal, position: int, failed: Failed) -> Rehearsal:
    failure = failed.failure
    place = place_of(failure)
    return replace(
        told,
        stops=FAILED,
        why=tell(failure).partition("\n")[0] + (f", raised {place}" if place else ""),
        position=position,
        remedy=("mend the code before it is deployed: a run that has failed is over",),
    )


def _mismatch(told: Rehearsal, error: NonDeterminismError, machine: Machine) -> Rehearsal:
    path = (error.operation or "r:").rpartition(":")[0]
    tasks = {task.path: task for task in machine._loop.unfinished_tasks()}
    task = tasks.get(TaskPath(path)) or tasks.get(ROOT)
    return replace(
        told,
        stops="non-determinism",
        why=error.message.partition("\n")[0],
        position=error.position,
        recorded=error.recorded,
        asked=error.asked,
        waits=() if task is None else tuple(_places(task.get_coro())),
        remedy=_remedy(error),
        patches=dict(machine.patches.answers),
    )


def _places(code: Any) -> Iterator[str]:
    """Yield the places of the author's code in which a coroutine waits: functions that wait for each other, outermost first."""
    for _ in range(_MOST_FRAMES):
        frame = getattr(code, "cr_frame", None) or getattr(code, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_NOT_THE_AUTHORS):
            file = Path(frame.f_code.co_filename).name
            yield f"{file}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        code = getattr(code, "cr_await", None) or getattr(code, "gi_yieldfrom", None)
        if code is None:
            return


_SAID = ("patch ", "compensate=")
"""What is recorded of a mismatch whose own hint says what to do: no patch would."""


def _remedy(error: NonDeterminismError) -> tuple[str, ...]:
    if error.raised or "runs accept" in error.hint or error.recorded.startswith(_SAID):
        return (error.hint,)
    name = proposed_patch(error.recorded, error.asked)
    return (
        "let runs in flight go the former way:",
        f'    if outlast.patched("{name}"):',
        f"        ...  # as the code is now: {_one_line(error.asked)}",
        "    else:",
        f"        ...  # as it was: {_one_line(error.recorded)}",
        *_if_only_added(error),
    )


def _if_only_added(error: NonDeterminismError) -> tuple[str, ...]:
    added = _word(error.asked.partition(";")[0])
    if not added or added.startswith("nothing"):
        return ()
    return (
        f"if {added} was only put before it, the `if` stands around that alone, without an else",
    )


def proposed_patch(recorded: str, asked: str) -> str:
    """Return an id for the patch that would let a run go on: what was, and what is there instead."""
    now, was = _word(asked.partition(";")[0]), _word(recorded)
    return f"{now}-instead-of-{was}" if now and not now.startswith("nothing") else f"without-{was}"


def _word(text: str) -> str:
    """Return `step load at r:1` as `load`, and what has no name by its kind."""
    words = _NOT_A_WORD.sub(" ", _PLACE.sub("", text)).split()
    named = words[1:] if words[:1] in (["step"], ["effect"]) and len(words) > 1 else words
    return "-".join(named[:3]).lower()


def _one_line(text: str) -> str:
    return " ".join(text.split())
