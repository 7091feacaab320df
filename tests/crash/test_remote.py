"""Two kinds of processes: one has the run, another one its remote steps. Either is killed, or stands still, at any point."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter

import pytest
import remote_flow
from crash_bench import Bench, check_journal, go_on, is_stopped, until
from kill_point import Point, chosen

pytestmark = pytest.mark.slow

TAKER = ("--steps-only", "--queue", remote_flow.QUEUE)
NO_END = ("--lease", "600")
"""A lease that outlasts every patience here: only what does not wait for its end comes in time."""


def begun_in(bench: Bench, process: subprocess.Popen[bytes], count: int = 1) -> None:
    """Wait until the held step has begun so often, the last time in that process."""
    until(lambda: len(bench.received("far_hold")) == count, "the step begins")
    assert bench.received("far_hold")[-1]["pid"] == process.pid


def let_go(bench: Bench) -> None:
    """Let the held step end."""
    (bench.directory / "go-x").touch()


def check(bench: Bench, *, attempts: int) -> None:
    """One outcome, and nothing is left; each body began with the number of its attempt."""
    image = bench.image("x")
    assert image is not None
    check_journal(image.rows)
    assert (image.tasks, image.messages, image.operations) == ((), (), ())
    assert [one["number"] for one in bench.received("far_hold")] == [1] * attempts
    bench.check_intact()


def test_dead_taker_is_noticed_at_once(bench: Bench) -> None:
    """A second taker has the step of a killed one long before its lease is over; the run's owner has nothing to do with it."""
    owner = bench.worker(*NO_END)
    first = bench.worker(*TAKER, *NO_END)
    bench.start(remote_flow.remote_held("x"), "x")
    begun_in(bench, first)
    second = bench.worker(*TAKER, *NO_END)
    first.kill()
    begun_in(bench, second, 2)
    let_go(bench)
    assert bench.result("x") == second.pid
    check(bench, attempts=2)
    assert owner.poll() is None


def test_taker_that_comes_after_a_death_begins_at_once(bench: Bench) -> None:
    """A taker that starts when the other is dead does not wait for its lease either."""
    bench.worker(*NO_END)
    first = bench.worker(*TAKER, *NO_END)
    bench.start(remote_flow.remote_held("x"), "x")
    begun_in(bench, first)
    first.kill()
    bench.finish(first)
    second = bench.worker(*TAKER, *NO_END)
    begun_in(bench, second, 2)
    let_go(bench)
    assert bench.result("x") == second.pid
    check(bench, attempts=2)


@pytest.mark.parametrize("idle", ["600", "0.05"], ids=["in memory", "parked"])
def test_dead_owner_does_not_disturb_the_step(bench: Bench, idle: str) -> None:
    """The step goes on while nobody has the run, and is not begun again: its outcome waits for the next owner."""
    owner = bench.worker(*NO_END, "--idle", idle)
    taker = bench.worker(*TAKER, *NO_END)
    bench.start(remote_flow.remote_held("x"), "x")
    begun_in(bench, taker)
    owner.kill()
    bench.finish(owner)
    let_go(bench)
    until(lambda: (image := bench.image("x")) and image.messages, "the outcome is in the inbox")
    bench.worker(*NO_END)
    assert bench.result("x") == taker.pid
    check(bench, attempts=1)


def test_frozen_taker_is_fenced(bench: Bench) -> None:
    """It stands still past its lease, and another one has the step; when it goes on, it writes nothing of it."""
    bench.worker(*NO_END)
    first = bench.worker(*TAKER, "--lease", "1.5")
    bench.start(remote_flow.remote_held("x"), "x")
    begun_in(bench, first)
    first.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(first), "the first taker stands still")
    second = bench.worker(*TAKER, *NO_END)
    begun_in(bench, second, 2)
    let_go(bench)
    assert bench.result("x") == second.pid
    go_on(first)
    until(lambda: bench.worker_id(first), "the first taker has a new life")
    check(bench, attempts=2)
    assert "Applied" not in bench.verdicts(first.pid)


def test_sigterm_lets_a_task_end(bench: Bench) -> None:
    """A taker that is asked to end ends its step first, and is gone."""
    bench.worker(*NO_END)
    taker = bench.worker(*TAKER, *NO_END)
    bench.start(remote_flow.remote_held("x"), "x")
    begun_in(bench, taker)
    taker.send_signal(signal.SIGTERM)
    let_go(bench)
    assert bench.finish(taker) == 0, bench.words()
    assert bench.result("x") == taker.pid
    check(bench, attempts=1)
    assert len(bench.workers()) == 1


def test_terminated_run_leaves_no_task(bench: Bench) -> None:
    """The attempt in the other process is cancelled, and what it would have written is refused or never written."""
    bench.worker(*NO_END)
    taker = bench.worker(*TAKER, *NO_END)
    bench.start(remote_flow.remote_held("x"), "x")
    begun_in(bench, taker)

    async def terminate(client) -> None:
        await client.handle("x").terminate("enough")

    bench.ask(terminate)
    until(lambda: "is no longer ours" in bench.log.read_text(), "the taker has noticed")
    let_go(bench)
    image = bench.image("x")
    assert image is not None
    assert (image.tasks, image.messages) == ((), ())
    assert [one.row.kind for one in image.rows] == ["started", "taken"]
    assert len(bench.received("far_hold")) == 1


def test_many_tasks_are_each_worked_on_once(bench: Bench) -> None:
    """Forty runs, two owners and three takers: each body once, nobody is locked out, and no taker has all."""
    for _ in range(2):
        bench.worker(*NO_END)
    takers = [bench.worker(*TAKER, *NO_END) for _ in range(3)]
    labels = [f"x{number}" for number in range(40)]

    async def all_of_them(client) -> list[list[int]]:
        for label in labels:
            await client.start(remote_flow.there_and_back(label), id=label)
        return [await client.handle(label).result() for label in labels]

    assert bench.ask(all_of_them) == [remote_flow.RESULT] * len(labels)
    began = Counter((one["label"], one["body"], one["number"]) for one in bench.received())
    assert set(began.values()) == {1}
    shares = Counter(one["pid"] for one in bench.received("far"))
    # Which of them, is luck on a machine with fewer cores than processes.
    assert len(shares) > 1 and set(shares) <= {taker.pid for taker in takers}
    for label in labels:
        check_journal(bench.rows(label))
    for word in ("locked", "busy", "Traceback", "ERROR"):
        assert word not in bench.log.read_text()
    bench.check_intact()


# Kill points

OWNER_EVENTS = (
    *("register", "claim", "taken", "step:count", "step_completed:count", "task:far"),
    *("step_completed:far", "task:far_flaky", "failure:far_flaky", "task:far_flaky"),
    *("step_completed:far_flaky", "step:count", "step_completed:count", "completed"),
)
TAKER_EVENTS = (
    *("register", "take:far", "step:far", "finish"),
    *("take:far_flaky", "step:far_flaky", "finish"),
    *("take:far_flaky", "step:far_flaky", "finish"),
)
"""What each process writes and calls when nobody disturbs it. Before a claim nothing has happened since the write that came before."""


def play(bench: Bench, *, owner: tuple[str, ...] = (), taker: tuple[str, ...] = ()) -> list[int]:
    """Run `there_and_back` with one process of each kind; whichever is killed is replaced."""
    kinds = {"owner": (*NO_END, *owner), "taker": (*TAKER, *NO_END, *taker)}
    bench.start(remote_flow.there_and_back("x"), "x")
    processes = {name: bench.launch(*options) for name, options in kinds.items()}
    first = list(processes.values())

    def is_over() -> bool:
        for name, process in processes.items():
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL, bench.words()
                options = NO_END if name == "owner" else (*TAKER, *NO_END)
                processes[name] = bench.launch(*options)
        image = bench.image("x")
        return image is not None and image.head.status.closed

    until(is_over, "the run ends")
    assert bench.result("x") == remote_flow.RESULT
    image = bench.image("x")
    assert image is not None
    check_journal(image.rows)
    assert (image.tasks, image.messages, image.operations) == ((), (), ())
    settled = Counter(one.row.operation for one in image.rows if one.row.kind == "step_completed")
    assert settled == {"r:1": 1, "r:2": 1, "r:3": 1, "r:4": 1}
    bench.check_intact()
    for process, options in zip(first, (owner, taker), strict=True):
        assert not options or bench.finish(process) == -signal.SIGKILL
    return [process.pid for process in first]


def test_an_undisturbed_run_makes_these_writes_and_calls(bench: Bench) -> None:
    """The points at which to kill are all there are."""
    owner, taker = play(bench)
    made = [one for event in bench.events(owner) for one in event.split()]
    assert Counter(one for one in made if not one.startswith("head:")) == Counter(OWNER_EVENTS)
    assert [one for event in bench.events(taker) for one in event.split()] == list(TAKER_EVENTS)


def sides(point: Point) -> tuple[str, ...]:
    """Return the options that kill a process there."""
    return ("--at", f"{point.name}#{point.number}", "--side", point.side)


def not_before_a_claim(events: tuple[str, ...], count: int) -> list[object]:
    """Return the points to try: before a claim of a task nothing has happened either."""
    return [
        one
        for one in chosen(events, count)
        if not (one.values[0].side == "before" and one.values[0].name.startswith("take:"))
    ]


@pytest.mark.parametrize("point", not_before_a_claim(TAKER_EVENTS, 5))
def test_a_taker_killed_anywhere_changes_nothing(bench: Bench, point: Point) -> None:
    """The result is the undisturbed one; the death costs one more call of one body at most."""
    play(bench, taker=sides(point))
    began = Counter(
        (one["body"], one["number"]) for one in bench.received() if "far" in one["body"]
    )
    assert set(began) == {("far", 1), ("far_flaky", 1), ("far_flaky", 2)}
    assert sum(began.values()) <= 4


@pytest.mark.parametrize("point", chosen(OWNER_EVENTS, 5))
def test_an_owner_killed_anywhere_changes_nothing(bench: Bench, point: Point) -> None:
    """The result is the undisturbed one; no remote body begins a second time because of it."""
    play(bench, owner=sides(point))
    began = Counter(
        (one["body"], one["number"]) for one in bench.received() if "far" in one["body"]
    )
    assert began == {("far", 1): 1, ("far_flaky", 1): 1, ("far_flaky", 2): 1}
