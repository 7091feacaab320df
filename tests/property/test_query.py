"""Laws of queries: the answer is that of a fresh replay of what was committed, and asking changes nothing."""

# ruff: noqa: D102

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import given

from outlast.client import replica as replica_module
from outlast.client.replica import Replica, Replicas
from outlast.errors import QueryError
from outlast.journal.entry import StampedRow, to_row
from outlast.replay.stand import note_commands, stand_of
from outlast.store.change import RunKey

RUN = RunKey("default", "run-1")


def _shapes() -> ModuleType:
    """Return the random workflows of the machine's own laws, and the driver that answers them."""
    name = "outlast_machine_laws_of_queries"
    place = Path(__file__).with_name("test_machine.py")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


laws: Any = _shapes()


def ask(machine: Any) -> str:
    """Return the answer, or why there is none."""
    try:
        return machine.query("seen", b"null").decode()
    except QueryError as error:
        return error.reason


def answer_of_a_fresh_replay(shape: Any, journal: Any) -> str:
    """Return what a machine answers to which the whole journal is delivered, and nothing else ever was."""
    machine = laws.fresh(laws.Shaped(shape))
    try:
        laws.replay(machine, journal)
        return ask(machine)
    finally:
        machine.evict()


class Asked(laws.Live):
    """A run that is asked after each turn, and compared with a replay that is asked for the first time."""

    def commit(self, turns: list[list[Any]]) -> None:
        self.now += timedelta(seconds=self.random.choice([0, 0, 1, 3]))
        for turn in turns:
            self.journal.append((turn, self.now))
            self.machine.deliver(turn, self.now)
            before = stand_of(self.machine, note_commands({}, self.machine))
            assert ask(self.machine) == answer_of_a_fresh_replay(self.shape, self.journal)
            assert stand_of(self.machine, note_commands({}, self.machine)) == before
        laws.note(self.outstanding, self.machine, self.machine.take_commands())
        self.finish = self.outstanding.get("")


@laws.examples(0.4)
@given(laws.shapes, laws.seeds)
def test_an_answer_is_that_of_a_fresh_replay_at_each_turn(shape: Any, seed: int) -> None:
    """Of a run that is asked all the time; and it does what one does that is never asked."""
    asked, quiet = Asked(shape, seed), laws.Live(shape, seed)
    asked.run()
    quiet.run()
    assert asked.journal == quiet.journal
    assert laws.finished(asked.machine) == laws.finished(quiet.machine)


def rows_of(journal: Any) -> list[StampedRow]:
    """Return a journal as a store keeps it."""
    rows: list[StampedRow] = []
    for number, (turn, at) in enumerate(journal):
        rows += [
            StampedRow(to_row(entry, len(rows) + place, number), at)
            for place, entry in enumerate(turn)
        ]
    return rows


@laws.examples(0.4)
@given(laws.shapes, laws.seeds)
def test_a_kept_replica_answers_as_a_fresh_one(shape: Any, seed: int) -> None:
    """However the journal came to it: commit by commit, in pieces of any size, cut off in between and taken up again."""
    journal = laws.live(shape, seed).journal
    rows, chance = rows_of(journal), random.Random(seed)
    ends = [place for place, one in enumerate(rows, 1) if place == len(rows) or one.row.turn != rows[place].row.turn]  # fmt: skip
    program = laws.Shaped(shape)
    answers: dict[int, str] = {}

    async def catch_up(replica: Replica, end: int) -> None:
        """Bring it to a place; the first time, cancel that when a slice or two were delivered."""
        task = asyncio.create_task(replica.catch_up(rows[replica.last + 1 : end]))
        for _ in range(chance.choice([0, 1, 2, 5])):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            task.cancel()
            await asyncio.wait([task])
            assert replica.entries in [0, *ends]
            await replica.catch_up(rows[replica.last + 1 : end])
        await asyncio.wait([task])
        assert replica.entries == replica.last + 1 == end

    async def main() -> None:
        replicas = Replicas()
        for end in sorted(chance.sample(ends, min(4, len(ends)))):

            async def look(replica: Replica, end: int = end) -> str:
                await catch_up(replica, end)
                try:
                    return (await replica.answer("seen", b"null")).decode()
                except QueryError as error:
                    return error.reason

            answers[rows[end - 1].row.turn] = await replicas.use(RUN, 3, program, look)
        await replicas.close()

    piece, replica_module._PIECE = replica_module._PIECE, chance.choice([1, 2, 3, 256])
    try:
        asyncio.run(main())
    finally:
        replica_module._PIECE = piece
    for turn, answer in answers.items():
        assert answer == answer_of_a_fresh_replay(shape, journal[: turn + 1])
