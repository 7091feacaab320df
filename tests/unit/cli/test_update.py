"""`outlast runs update` against a worker that lives in the test, and what is told of runs that take updates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import outlast
from outlast.app import open_store
from outlast.cli.main import app
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import Workflow
from outlast.workflows.registry import Registry

add = outlast.Update("add to it", int, int)


async def _counter() -> int:
    """Count until ten."""
    total = 0

    def check(n: int) -> None:
        if n < 0:
            raise ValueError("only more")

    def put(n: int) -> int:
        nonlocal total
        total += n
        return total

    outlast.on_update(add, put, validator=check)
    await outlast.wait_condition(lambda: total >= 10)
    return total


COUNTER = Workflow(_counter, "counter")


class Alone(outlast.App):
    """Client and worker of one workflow, whatever else was imported."""

    def __init__(self, url: str) -> None:
        options = WorkerOptions(library="0", idle=timedelta(milliseconds=100))
        super().__init__(url, workflows=None, tenant="default", principal="me", options=options)

    async def __aenter__(self) -> Alone:
        """Open the store, and start the worker."""
        await self._start_worker(await open_store(self._url), Registry([COUNTER]))
        return self


def with_app(tmp_path: Path, test: Callable[[Alone, Callable[..., Awaitable[Result]]], Any]) -> Any:
    """Run a test on an app, with a way to type commands beside it."""
    url = f"sqlite:///{tmp_path / 'cli.db'}"
    runner = CliRunner(env={"OUTLAST_DATABASE_URL": url, "COLUMNS": "200"})

    async def typed(*words: str) -> Result:
        return await asyncio.to_thread(runner.invoke, app, list(words))

    async def main() -> Any:
        async with Alone(url) as alone:
            await alone.start(COUNTER(), id="counted")
            return await test(alone, typed)

    return asyncio.run(main())


def test_the_result_is_printed_as_json(tmp_path: Path) -> None:
    """And nothing else; the same id again prints the same."""

    async def test(alone: Alone, typed: Any) -> Any:
        first = await typed("runs", "update", "counted", "add to it", "4", "--id", "once")
        again = await typed("runs", "update", "counted", "add to it", "4", "--id", "once")
        return first, again

    first, again = with_app(tmp_path, test)
    assert (first.exit_code, json.loads(first.stdout), first.stderr) == (0, 4, "")
    assert again.stdout == first.stdout


def test_a_refusal_is_told_in_words(tmp_path: Path) -> None:
    """A value that the validator, or the type, does not take; one that is no JSON; a run that is not there."""

    async def test(alone: Alone, typed: Any) -> Any:
        return [
            await typed("runs", "update", *words)
            for words in (
                ("counted", "add to it", "--", "-1"),
                ("counted", "add to it", '"four"'),
                ("counted", "add to it", "four"),
                ("nowhere", "add to it", "4"),
            )
        ]

    negative, text, broken, nowhere = with_app(tmp_path, test)
    assert (negative.exit_code, text.exit_code, broken.exit_code, nowhere.exit_code) == (1, 1, 2, 1)
    assert "the update 'add to it' was rejected: ValueError: only more" in negative.stderr
    assert "expected int" in text.stderr
    assert "is not JSON" in broken.stderr
    assert "no such run" in nowhere.stderr


def test_a_run_that_takes_updates_says_so(tmp_path: Path) -> None:
    """In lists, and where it is explained, with what to type."""

    async def test(alone: Alone, typed: Any) -> Any:
        while not (await alone.handle("counted").status()).waits:
            await asyncio.sleep(0.05)
        return await typed("runs", "list"), await typed("runs", "explain", "counted")

    listed, explained = with_app(tmp_path, test)
    assert "update add to it" in listed.stdout
    assert "It takes the update 'add to it'" in explained.stdout
    assert "outlast runs update counted 'add to it' JSON" in explained.stdout


def test_who_does_not_wait_for_ever_is_told_how_to_ask_again(tmp_path: Path) -> None:
    """The update stays, and the same id waits for its answer."""

    async def test(alone: Alone, typed: Any) -> Any:
        await alone.handle("counted").pause("maintenance")
        while (await alone.handle("counted").status()).status != "paused":
            await asyncio.sleep(0.02)
        words = ("runs", "update", "counted", "add to it", "4", "--id", "once")
        late = await typed(*words, "--timeout", "100ms")
        unnamed = await typed(*words[:5], "--timeout", "100ms")
        await alone.handle("counted").resume()
        return late, unnamed, await typed(*words, "--timeout", "1h")

    late, unnamed, again = with_app(tmp_path, test)
    assert (late.exit_code, late.stdout) == (1, "")
    assert "has not answered the update 'add to it' in time" in late.stderr
    assert "outlast runs explain counted" in late.stderr
    assert "outlast runs update counted 'add to it' 4 --id once" in late.stderr
    assert "outlast runs update counted 'add to it' 4 --id " in unnamed.stderr
    assert (again.exit_code, json.loads(again.stdout)) == (0, 4)
