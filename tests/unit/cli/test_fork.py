"""`outlast runs fork` and `outlast runs retry` against a database that a real worker made."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import World


def run_worker(world: World, run: str, status: str) -> None:
    """Let a worker bring a run to its end."""
    worker = world.worker()
    try:
        world.until(lambda: world.status(run).status == status)
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    finally:
        worker.kill()


def test_a_fork_is_made_shown_and_run(world: World) -> None:
    """The new run says what it is a fork of, and does the same."""
    made = world.cli("runs", "fork", "plain", "--at", "2", "--id", "plain-2", "--reason", "to see")
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith(
        "run plain-2 is a fork of run plain; see outlast runs show plain-2"
    )
    document = json.loads(world.cli("runs", "show", "plain-2", "--json").stdout)
    assert document["forked_from"].startswith("of plain at 2 by ")
    assert document["forked_from"].endswith(
        ": to see; effects, children and messages that it does not know: refuse"
    )
    assert document["last_entries"][-1]["kind"] == "forked"
    shown = world.cli("runs", "show", "plain-2").stdout
    assert f"fork       {document['forked_from']}" in shown
    run_worker(world, "plain-2", "completed")
    assert json.loads(world.cli("runs", "show", "plain-2", "--json").stdout)["result"] == "done"
    assert json.loads(world.cli("runs", "show", "plain", "--json").stdout)["forked_from"] == ""


def test_an_outcome_is_given_as_json(world: World) -> None:
    """A step's operation and its value; anything else is typed wrong."""
    for wrong in ("r:1", "=5", "r:1=five"):
        typed = ["runs", "fork", "retry", "--outcome", wrong, "--id", "x", "--reason", "to see"]
        assert world.cli(*typed).exit_code == 2
    none = world.cli(
        "runs", "fork", "retry", "--outcome", "r:1=5", "--id", "x", "--reason", "to see"
    )
    assert none.exit_code == 1
    assert "r:1 is no step that has an outcome" in none.stderr
    world.cli("runs", "resolve", "retry", "--operation", "r:1", "--applied", "5")
    run_worker(world, "retry", "completed")
    given = world.cli(
        *("runs", "fork", "retry", "--outcome", "r:1=7", "--id", "x", "--reason", "not five"),
        *("--effects", "same-key", "--generation", "1"),
    )
    assert given.exit_code == 0, given.output
    document = json.loads(world.cli("runs", "show", "x", "--json").stdout)
    assert "with another outcome of r:1 by " in document["forked_from"]
    assert document["forked_from"].endswith("children and messages that it does not know: same-key")
    entries = json.loads(world.cli("runs", "journal", "x", "--json").stdout)
    assert [(one["kind"], one["body"].get("value")) for one in entries[2:3]] == [
        ("step_completed", 7)
    ]
    # Where the code is named, the value is checked by it. In a process of its own, which knows no other code.
    typed = ["runs", "fork", "retry", "-m", "agent.py", "--effects", "same-key", "--reason", "r"]
    for value, code in (('"many"', 1), ("8", 0)):
        checked = subprocess.run(
            [sys.executable, "-m", "outlast.cli", *typed, "--outcome", f"r:1={value}", "--id", "y"],
            cwd=world.folder,
            env=world.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == code, checked.stderr
        assert ("does not fit the result of step" in checked.stderr) == bool(code)


def test_a_failed_run_offers_a_retry_and_names_the_latest(world: World) -> None:
    """In what is shown and in what is explained; the document has both."""
    offered = "outlast runs retry bad --reason TEXT"
    assert f"to do it again from there: {offered}" in world.cli("runs", "show", "bad").stdout
    assert offered in world.cli("runs", "explain", "bad").stdout
    assert json.loads(world.cli("runs", "show", "bad", "--json").stdout)["retry"] is None
    assert world.cli("runs", "retry", "bad", "--reason", "mended").exit_code == 0
    shown = world.cli("runs", "show", "bad").stdout
    assert "retry      bad/retry-1, ready" in shown
    assert offered not in shown
    told = world.cli("runs", "explain", "bad").stdout
    assert "It is being done again as run bad/retry-1, which is ready." in told
    assert offered not in told
    again = world.cli("runs", "retry", "bad", "--reason", "mended")
    assert "run bad is being retried already, as bad/retry-1, which is ready" in again.stderr


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        (["fork", "nobody", "--id", "x", "--reason", "r"], 1, "there is no such run"),
        (["fork", "plain", "--at", "99", "--id", "x", "--reason", "r"], 1, "from 1 to 2"),
        (["fork", "plain", "--id", "x"], 2, "--reason"),
        (["fork", "plain", "--id", "x", "--reason", "r", "--effects", "same_key"], 2, "same-key"),
        (["fork", "plain", "bad", "--id", "x", "--reason", "r"], 2, "'{run}/mended'"),
        (["retry", "plain", "--reason", "r"], 1, "ended as completed"),
        (["retry", "timer", "--reason", "r"], 1, "it is waiting"),
        (["retry", "bad"], 2, "--reason"),
        (["retry", "bad", "plain", "--id", "x", "--reason", "r"], 2, "--id names one run"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(world: World, typed: list[str], code: int, words: str) -> None:
    """Exit status 2 for what is typed wrong, 1 for what does not go; with what to do."""
    result = world.cli("runs", *typed)
    assert result.exit_code == code
    assert words in result.stderr


def test_each_of_several_retries_has_its_answer(world: World) -> None:
    """One that went, one that has a result, one that there is not; the exit status tells that some did not go."""
    result = world.cli("runs", "retry", "plain", "bad", "nobody", "--reason", "mended")
    assert result.exit_code == 1
    (said,) = result.stdout.splitlines()
    assert said.startswith("run bad/retry-1 retries run bad; see outlast runs show bad/retry-1")
    assert "ended as completed (run plain)" in result.stderr
    assert "there is no such run (run nobody)" in result.stderr
    other = world.cli(
        "runs", "retry", "bad", "--reason", "anew", "--id", "mine", "--effects", "new-key"
    )
    assert other.exit_code == 0, other.output
    assert world.status("mine").status == "ready"
    run_worker(world, "mine", "failed")


def test_each_of_several_forks_has_its_id_and_its_answer(world: World) -> None:
    """`{run}` stands for the run's own id; one that is not there stops no other, and one that is named twice is forked once."""
    result = world.cli(
        *("runs", "fork", "plain", "nobody", "bad", "plain", "--at", "2"),
        *("--id", "{run}/again", "--reason", "new model"),
    )
    assert result.exit_code == 1
    assert [line.partition(";")[0] for line in result.stdout.splitlines()] == [
        "run plain/again is a fork of run plain",
        "run bad/again is a fork of run bad",
    ]
    assert "there is no such run (run nobody)" in result.stderr
    assert [world.status(name).status for name in ("plain/again", "bad/again")] == ["ready"] * 2


def test_a_fork_is_a_command_of_its_own_too(world: World) -> None:
    """`outlast fork` is `outlast runs fork`."""
    made = world.cli("fork", "plain", "--id", "short", "--reason", "to see")
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("run short is a fork of run plain")


def test_help_names_both(world: World) -> None:
    """As all commands on runs."""
    listed = subprocess.run(
        [Path(sys.executable).with_name("outlast"), "runs", "--help"], env=world.environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    for name in ("fork", "retry"):
        assert f" {name} " in listed.stdout
