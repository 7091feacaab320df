"""Laws of patches: journals that former code has written are continued by patched code, from wherever the former code stopped."""

# ruff: noqa: D102, D103

from __future__ import annotations

import importlib.util
import random
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import outlast
from outlast.errors import NonDeterminismError
from outlast.journal.entry import CancelRequested, Patched, StampedRow, to_row
from outlast.replay.command import MarkPatch
from outlast.replay.delivery import deliver_all
from outlast.replay.machine import Machine
from outlast.replay.stand import differences, note_commands, stand_of


def _shapes() -> ModuleType:
    """Return the random workflows of the machine's own laws, and the driver that answers them."""
    name = "outlast_machine_laws_for_patches"
    place = Path(__file__).with_name("test_machine.py")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


laws: Any = _shapes()

FORMER, CHANGED, SETTLED = "former", "changed", "settled"
"""Code without the patches; with them; and with the changed ways alone, and `deprecate_patch`."""


class Interpreter(laws.Interpreter):
    """Runs a shape in which `("patch", id, changed, former)` stands for a change."""

    code = FORMER

    async def do_patch(self, name: str, changed: Any, former: Any) -> Any:
        match self.code:
            case "former":
                return await self.run(former)
            case "changed":
                return await self.run(changed if outlast.patched(name) else former)
            case _:
                outlast.deprecate_patch(name)
                return await self.run(changed)


class Code(laws.Shaped):
    """The workflow of a shape, in one of its versions."""

    def __init__(self, shape: Any, version: str):
        super().__init__(shape)
        self.version = version

    def start(self, arguments: bytes) -> Any:
        self.interpreter = Interpreter(self.kit)
        self.interpreter.code = self.version
        return self.interpreter.run(self.shape)


def lived(program: Code) -> list[Any]:
    """Return what the code did before it was taken out of memory: what its clean-up asks then is asked of nobody."""
    trace = program.interpreter.trace
    gone = (place for place, one in enumerate(trace) if one[1:] == ("RunEvicted",))
    return trace[: next(gone, len(trace))]


def stamped(journal: Any) -> list[Any]:
    """Return the journal as a store gives it."""
    rows = []
    for number, (turn, at) in enumerate(journal):
        for entry in turn:
            rows.append((entry, StampedRow(to_row(entry, len(rows), number), at)))
    return rows


class Taken:
    """A run that a worker has taken up, and that nobody goes on with.

    Args:
        flags: For each turn whether it is delivered as one that others follow; as a worker does it when it takes a run up by
            default.
    """

    def __init__(self, shape: Any, version: str, journal: Any, flags: list[bool] | None = None):
        self.program = Code(shape, version)
        self.machine: Machine = laws.fresh(self.program)
        try:
            if flags is None:
                deliver_all(self.machine, stamped(journal))
            else:
                self.machine.foresee(entry for turn, _ in journal for entry in turn)
                for (turn, at), more in zip(journal, flags, strict=True):
                    self.machine.deliver(turn, at, more=more)
            self.trace = lived(self.program)
            self.stand = stand_of(self.machine, note_commands({}, self.machine))
            self.answers = dict(self.machine.patches.answers)
        finally:
            self.machine.evict()


class Continued(laws.Live):
    """A run that a version of the code goes on with, after it was taken up with this journal; it is answered at random."""

    def __init__(self, shape: Any, version: str, journal: Any, seed: int):
        self.random = random.Random(seed)
        self.shape = shape
        self.evicting = False
        self.cut_short = True
        self.version = version
        self.program = Code(shape, version)
        self.machine = laws.fresh(self.program)
        self.journal = list(journal)
        self.flags = [True] * (len(journal) - 1) + [False]
        self.outstanding: dict[str, Any] = {}
        self.marks: list[MarkPatch] = []
        self.snapshots: list[Any] = []
        self.now = journal[-1][1]
        self.serial = 1000
        self.finish = None
        self.cancels = 0
        self.timed_out = False
        self.last_stretch: set[str] = set()
        deliver_all(self.machine, stamped(journal))
        self.take()

    def run(self) -> None:
        super().run()
        self.machine.evict()

    def take(self) -> None:
        commands = self.machine.take_commands()
        self.marks += [one for one in commands if isinstance(one, MarkPatch)]
        others = [one for one in commands if not isinstance(one, MarkPatch)]
        laws.note(self.outstanding, self.machine, others)
        self.finish = self.outstanding.get("")

    def commit(self, turns: list[list[Any]]) -> None:
        self.now += timedelta(seconds=self.random.choice([0, 0, 1, 3]))
        if self.marks:
            turns = [[Patched(one.name, one.deprecated) for one in self.marks], *turns]
            self.marks = []
        self.machine.foresee(entry for turn in turns for entry in turn)
        for turn in turns:
            before = set(self.machine.patches.answers)
            self.journal.append((turn, self.now))
            self.flags.append(False)
            self.machine.deliver(turn, self.now)
            self.last_stretch = set(self.machine.patches.answers) - before
        self.take()
        self.check()

    def check(self) -> None:
        """A replay with the same flags stands the same; and so does whoever takes the run up, once nothing waits to be marked."""
        commands = {key: one for key, one in self.outstanding.items() if key}
        mine = stand_of(self.machine, commands_of(self.machine, commands))
        again = Taken(self.shape, self.version, self.journal, self.flags)
        assert differences(mine, again.stand) == []
        assert again.trace == lived(self.program)
        other = Taken(self.shape, self.version, self.journal)
        waiting = {one.name for one in self.marks}
        if waiting <= self.last_stretch:
            assert other.trace == lived(self.program)
            assert differences(mine, other.stand) == []
        else:
            # Answered within a commit, and not yet written: nothing has left the run, and who takes it up may answer anew, and then
            # come to other patches.
            mine_known = self.machine.patches.answers
            common = (mine_known.keys() & other.answers.keys()) - waiting
            assert {name: other.answers[name] for name in common} == {
                name: mine_known[name] for name in common
            }


def commands_of(machine: Machine, outstanding: dict[str, Any]) -> dict[Any, Any]:
    """Return the commands that stand, as a replay that has taken none shows them."""
    doubtful = machine.in_doubt
    return {key: one for key, one in outstanding.items() if key not in doubtful}


names = st.sampled_from(["p", "q"])
inner = st.recursive(laws.leaves, laws.grow, max_leaves=3)
patches = st.tuples(st.just("patch"), names, inner, inner)
shapes = st.builds(
    laws.whole,
    st.lists(
        st.recursive(laws.leaves | patches | patches, laws.grow, max_leaves=6),
        min_size=2,
        max_size=5,
    ),
    st.booleans(),
)
PLAIN = ("seq", ("step", 1), ("patch", "p", ("pay", 1), ("step", 2)), ("sleep", 1), ("step", 3))
TOGETHER = (
    "gather",
    True,
    PLAIN,
    ("receive", "a", None),
    ("step", 2),
    ("patch", "p", ("sleep", 3), ("pay", 2)),
)
ANEW = (
    "seq",
    ("catch", ("sleep", 1)),
    (
        "catch",
        (
            "timeout",
            1,
            (
                "seq",
                ("calls", 1, 1),
                ("patch", "q", ("try", ("step", 1), ("sleep", 1)), ("step", 1)),
            ),
        ),
    ),
    ("catch", ("patch", "p", ("step", 1), ("sleep", 0))),
)
"""One patch is asked and given up within a commit, so that who takes the run up answers it anew, and comes to the other one."""


def former(shape: Any, seed: int) -> Any:
    """Let the former code run, and return its driver; `snapshots` say where its commits end."""
    run = laws.Live.__new__(laws.Live)
    program = Code(shape, FORMER)
    original = laws.Shaped
    try:
        laws.Shaped = lambda _: program
        run.__init__(shape, seed)
    finally:
        laws.Shaped = original
    run.run()
    run.machine.evict()
    return run


def cut(run: Any, place: float) -> Any:
    """Return the journal as it was when one of the commits was the last."""
    ends = [length for length, *_ in run.snapshots]
    return run.journal[: ends[int(place * (len(ends) - 1))]]


@laws.quick
@given(shapes, laws.seeds, laws.seeds, st.floats(0, 1))
@example(PLAIN, 1, 2, 0.0)
@example(PLAIN, 1, 2, 0.5)
@example(TOGETHER, 3, 4, 0.3)
def test_patched_code_goes_on_with_any_journal_of_former_code(shape, seed, other, place):
    """From any commit on it replays, goes on, and stands after each commit where its replay stands; the run comes to an end."""
    journal = cut(former(shape, seed), place)
    run = Continued(shape, CHANGED, journal, other)
    run.check()
    run.run()
    whole = Taken(shape, CHANGED, run.journal)
    if not run.marks:
        assert whole.trace == lived(run.program)
    for name, answer in run.machine.patches.answers.items():
        marked = [
            entry for turn, _ in run.journal for entry in turn if entry == Patched(name, False)
        ]
        assert len(marked) <= int(answer)
        assert bool(marked) == answer or name in {one.name for one in run.marks}


@laws.quick
@given(shapes, laws.seeds)
@example(PLAIN, 1)
@example(TOGETHER, 3)
def test_a_run_of_patched_code_alone_goes_the_changed_way(shape, seed):
    """In a run that former code has never seen every answer is True, however its turns come together."""
    first = former(shape, 0).journal[:2]
    run = Continued(shape, CHANGED, first, seed)
    run.run()
    assert all(run.machine.patches.answers.values())


@laws.quick
@given(shapes, laws.seeds, laws.seeds, st.floats(0, 1))
@example(PLAIN, 1, 2, 0.0)
def test_former_code_is_told_of_a_marker_by_its_name(shape, seed, other, place):
    """Code that does not know the patch stops at the first marker, and not before; without one it replays."""
    run = Continued(shape, CHANGED, cut(former(shape, seed), place), other)
    run.run()
    marked = [entry.name for turn, _ in run.journal for entry in turn if isinstance(entry, Patched)]
    if not marked:
        Taken(shape, FORMER, run.journal)
        return
    with pytest.raises(NonDeterminismError) as caught:
        Taken(shape, FORMER, run.journal)
    assert f"marker of patch {marked[0]!r}" in caught.value.message
    assert caught.value.recorded == f"patch {marked[0]}"
    assert f"outlast.patched({marked[0]!r})" in caught.value.hint


@laws.quick
@given(shapes, laws.seeds, laws.seeds, st.floats(0, 1))
@example(PLAIN, 1, 2, 0.0)
@example(TOGETHER, 3, 4, 0.3)
@example(ANEW, 0, 0, 0.0)
def test_the_former_way_can_go_when_every_answer_is_yes(shape, seed, other, place):
    """A journal whose patches were all answered True replays with `deprecate_patch` in their places, and goes on."""
    run = Continued(shape, CHANGED, cut(former(shape, seed), place), other)
    run.run()
    assume(all(run.machine.patches.answers.values()) and not run.marks)
    assume(run.finish is None or not isinstance(run.journal[-1][0][0], CancelRequested))
    settled = Taken(shape, SETTLED, run.journal)
    assert settled.trace == lived(run.program)


@laws.quick
@given(shapes, laws.seeds)
@example(PLAIN, 1)
def test_code_that_deprecates_is_forgotten_without_harm(shape, seed):
    """A run of it alone holds markers that code replays which has neither patch nor deprecation any more."""
    first = former(shape, 0).journal[:2]
    run = Continued(shape, SETTLED, first, seed)
    run.run()
    assert all(
        entry.deprecated for turn, _ in run.journal for entry in turn if isinstance(entry, Patched)
    )
    bare = Taken(without(shape), FORMER, run.journal)
    assert bare.trace == lived(run.program)


def without(shape: Any) -> Any:
    """Return a shape with each patch in its changed way, under the same kind: only the call of `deprecate_patch` is gone."""
    if not isinstance(shape, tuple):
        return shape
    if shape[:1] == ("patch",):
        changed = without(shape[2])
        return ("patch", shape[1], changed, changed)
    return tuple(without(one) for one in shape)
