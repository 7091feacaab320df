"""Golden journals: what a run once wrote, with where it stood after each turn, kept in a file for the code of all days to come.

    text = (await record(app.store, "fix-1")).to_json()      # once; commit the file
    Golden.from_json(text).check()                           # in every test run, on every interpreter

Law: whatever Outlast and the workflow's code become, a journal that was written must replay from every prefix to the same stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from outlast.errors import DecodeError, NonDeterminismError, RunNotFoundError
from outlast.journal.entry import Entry, EntryRow, StampedRow, from_row
from outlast.journal.parse import NotJsonError, parse_as
from outlast.replay.delivery import in_callback
from outlast.replay.machine import Machine
from outlast.replay.stand import (
    Commands,
    Difference,
    Stand,
    differences_of,
    note_commands,
    stand_of,
)
from outlast.store.change import RunKey
from outlast.store.protocol import StoreReader
from outlast.workflows.registry import Registry

FORMAT = 1
"""Of the file and of the rows in it."""

VOLATILE = ("python", "library", "stack")
"""Fields of entries that say who wrote them, and may differ when the same run is recorded again."""

_ANEW = "record it anew"

_VOLATILE = re.compile(rf'"({"|".join(VOLATILE)})":"(?:[^"\\]|\\.)*"')


class GoldenRow(Struct, frozen=True):
    """A row of the journal as the store keeps it; the body is its exact text."""

    seq: int
    turn: int
    kind: str
    operation: str
    name: str
    at: datetime
    body: str


class Golden(Struct, frozen=True):
    """A recorded run.

    Args:
        stands: Where the run stood after each turn, its tasks without lines of code. What is empty is left out.
    """

    format: int
    workflow: str
    tenant: str
    run_id: str
    generation: int
    rows: tuple[GoldenRow, ...]
    stands: tuple[dict[str, Any], ...]

    def to_json(self) -> str:
        """Return the text to keep: one value a line, so that a difference shows."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Golden:
        """Return what `to_json` wrote.

        Raises:
            DecodeError: It is no golden journal of a known format, or not a whole one.
        """
        golden = exported(text)
        golden._refuse_partial()
        return golden

    def steady(self) -> Golden:
        """Return it without what depends on who recorded it: `VOLATILE`."""
        rows = tuple(
            msgspec.structs.replace(row, body=_VOLATILE.sub(r'"\1":""', row.body))
            for row in self.rows
        )
        return msgspec.structs.replace(self, rows=rows)

    def check(self, registry: Registry | None = None) -> None:
        """Replay every prefix on a machine of its own, and all turns on one from which commands are taken as a worker takes them.

        To be called from a plain function: a machine is not driven from within a task.

        Args:
            registry: The code of today; everything decorated so far by default.

        Raises:
            NonDeterminismError: The code of today does not stand where the run stood.
            DecodeError: A recorded value does not fit the type that the code names; or this is not a whole golden journal.
            DefinitionError: The code of today has no workflow of that name.
        """
        self._refuse_partial()
        registry = registry or Registry.of_everything()
        self._check_live(registry)
        for length in range(1, len(self.stands) + 1):
            machine = self.machine(registry)
            try:
                for turn, at in self.turns()[:length]:
                    machine.deliver(turn, at, more=True)
                self._compare(length, stand_of(machine, note_commands({}, machine)))
            finally:
                machine.evict()
            if machine.pinned or machine.take_commands():
                raise self._error(length, "the code acts, or stays, when it is taken out of memory")

    def _refuse_partial(self) -> None:
        """Raise DecodeError unless there are rows, and a stand for each turn: what is left out would not be checked."""
        turns = sum(1 for _ in groupby(self.rows, lambda row: row.turn))
        if turns and not self.stands:
            raise DecodeError(
                f"this journal has {len(self.rows)} rows and no stands, where the code stood after each turn: it can be replayed, and is not golden",
                hint="export the run with its code, `outlast runs export RUN --module MODULE`, or record it with outlast.testing.record(); "
                "`outlast replay MODULE --file FILE` replays this one",
            )
        if not turns or turns != len(self.stands):
            raise DecodeError(
                f"this golden journal has {len(self.rows)} rows of {turns} turns, and {len(self.stands)} stands; "
                "there is one stand a turn, and no run without a turn",
                hint=_ANEW,
            )

    def _check_live(self, registry: Registry) -> None:
        machine = self.machine(registry)
        try:
            for length, stand in enumerate(_stands(machine, self.turns()), 1):
                self._compare(length, stand)
                machine.take_commands()
        finally:
            machine.evict()

    def _compare(self, length: int, stand: Stand) -> None:
        found = differences_of(self.stands[length - 1], _kept(stand))
        if found:
            raise self._error(length, "the replay does not stand where the run stood", *found)

    def _error(self, length: int, what: str, *found: Difference) -> NonDeterminismError:
        turn = self.turns()[length - 1][0]
        names = ", ".join(type(entry).__name__ for entry in turn)
        sides = [
            line
            for one in found
            for line in (f"  {one.what}", f"    run:    {one.one}", f"    replay: {one.other}")
        ]
        return NonDeterminismError(
            "\n".join([f"after {length} turns (the last is {names}), {what}", *sides]),
            run=self.run_id,
            hint="journals like this one are in flight: change the code so that it replays them, not the file",
        )

    def machine(self, registry: Registry) -> Machine:
        """Return a machine to which nothing was delivered yet, and which knows the markers of the whole journal."""
        machine = Machine(
            registry.workflow(self.workflow),
            tenant=self.tenant,
            run_id=self.run_id,
            generation=self.generation,
        )
        machine.foresee(from_row(_stored(row)) for row in self.rows)
        return machine

    def entries(self) -> list[tuple[Entry, StampedRow]]:
        """Return the journal as a store gives it.

        Raises:
            DecodeError: A row cannot be read.
        """
        return [(from_row(_stored(row)), StampedRow(_stored(row), row.at)) for row in self.rows]

    def turns(self) -> list[tuple[list[Entry], datetime]]:
        """Return the entries of each turn, and when they were committed."""
        turns = [list(rows) for _, rows in groupby(self.rows, lambda row: row.turn)]
        return [([from_row(_stored(row)) for row in turn], turn[0].at) for turn in turns]


_decoder = msgspec.json.Decoder(Golden)


def exported(text: str | bytes) -> Golden:
    """Return a journal that was exported, with or without where the code stood.

    Raises:
        DecodeError: It is no journal of a known format, or has no entries.
    """
    try:
        golden = parse_as(_decoder, text)
    except NotJsonError as error:
        raise DecodeError(f"this is no golden journal: {error}", hint=_ANEW) from None
    if golden.format != FORMAT:
        raise DecodeError(f"a golden journal of format {golden.format} cannot be read")
    if not golden.rows:
        raise DecodeError("this golden journal has no rows, and no stands", hint=_ANEW)
    return golden


async def record(
    store: StoreReader,
    run_id: str,
    *,
    tenant: str = "default",
    generation: int | None = None,
    registry: Registry | None = None,
) -> Golden:
    """Return the golden journal of a run: its rows, and where the code of today stands after each turn.

    Args:
        store: As in `app.store`, or a simulation's.
        generation: The present one by default.
        registry: The code of today; everything decorated so far by default.

    Raises:
        RunNotFoundError: There is no such run, or no such generation of it.
        DefinitionError: The code of today has no workflow of that name.
    """
    golden = await export(store, run_id, tenant=tenant, generation=generation)
    return await in_callback(lambda: _with_stands(golden, registry or Registry.of_everything()))


async def export(
    store: StoreReader, run_id: str, *, tenant: str = "default", generation: int | None = None
) -> Golden:
    """Return the journal of a run without where any code stands: to be replayed elsewhere, and no golden journal yet.

    Args:
        generation: The present one by default.

    Raises:
        RunNotFoundError: There is no such run, or no such generation of it.
    """
    run = RunKey(tenant, run_id)
    head = await store.head(run)
    if head is None:
        raise RunNotFoundError("there is no such run", run=run_id, hint="check its id and tenant")
    number = generation or head.generation
    rows = [
        GoldenRow(
            one.row.seq, one.row.turn, one.row.kind, one.row.operation, one.row.name, one.at,
            one.row.body.decode(),
        )
        for one in await store.journal(run, generation=number)
    ]  # fmt: skip
    if not rows:
        raise RunNotFoundError(
            f"there is no generation {number} of the run",
            run=run_id,
            hint="leave it out for the present one",
        )
    workflow = rows[0].name or head.workflow
    return Golden(FORMAT, workflow, run.tenant, run.run_id, number, tuple(rows), ())


def _with_stands(golden: Golden, registry: Registry) -> Golden:
    machine = golden.machine(registry)
    try:
        stands = tuple(_kept(stand) for stand in _stands(machine, golden.turns()))
    finally:
        machine.evict()
    return msgspec.structs.replace(golden, stands=stands)


def _stands(machine: Machine, turns: list[tuple[list[Entry], datetime]]) -> Iterator[Stand]:
    commands: Commands = {}
    for turn, at in turns:
        # Also after the last one: what is recorded may have gone on with the code that wrote it.
        machine.deliver(turn, at, more=True)
        yield stand_of(machine, note_commands(commands, machine))


def _kept(stand: Stand) -> dict[str, Any]:
    """Return what is kept of a stand: lines of code change, and most parts are empty most of the time."""
    parts = {**asdict(stand), "tasks": list(stand.tasks)}
    return {name: part for name, part in parts.items() if part}


def _stored(row: GoldenRow) -> EntryRow:
    return EntryRow(row.seq, row.turn, row.kind, row.operation, row.name, row.body.encode())
