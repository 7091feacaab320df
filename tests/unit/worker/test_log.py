"""The worker's log: each run's way, and what somebody should act on, with run, operation and command."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import logging
from datetime import timedelta

import pytest

import outlast
from outlast.store.change import RunHead, Status
from outlast.testing import Simulation, WorkerOptions

go = outlast.Signal("go for the log", int)
TIMEOUT = timedelta(seconds=5)


def cannot_say(kind: str) -> outlast.Unknown:
    return outlast.Unknown("it is away \ud800")


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=2))
async def fail(kind: str) -> int:
    raise OSError("no route")


async def fail_together(kind: str) -> int:
    raise ExceptionGroup("two went wrong", [OSError("no route"), ValueError("no port")])


TWICE = outlast.RetryPolicy(maximum_attempts=2)
together = outlast.step(retry=TWICE, name="together")(fail_together)
afar = outlast.step(retry=TWICE, name="afar", queue="log")(fail_together)
doubted = outlast.effect(start_to_close_timeout=TIMEOUT, name="doubted")(fail_together)


async def lose(kind: str) -> int:
    raise OSError("cut off")


never = outlast.effect(start_to_close_timeout=TIMEOUT, name="never")(lose)


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT)
async def find_again(result: int) -> None: ...


undoable = outlast.effect(start_to_close_timeout=TIMEOUT, name="undoable", compensate=find_again)(
    lose
)
probed = outlast.effect(start_to_close_timeout=TIMEOUT, probe=cannot_say, name="probed")(lose)


@outlast.workflow
async def flow(kind: str) -> int:
    match kind:
        case "signal":
            return await outlast.receive(go)
        case "fail":
            return await fail(kind)
        case "together":
            return await together(kind)
        case "afar":
            return await afar(kind)
        case "doubted":
            return await doubted(kind)
        case "undoable":
            return await undoable(kind)
        case "never":
            return await never(kind)
        case _:
            return await probed(kind)


def log_of(kind: str, caplog: pytest.LogCaptureFixture, *, then: int | None = None) -> list[str]:
    """Return what is logged about a run until it rests; with `then`, until it has that message and has ended."""
    caplog.set_level(logging.INFO, "outlast.worker")

    def rests(head: RunHead) -> bool:
        return head.owner is None and head.status not in {Status.READY, Status.RUNNING}

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(options=WorkerOptions(library="simulated", queues=("log",)))
        handle = await sim.client.start(flow(kind), id="r7")
        await sim.until("r7", rests)
        if then is not None:
            await handle.send(go, then)
            await sim.closed("r7")

    Simulation([fail, together, afar, doubted, find_again, undoable, never, probed, flow]).run(
        scenario
    )
    return [one.getMessage() for one in caplog.records if "r7" in one.getMessage()]


def test_a_run_is_taken_up_parked_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Each station of a run is a line that names it."""
    lines = log_of("signal", caplog, then=5)
    assert lines[0] == "run r7: taken up, 1 entries of workflow flow"
    assert "run r7: parked, waiting: message 'go for the log'" in lines
    assert lines[-1] == "run r7: completed"


def test_a_failure_names_run_operation_and_place(caplog: pytest.LogCaptureFixture) -> None:
    """A failed attempt, the last one, and the failed run."""
    lines = log_of("fail", caplog)
    assert any(
        "run r7: step fail (r:1) failed, attempt 1: OSError: no route" in one for one in lines
    )
    (final,) = [one for one in lines if "failed for good" in one]
    assert "run r7: step fail (r:1)" in final
    assert "at test_log.py:" in final
    assert lines[-1].startswith("run r7: failed: OSError: no route")


def test_a_group_of_failures_is_logged_with_what_is_in_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each attempt, here and in another worker, the last one too; and a doubt: the group alone does not say what failed."""
    for kind in ("together", "afar"):
        told = [one for one in log_of(kind, caplog) if f"step {kind} (r:1) failed" in one]
        assert len(told) == 2
        assert all(
            "two went wrong: OSError: no route; ValueError: no port; the " in one for one in told
        )
        caplog.clear()
    (doubt,) = [one for one in log_of("doubted", caplog) if "in doubt:" in one and "doubted" in one]
    assert "ExceptionGroup: two went wrong: OSError: no route; ValueError: no port" in doubt


def test_doubt_says_what_to_type(caplog: pytest.LogCaptureFixture) -> None:
    """The warning holds the command that settles it."""
    (line,) = [one for one in log_of("never", caplog) if "in doubt:" in one and "never" in one]
    assert line.startswith("run r7: effect never (r:1) is in doubt: ")
    typed = "`outlast runs resolve r7 --operation r:1 --reason TEXT` with --applied JSON, --not-applied or --failed TEXT"
    assert line.endswith(typed)
    (line,) = [one for one in log_of("undoable", caplog) if "effect undoable (r:1) is in" in one]
    assert line.endswith(f"{typed}, or --compensate --result JSON to have it undone")


def test_each_ask_of_a_probe_that_cannot_say_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever watches sees why nothing moves, before the last ask."""
    lines = [one for one in log_of("probed", caplog) if "the probe cannot say whether" in one]
    assert len(lines) == 5
    assert "run r7: effect probed (r:1): asked 1 of 5 times" in lines[0]
    assert lines[0].endswith("it is away \\ud800")
