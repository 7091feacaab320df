"""What a shape may return, and what it may not: a wrong result must never pass for a right one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from outlast.testing.simulation.shape import (
    Act,
    Ask,
    Broken,
    Draw,
    Expect,
    Hand,
    Hear,
    Limit,
    Nap,
    Often,
    Serve,
    Several,
    Shape,
    Stray,
    Tell,
    Tidy,
    Twin,
    Work,
    fits,
    nodes,
)

EXPECT = Expect(heard={3: [7, 8]}, answer="approve", may_decline=False)
DID = "did run0/0"
NO = "ApprovalMismatchError"

RIGHT: list[tuple[Shape, Any]] = [
    (Work(21), 42),
    (Broken(1), "broken"),
    (Nap(2.0), ["slept", 2.0]),
    (Nap(2.0), ["slept", 60.0]),
    (Draw(), [0.5, "2026-01-01", "uuid"]),
    (Hear(3, 2), [7, 8]),
    (Serve(3, 2), [7, 8]),
    (Hear(3, 1, 4.0), [7]),
    (Hear(3, 1, 4.0), ["nothing", 4.0]),
    (Act("never"), DID),
    (Twin(Act("probed")), [DID, DID]),
    (Twin(Act("probed"), in_row=True), [DID, "RepeatedEffectError"]),
    (Often(Act("never")), [f"{DID}*", f"{DID}*"]),
    (Ask(Act("never")), ["granted", NO, DID]),
    (Ask(Act("never")), ["expired", NO]),
    (Ask(Act("never"), pattern=True, again=True), ["granted", NO, DID, "ApprovalSpentError"]),
    (Several("seq", (Work(1), Act("never"))), [2, f"{DID}.1"]),
    (Limit(3.0, Work(1)), ["in time", 2]),
    (Limit(3.0, Work(1)), ["cut", 3.0]),
    (Stray(Act("never")), "left"),
    (Tidy(Act("never")), f"{DID}.0"),
    (Tell(Act("never")), f"{DID}.0"),
    (Hand(3), 6),
    (Hand(3, limit=True), "late"),
    (Work(3, limit=True), "late"),
    (Work(3, limit=True, beats=True), 6),
    (Act("never", limit=True), "late"),
    (Act("never", limit=True), DID),
    (Twin(Act("probed", limit=True), in_row=True), ["late", DID]),
    (Ask(Act("never", limit=True)), ["granted", NO, "late"]),
    (Ask(Act("never", limit=True), pattern=True, again=True), ["granted", NO, "late", "done"]),
]
WRONG: list[tuple[Shape, Any]] = [
    (Work(21), 21),
    (Broken(1), 1),
    (Nap(2.0), ["slept", 1.9]),
    (Draw(), [0.5]),
    (Hear(3, 2), [8, 7]),
    (Serve(3, 2), [8, 8]),
    (Hear(3, 2), [7]),
    (Hear(3, 1), ["nothing", 4.0]),
    (Hear(3, 1, 4.0), [8]),
    (Hear(3, 1, 4.0), ["nothing", 3.9]),
    (Act("never"), "declined"),
    (Act("never"), "late"),
    (Act("never"), f"{DID}.1"),
    (Work(3), "late"),
    (Hand(3), "late"),
    (Hand(3, limit=True), 3),
    (Ask(Act("never", limit=True), pattern=True, again=True), ["granted", NO, DID, "done"]),
    (Twin(Act("probed")), [DID, "declined"]),
    (Twin(Act("probed"), in_row=True), [DID, DID]),
    (Often(Act("never")), [DID, DID]),
    (Often(Act("never")), [f"{DID}*"]),
    (Ask(Act("never")), ["granted", NO, "declined"]),
    (Ask(Act("never")), ["granted", "done", DID]),
    (Ask(Act("never")), ["denied", NO]),
    (Ask(Act("never"), pattern=True, again=True), ["granted", NO, DID]),
    (Ask(Act("never"), pattern=True, again=True), ["granted", NO, DID, "done"]),
    (Several("gather", (Work(1), Work(2))), [4, 2]),
    (Several("gather", (Work(1), Work(2))), [2]),
    (Limit(3.0, Work(1)), ["in time", 3]),
    (Limit(3.0, Work(1)), ["cut", 2.9]),
    (Stray(Act("never")), DID),
    (Tidy(Work(1)), None),
]


@pytest.mark.parametrize(("shape", "value"), RIGHT, ids=str)
def test_a_right_result_fits(shape: Shape, value: Any) -> None:
    """What the shape may return is accepted."""
    assert fits(shape, value, "run0/0", EXPECT)


@pytest.mark.parametrize(("shape", "value"), WRONG, ids=str)
def test_a_wrong_result_does_not_fit(shape: Shape, value: Any) -> None:
    """A lost message, an order that was turned round, a wait that was too short: refused."""
    assert not fits(shape, value, "run0/0", EXPECT)


def test_what_a_person_says_and_receivers_may_do_decides_what_fits() -> None:
    """No grant without a yes; no refusal of receivers that never refuse; no short wait unless a clock was set."""
    denied = replace(EXPECT, answer="deny")
    assert fits(Ask(Act("never")), ["denied", NO], "run0/0", denied)
    assert not fits(Ask(Act("never")), ["granted", NO, DID], "run0/0", denied)
    assert not fits(Ask(Act("never")), ["denied", NO], "run0/0", replace(EXPECT, answer="ignore"))
    assert fits(Act("never"), "declined", "run0/0", replace(EXPECT, may_decline=True))
    assert fits(Nap(2.0), ["slept", 0.0], "run0/0", replace(EXPECT, jumps=True))


def test_every_part_has_a_path_of_its_own() -> None:
    """The paths are those under which `fits` looks for what effects did."""
    shape = Several("seq", (Act("never"), Limit(1.0, Several("group", (Act("probed"),)))))
    paths = [path for path, _ in nodes(shape)]
    assert paths == ["0", "0.0", "0.1", "0.1.0", "0.1.0.0"]
