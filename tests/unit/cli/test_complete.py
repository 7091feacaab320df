"""`outlast runs complete`, and how a step that was handed out is told of."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import outlast
from outlast.app import open_store
from outlast.cli.main import app as command
from outlast.workflows.registry import Registry

tokens: list[str] = []


@outlast.step(start_to_close_timeout=timedelta(hours=1), heartbeat_timeout=timedelta(minutes=30))
async def render_by_hand() -> dict[str, int]:
    """Hand the token out."""
    tokens.append(outlast.completion_token())
    outlast.complete_later()


@outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(hours=1)))
async def crawl_slowly() -> int:
    """Say how far it is, and fail."""
    outlast.heartbeat({"page": 7})
    raise OSError("down")


@outlast.workflow
async def film_by_hand(how: str) -> str:
    """Return what was said from outside."""
    if how == "crawl":
        return f"{await crawl_slowly()}"
    try:
        return f"{(await render_by_hand())['frames']} frames"
    except RuntimeError as error:
        return f"cut: {error}"


CODE = [render_by_hand, crawl_slowly, film_by_hand]


class Desk:
    """A database on which a worker has left a run that waits for its completion.

    Args:
        url: Of the database.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def cli(self, *words: str) -> Result:
        """Run a command in this process."""
        return CliRunner(env={"OUTLAST_DATABASE_URL": self.url}).invoke(command, list(words))

    def work(self, how: str = "render", *, ends: bool = False) -> Any:
        """Let a worker work until the run waits, or has ended."""

        async def main() -> Any:
            app = outlast.open(self.url, idle=timedelta(milliseconds=20), principal="worker")
            # What other tests of this process have declared is none of its business.
            await app._start_worker(await open_store(self.url), Registry(CODE))
            try:
                handle = await app.start(film_by_hand(how), id="film")
                if ends:
                    return await handle.result()
                while (at := await handle.status()).worker is not None or at.status != "waiting":
                    await asyncio.sleep(0.01)
                return None
            finally:
                await app.__aexit__()

        return asyncio.run(main())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A run that waits."""
    tokens.clear()
    desk = Desk(f"sqlite:///{tmp_path / 'agent.db'}")
    desk.work()
    return desk


def test_a_value_completes_the_step(desk: Desk) -> None:
    """Accepted without a worker; a second answer is accepted too, and the first one counts."""
    (token,) = tokens
    first = desk.cli("runs", "complete", token, "--value", '{"frames": 24}')
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout.startswith("accepted: ")
    assert desk.cli("runs", "complete", token, "--failed", "too late").exit_code == 0
    assert desk.work(ends=True) == "24 frames"
    journal = json.loads(desk.cli("runs", "journal", "film", "--json").stdout)
    assert [one["kind"] for one in journal[2:]] == ["step_completed", "alarm_raised", "completed"]
    gone = desk.cli("runs", "complete", token, "--value", "1")
    assert gone.exit_code == 1
    assert "has ended" in gone.stderr


def test_a_text_fails_the_step(desk: Desk) -> None:
    """And the same answer under its id counts once."""
    (token,) = tokens
    for _ in range(2):
        answer = desk.cli("runs", "complete", token, "--failed", "out of light", "--id", "mail-1")
        assert answer.exit_code == 0
    assert desk.work(ends=True) == "cut: out of light"
    journal = json.loads(desk.cli("runs", "journal", "film", "--json").stdout)
    assert [one["kind"] for one in journal[2:]] == ["step_failed", "completed"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "say one of --value JSON and --failed TEXT"),
        (["--value", "1", "--failed", "x"], 2, "say one of --value JSON and --failed TEXT"),
        (["--value", "frames"], 2, "is not JSON"),
    ],
)
def test_what_is_typed_wrong_changes_nothing(
    desk: Desk, words: list[str], status: int, said: str
) -> None:
    """It is said what is wrong, and the step waits on."""
    result = desk.cli("runs", "complete", tokens[0], *words)
    assert result.exit_code == status
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_what_is_no_token_is_said_to_be_none(desk: Desk) -> None:
    """With what to give instead."""
    result = desk.cli("runs", "complete", "tok", "--value", "1")
    assert result.exit_code == 1
    assert "this is no completion token" in result.stderr
    assert "the whole line" in result.stderr


def test_a_run_that_waits_for_somebody_outside_is_told_of(desk: Desk) -> None:
    """List, show and explain name the step, until when, and what an operator can type."""
    assert "completion r:1 until" in desk.cli("runs", "list").stdout
    shown = desk.cli("runs", "show", "film").stdout
    assert "open       step render_by_hand (r:1): handed out" in shown
    told = desk.cli("runs", "explain", "film").stdout
    assert "Step render_by_hand (r:1) was handed out, and waits until" in told
    assert "runs resolve film --operation r:1 --applied RESULT-AS-JSON" in told
    assert "only a message to it can make true" not in told
    applied = desk.cli(
        "runs", "resolve", "film", "--operation", "r:1", "--applied", '{"frames": 1}'
    )
    assert applied.exit_code == 0
    assert desk.work(ends=True) == "1 frames"


def test_a_beat_says_that_somebody_works_on_it(desk: Desk) -> None:
    """Accepted without a worker, with details or without; explain says when it was, what was said and what silence means."""
    (token,) = tokens
    before = desk.cli("runs", "explain", "film").stdout
    assert "It was last heard of at" in before
    assert "if nothing is heard by" in before
    assert "it counts as failed" in before
    for words in (("--details", '{"frame": 7}'), ()):
        beat = desk.cli("runs", "heartbeat", token, *words)
        assert (beat.exit_code, beat.stdout, beat.stderr) == (0, "heard\n", "")
    told = " ".join(desk.cli("runs", "explain", "film").stdout.split())
    assert 'was handed out and said {"frame": 7}, and waits until' in told
    document = json.loads(desk.cli("runs", "show", "film", "--json").stdout)
    (operation,) = document["operations"]
    assert (operation["beats"], operation["progress"]) == (2, {"frame": 7})
    assert operation["heard_at"] < operation["silent_at"] < operation["due_at"]
    bad = desk.cli("runs", "heartbeat", token, "--details", "frame")
    assert bad.exit_code == 2
    assert "is not JSON" in " ".join(bad.stderr.replace("│", " ").split())
    assert desk.cli("runs", "complete", token, "--value", '{"frames": 24}').exit_code == 0
    assert desk.work(ends=True) == "24 frames"
    gone = desk.cli("runs", "heartbeat", token)
    assert gone.exit_code == 1
    assert "has ended" in gone.stderr
    assert "this is no completion token" in desk.cli("runs", "heartbeat", "tok").stderr


def test_what_a_body_has_said_is_shown(tmp_path: Path) -> None:
    """The details of its last heartbeat that were kept."""
    desk = Desk(f"sqlite:///{tmp_path / 'agent.db'}")
    desk.work("crawl")
    assert (
        'OSError: down and said {"page": 7}; attempt 2'
        in desk.cli("runs", "explain", "film").stdout
    )
    document = json.loads(desk.cli("runs", "show", "film", "--json").stdout)
    (operation,) = document["operations"]
    assert operation["progress"] == {"page": 7}
