"""Several processes on one file: deaths are noticed at once, runs are given back, clients wake workers, nobody is locked out."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import crash_flow
import pytest
from crash_bench import Bench, check_journal, until

from outlast.app import local_principal
from outlast.store.change import Status

NO_END = ("--lease", "600")
"""A lease that outlasts every patience here: only what does not wait for its end comes in time."""

NO_LOOK = ("--poll", "600")
"""Nor does anybody look without being told."""


def hold_in(bench: Bench, process) -> None:
    """Start the run `x`, and wait until a process is in the middle of its step."""
    bench.start(crash_flow.held("x"), "x")
    until(lambda: bench.received("hold"), "the step begins")
    assert bench.received("hold")[0]["pid"] == process.pid


def let_go(bench: Bench, *labels: str) -> None:
    """Let held steps end."""
    for label in labels:
        (bench.directory / f"go-{label}").touch()


def test_dead_worker_is_noticed_at_once(bench: Bench) -> None:
    """A second worker takes the run of a killed one long before its lease is over."""
    first = bench.worker(*NO_END)
    hold_in(bench, first)
    second = bench.worker(*NO_END)
    first.kill()
    until(lambda: len(bench.received("hold")) == 2, "the second worker takes the run")
    let_go(bench, "x")
    assert bench.result("x") == second.pid
    image = bench.image("x")
    assert image is not None
    assert image.head.lapses == 0
    assert image.head.epoch == 2
    check_journal(image.rows)


def test_worker_that_comes_after_a_death_takes_over_at_once(bench: Bench) -> None:
    """A worker that starts when the other is dead does not wait for its lease either."""
    first = bench.worker(*NO_END)
    hold_in(bench, first)
    first.kill()
    bench.finish(first)
    second = bench.worker()
    until(lambda: len(bench.received("hold")) == 2, "the second worker takes the run")
    let_go(bench, "x")
    assert bench.result("x") == second.pid


def test_sigterm_gives_waiting_runs_back(bench: Bench) -> None:
    """A worker that is asked to end leaves its waiting runs to others, and its row is gone."""
    first = bench.worker(*NO_END)
    bench.start(crash_flow.talk("x"), "x")
    until(
        lambda: (image := bench.image("x")) and image.head.owner, "the first worker takes the run"
    )
    first.send_signal(signal.SIGTERM)
    assert bench.finish(first) == 0
    image = bench.image("x")
    assert image is not None
    assert image.head.owner is None
    assert image.head.status in {Status.READY, Status.WAITING}
    assert bench.workers() == []
    second = bench.worker()
    talk(bench)
    assert [one["pid"] for one in bench.received("pay")] == [second.pid]
    end = bench.image("x")
    assert end is not None
    assert end.head.lapses == 0


def test_sigterm_to_the_command_gives_runs_back(bench: Bench) -> None:
    """`outlast worker` does the same: status 0, nobody owns the run, and the next worker needs no recovery."""
    command = bench.command(Path(crash_flow.__file__))
    bench.start(crash_flow.talk("x"), "x")
    until(lambda: (image := bench.image("x")) and image.head.owner, "the command takes the run")
    command.send_signal(signal.SIGTERM)
    assert bench.finish(command) == 0, bench.words()
    image = bench.image("x")
    assert image is not None
    assert image.head.owner is None
    assert bench.workers() == []


def test_sigterm_lets_a_step_end(bench: Bench) -> None:
    """A step that is under way ends and is recorded; nobody runs it again."""
    first = bench.worker()
    hold_in(bench, first)
    first.send_signal(signal.SIGTERM)
    let_go(bench, "x")
    assert bench.finish(first) == 0
    bench.worker()
    assert bench.result("x") == first.pid
    assert len(bench.received("hold")) == 1


def test_two_workers_share_fifty_runs(bench: Bench) -> None:
    """Two processes move fifty runs at the same time: each step once, and no word of a locked file."""
    workers = [bench.worker("--runs", "25") for _ in range(2)]
    labels = [f"x{number}" for number in range(50)]

    async def start_all(client) -> None:
        for label in labels:
            await client.start(crash_flow.gated(label, 4), id=label)

    bench.ask(start_all)
    # Neither may hold more than half of them, so all are held only when both take part.
    until(lambda: len(bench.received("hold")) == len(labels), "both workers take their half")
    let_go(bench, *labels)

    async def results(client) -> list[int]:
        return [await client.handle(label).result() for label in labels]

    assert bench.ask(results) == [0 + 1 + 2 + 3] * len(labels)
    shares = Counter(one["pid"] for one in bench.received("hold"))
    assert shares == {worker.pid: 25 for worker in workers}
    counted = Counter((one["label"], one["number"]) for one in bench.received("count"))
    assert counted == {(label, number): 1 for label in labels for number in range(4)}
    for worker in workers:
        assert set(bench.verdicts(worker.pid)) == {"Applied"}
    for word in ("locked", "busy", "Traceback", "ERROR", "WARNING"):
        assert word not in bench.log.read_text()
    bench.check_intact()


def talk(bench: Bench) -> None:
    """Send to the run `x` and approve what it asks; each must show effect."""

    async def send(client) -> None:
        await client.handle("x").send(crash_flow.Go, "hello")

    async def pending(client):
        return await client.approvals.list(run_id="x")

    bench.ask(send)
    (view,) = until(lambda: bench.ask(pending), "the message arrives")

    async def approve(client) -> None:
        await client.approvals.approve("x", view.approval_id, seen_sha256=view.subject_sha256)

    bench.ask(approve)
    until(
        lambda: (image := bench.image("x")) and image.head.status.closed,
        "the decision arrives",
    )
    assert bench.result("x") == f"hello {local_principal()}"


@pytest.mark.parametrize("idle", ["600", "0.05"], ids=["in memory", "parked"])
def test_client_process_wakes_the_worker(bench: Bench, idle: str) -> None:
    """Start, message and decision of another process reach a worker that would not look by itself."""
    bench.worker(*NO_END, *NO_LOOK, "--idle", idle)
    bench.start(crash_flow.talk("x"), "x")

    def at_rest() -> bool:
        image = bench.image("x")
        assert image is not None
        if idle == "600":
            return len(image.rows) > 1
        return image.head.status is Status.WAITING

    until(at_rest, "the run is taken up")
    talk(bench)
    assert len(bench.received("pay")) == 1
    check_journal(bench.rows("x"))
