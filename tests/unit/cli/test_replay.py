"""`outlast replay`, `runs export` and `runs accept` against a file in which a live worker holds runs in flight."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import Result

import outlast
from outlast.workflows import message, registry

from .conftest import World

AGENT = """
import outlast

go = outlast.Signal("go", str)

@outlast.step
async def load(n: int) -> int:
    return n

@outlast.step
async def save(n: int) -> int:
    return n

@outlast.effect(idempotent=True)
async def pay(amount: int) -> str:
    return outlast.idempotency_key()

@outlast.workflow
async def works(n: int) -> str:
    found = await load(n)
    return await then(found)

async def then(n: int) -> str:
    word = await outlast.receive(go)
    await save(n)
    return word

@outlast.workflow
async def pays(amount: int) -> str:
    await pay(amount)
    return await outlast.receive(go)

@outlast.workflow
async def rolls(n: int) -> str:
    if n < 3:
        await load(n)
        outlast.continue_as_new(rolls(n + 1))
    return await outlast.receive(go)
"""
START = """
import asyncio, agent, outlast

async def main():
    async with outlast.connect(create=True) as client:
        for n in range(3):
            await client.start(agent.works(n), id=f"works-{n}")
        await client.start(agent.pays(5), id="pays")
        await client.start(agent.rolls(1), id="rolls")
        await client.start(agent.works(9), id="over")

asyncio.run(main())
"""
SWAPPED = ("    found = await load(n)\n", "    found = await save(n)\n")
PATCHED = (
    "    found = await load(n)\n",
    '    found = await (save(n) if outlast.patched("save-instead-of-load") else load(n))\n',
)
INSERTED = ("    found = await load(n)\n", "    await save(0)\n    found = await load(n)\n")
IN_CENTS = ("    await pay(amount)\n", "    await pay(amount * 100)\n")
RAISES = ("    found = await load(n)\n", "    await load(n)\n    raise LookupError('gone')\n")
NO_ROLLS = ("async def rolls(n: int)", "async def turns(n: int)")
OTHER_TYPE = ("async def load(n: int) -> int", "async def load(n: int) -> bytes")
BROKEN = ("import outlast\n", "import outlast\nraise LookupError('no such thing')\n")
IN_FLIGHT = {"works-0", "works-1", "works-2", "pays", "rolls"}


@pytest.fixture(scope="session")
def flying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a world with a live worker, five runs that wait, and one that has ended."""
    folder = tmp_path_factory.mktemp("flying")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    (folder / "start.py").write_text(START, encoding="utf-8")
    world = World(folder)
    world.start()
    worker = world.worker()
    try:
        for run in IN_FLIGHT:
            world.until(lambda run=run: world.status(run).status == "waiting")
        world.until(lambda: world.status("over").entries == 3)
        assert world.cli("runs", "send", "over", "go", '"now"').exit_code == 0
        world.until(lambda: world.status("over").status == "completed")
        yield world
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert worker.returncode == 0


def code(folder: Path, *changes: tuple[str, str], name: str = "agent") -> str:
    """Write the agent with these changes, and return its file."""
    text = AGENT
    for former, changed in changes:
        assert text.count(former) == 1
        text = text.replace(former, changed)
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def run(world: World, *words: str) -> Result:
    """Run the command line in the world's folder, with nothing imported and nothing declared before; it leaves nothing behind."""
    with (
        patch.object(registry, "_declared", []),
        patch.object(message, "_declared", {}),
        patch.object(sys, "path", [*sys.path]),
        patch.dict(sys.modules),
        contextlib.chdir(world.folder),
    ):
        return world.cli(*words)


def replayed(world: World, *words: str) -> tuple[int, dict[str, Any]]:
    """Replay, and return exit status and document."""
    done = run(world, "replay", *words, "--json")
    return done.exit_code, json.loads(done.stdout)


def test_the_same_code_replays_all_runs_in_flight(flying: World) -> None:
    """Exit status 0, nothing is written, and the live worker keeps its runs."""
    before = {one: flying.status(one) for one in IN_FLIGHT}
    status, told = replayed(flying, "agent.py")
    assert (status, told) == (0, {"replayed": 5, "stops": [], "patches": {}})
    assert {one: flying.status(one) for one in IN_FLIGHT} == before
    text = run(flying, "replay", "agent.py")
    assert text.exit_code == 0
    assert text.stdout.strip() == "5 journals replayed, 0 would stop"


def test_changed_code_is_named_with_both_sides_and_a_patch(flying: World, tmp_path: Path) -> None:
    """Run, position, what the journal holds, what the code asks, where it waits, and what to write."""
    file = code(tmp_path, SWAPPED)
    status, told = replayed(flying, file)
    assert (status, told["replayed"]) == (1, 5)
    assert {one["run_id"] for one in told["stops"]} == {"works-0", "works-1", "works-2"}
    (one,) = [one for one in told["stops"] if one["run_id"] == "works-1"]
    assert (one["workflow"], one["generation"], one["entries"]) == ("works", 1, 3)
    assert (one["stops"], one["position"]) == ("non-determinism", 2)
    assert (one["recorded"], one["asked"]) == ("step load at r:1", "step save at r:1")
    assert one["waits"] == ["agent.py:20 in works"]
    assert one["remedy"][1].strip() == 'if outlast.patched("save-instead-of-load"):'
    assert one["remedy"][-1].startswith(
        "if save was only put before it, the `if` stands around that alone"
    )
    text = run(flying, "replay", file, "--run", "works-1")
    assert text.exit_code == 1
    assert (
        "run works-1 (workflow works, generation 1) would stop at entry 2 of 3: non-determinism"
        in text.stdout
    )
    for line in (
        "  journal  step load at r:1",
        "  code     step save at r:1",
        "  where    agent.py:20 in works",
    ):
        assert line in text.stdout.splitlines()
    assert "1 journal replayed, 1 would stop" in text.stdout
    assert "blocked until fitting code is deployed" in text.stderr


def test_the_proposed_patch_is_the_cure(flying: World, tmp_path: Path) -> None:
    """With it every run replays, and the report says which need the former way."""
    status, told = replayed(flying, code(tmp_path, PATCHED))
    assert (status, told["stops"]) == (0, [])
    assert told["patches"] == {
        "save-instead-of-load": {"changed": 0, "former": ["works-2", "works-1", "works-0"]}
    }
    text = run(flying, "replay", str(tmp_path / "agent.py")).stdout
    assert (
        "patch save-instead-of-load: 0 runs as changed, 3 the former way: works-2, works-1, works-0"
        in text
    )


def test_an_inserted_step_is_a_difference_of_what_follows(flying: World, tmp_path: Path) -> None:
    """Its id is another one's: the proposal names what came instead."""
    _, told = replayed(flying, code(tmp_path, INSERTED), "--run", "works-0")
    (one,) = told["stops"]
    assert (one["position"], one["recorded"], one["asked"]) == (
        2,
        "step load at r:1",
        "step save at r:1",
    )


def test_a_changed_argument_is_to_be_accepted(flying: World, tmp_path: Path) -> None:
    """Not a patch but an operator's word is proposed, with the command."""
    status, told = replayed(flying, code(tmp_path, IN_CENTS))
    (one,) = told["stops"]
    assert (status, one["run_id"], one["position"]) == (1, "pays", 2)
    assert (one["recorded"], one["asked"]) == ('{"amount":5}', '{"amount":500}')
    assert "outlast runs accept pays --entry 2 --reason TEXT" in one["remedy"][0]


@pytest.mark.parametrize(
    ("change", "runs", "stops", "why"),
    [
        (NO_ROLLS, {"rolls"}, "no code", "the code has no workflow 'rolls'"),
        (OTHER_TYPE, {"works-0", "works-1", "works-2"}, "undecodable", "expected"),
    ],
    ids=["a workflow that is gone", "a type that does not fit"],
)
def test_other_breaks_are_named_too(
    flying: World, tmp_path: Path, change: tuple[str, str], runs: set[str], stops: str, why: str
) -> None:
    """Each with its reason."""
    status, told = replayed(flying, code(tmp_path, change))
    assert status == 1
    assert {one["run_id"] for one in told["stops"]} == runs
    assert {one["stops"] for one in told["stops"]} == {stops}
    assert all(why in one["why"] for one in told["stops"])


def test_code_that_would_fail_a_run_is_named(flying: World, tmp_path: Path) -> None:
    """It is no stop: nothing brings the run back but a retry."""
    status, told = replayed(flying, code(tmp_path, RAISES))
    assert (status, {one["run_id"] for one in told["stops"]}) == (
        1,
        {"works-0", "works-1", "works-2"},
    )
    assert {one["stops"] for one in told["stops"]} == {"failed"}
    text = run(flying, "replay", str(tmp_path / "agent.py"), "--run", "works-1")
    assert "run works-1 (workflow works, generation 1) would fail after entry 2 of 3" in text.stdout
    assert "  LookupError: gone, raised agent.py:21 in works" in text.stdout.splitlines()
    assert "1 journal replayed, 0 would stop, 1 would fail" in text.stdout
    assert "blocked until" not in text.stderr
    assert "outlast runs retry" in text.stderr


@pytest.mark.parametrize("exits", ["sys.exit()", "sys.exit(0)", "raise SystemExit('done')"])
def test_a_module_that_ends_the_program_is_an_error(
    flying: World, tmp_path: Path, exits: str
) -> None:
    """It is no green answer; the error says what to write."""
    file = tmp_path / "script.py"
    file.write_text(f"import sys\n{AGENT}\n{exits}\n", encoding="utf-8")
    done = run(flying, "replay", str(file))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "ended the program when it was imported" in done.stderr
    assert "__main__" in done.stderr


def test_a_workflow_narrows(flying: World, tmp_path: Path) -> None:
    """One store may serve several apps."""
    status, told = replayed(flying, code(tmp_path, NO_ROLLS), "--workflow", "works")
    assert (status, told["replayed"]) == (0, 3)


def test_an_exported_journal_replays_elsewhere(flying: World, tmp_path: Path) -> None:
    """Without the store: the file holds all that is needed, of any generation."""
    file = tmp_path / "rolls.json"
    assert (
        run(flying, "runs", "export", "rolls", "--generation", "2", "-o", str(file)).exit_code == 0
    )
    exported = json.loads(file.read_text())
    assert (exported["generation"], exported["rows"][-1]["kind"]) == (2, "continued_as_new")
    closed = run(flying, "runs", "export", "over")
    other = tmp_path / "over.json"
    other.write_text(closed.stdout, encoding="utf-8")
    nowhere = ("--database", f"sqlite:///{tmp_path / 'no.db'}")
    agent = code(tmp_path)
    files = ("--file", str(file), "--file", str(other))
    status, told = replayed(flying, agent, *files, *nowhere)
    assert (status, told["replayed"]) == (0, 2)
    status, told = replayed(flying, agent, *files, "--all")
    assert (status, told["replayed"]) == (0, 7)
    elsewhere = (
        tmp_path / "swapped"
    )  # in the same file, of the same size and second, Python would find what it had compiled before
    elsewhere.mkdir()
    status, told = replayed(flying, code(elsewhere, SWAPPED), *files, *nowhere)
    assert (status, [one["run_id"] for one in told["stops"]]) == (1, ["over"])
    assert flying.cli("runs", "export", "rolls", "--generation", "9").exit_code == 1


def test_an_export_with_code_is_a_golden_journal(flying: World, tmp_path: Path) -> None:
    """With where that code stands after each turn, for tests."""
    done = run(flying, "runs", "export", "works-0", "--module", "agent.py")
    golden = json.loads(done.stdout)
    assert len(golden["stands"]) == len(golden["rows"]) == 3
    assert golden["stands"][-1]["receivers"] == {"go": 1}
    assert json.loads(run(flying, "runs", "export", "works-0").stdout)["stands"] == []


def test_a_golden_export_is_compared_with_where_the_code_stands(
    flying: World, tmp_path: Path
) -> None:
    """Code that a worker would go on with, and that asks for something else after what is recorded, is found by it alone."""
    kept, plain = str(tmp_path / "works.json"), str(tmp_path / "plain.json")
    assert run(flying, "runs", "export", "works-0", "--module", "agent.py", "-o", kept).exit_code == 0  # fmt: skip
    assert run(flying, "runs", "export", "works-0", "-o", plain).exit_code == 0
    assert replayed(flying, "agent.py", "--file", kept)[0] == 0
    other = code(tmp_path, ("    word = await outlast.receive(go)\n", "    word = str(await save(n))\n"))  # fmt: skip
    assert replayed(flying, other, "--file", plain)[0] == 0
    status, told = replayed(flying, other, "--file", kept)
    assert status == 1
    (one,) = told["stops"]
    assert one["stops"] == "stands elsewhere"
    assert one["why"].startswith("after 3 turns ")
    text = run(flying, "replay", other, "--file", kept)
    assert "replays, and does not stand where its golden journal says" in text.stdout
    assert "    run:    " in text.stdout
    assert "1 journal replayed, 0 would stop, 1 stands elsewhere" in text.stdout
    assert "blocked until" not in text.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("replay",), 2, "MODULE"),
        (("replay", "nowhere.py"), 1, "there is no file"),
        (("replay", "agent.py", "--run", "never"), 1, "there is no such run"),
        (("replay", "agent.py", "--file", "nothing.json"), 1, "nothing.json cannot be read"),
        (("replay", "agent.py", "--file", "agent.py"), 1, "agent.py: this is no golden journal"),
        (("runs", "accept", "pays"), 2, "--entry N"),
        (("runs", "accept", "pays", "--entry", "2"), 2, "--reason"),
        (("runs", "accept", "pays", "--entry", "0", "--reason", "x"), 1, "entry 0 is started"),
        (("runs", "accept", "never", "--history", "9", "--reason", "x"), 1, "no such run"),
        (("runs", "accept", "pays", "--any-build"), 2, "--reason"),
        (("runs", "accept", "never", "--any-build", "--reason", "x"), 1, "no such run"),
        (("runs", "export", "never"), 1, "there is no such run"),
    ],
)
def test_what_was_typed_wrong_is_said(
    flying: World, words: tuple[str, ...], status: int, said: str
) -> None:
    """Exit status 2 for what cannot be meant, 1 for what is not there."""
    done = run(flying, *words)
    assert done.exit_code == status
    assert said in done.stderr + done.stdout


def test_an_error_of_the_module_is_the_authors(flying: World, tmp_path: Path) -> None:
    """Its traceback, without ours."""
    done = subprocess.run(
        [sys.executable, "-m", "outlast.cli", "replay", code(tmp_path, BROKEN, name="broken")],
        env=flying.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "LookupError: no such thing" in done.stderr
    assert "outlast/cli" not in done.stderr


def test_generations_are_shown_and_read(flying: World) -> None:
    """`runs show` lists them, `runs journal` prints any of them."""
    text = flying.cli("runs", "show", "rolls").stdout
    assert "3 in generation 3" not in text
    assert "in generation 3" in text
    assert "generation 2: 4 entries, continued as new at" in text
    assert "runs journal rolls --generation N" in text
    document = json.loads(flying.cli("runs", "show", "rolls", "--json").stdout)
    assert [one["generation"] for one in document["generations"]] == [3, 2, 1]
    assert [one["ended"] for one in document["generations"]] == ["", *["continued as new"] * 2]
    first = json.loads(flying.cli("runs", "journal", "rolls", "--generation", "1", "--json").stdout)
    assert [one["kind"] for one in first] == [
        "started",
        "taken",
        "step_completed",
        "continued_as_new",
    ]
    assert first[-1]["body"]["arguments"] == {"n": 2}
    assert flying.cli("runs", "journal", "rolls", "--generation", "7").exit_code == 1


def test_a_run_that_changed_code_has_stopped_is_accepted_and_goes_on(
    flying: World, tmp_path: Path
) -> None:
    """From the command that `replay` and `explain` print to the run's end, with real processes."""
    world = World(tmp_path)
    (tmp_path / "start.py").write_text(START, encoding="utf-8")
    code(tmp_path)
    world.start()
    first = world.worker()
    world.until(lambda: world.status("pays").status == "waiting")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    code(tmp_path, IN_CENTS)
    second = world.worker()
    try:
        assert world.cli("runs", "send", "pays", "go", '"now"').exit_code == 0
        world.until(lambda: world.status("pays").status == "blocked")
        told = world.cli("runs", "explain", "pays").stdout
        assert "outlast runs accept pays --entry 2 --reason TEXT" in told
        done = world.cli("runs", "accept", "pays", "--entry", "2", "--reason", "cents now")
        assert done.exit_code == 0, done.stderr
        world.until(lambda: world.status("pays").status == "completed")
    finally:
        second.kill()
        second.communicate(timeout=30)
    document = json.loads(world.cli("runs", "journal", "pays", "--json").stdout)
    (accepted,) = [one["body"] for one in document if one["kind"] == "accepted"]
    assert (accepted["entry"], accepted["reason"]) == (2, "cents now")
    assert accepted["by"]


def test_a_run_at_its_limit_is_explained(tmp_path: Path) -> None:
    """What is said, with what can be typed; and before that, that the journal grows."""
    url = f"sqlite:///{tmp_path / 'limit.db'}"

    @outlast.step
    async def tick(n: int) -> int:
        return n

    @outlast.workflow
    async def ticks(count: int) -> str:
        for n in range(count):
            await tick(n)
        return await outlast.receive(outlast.Signal("go", str))

    async def main() -> None:
        limits = outlast.HistoryLimits(warn_entries=10, most_entries=30)
        async with outlast.open(url, workflows=[ticks], history=limits) as app:
            long = await app.start(ticks(12), id="long")
            full = await app.start(ticks(100), id="full")
            while (await full.status()).status != "blocked" or (await long.status()).entries < 15:
                await asyncio.sleep(0.05)

    asyncio.run(main())
    world = World(tmp_path)
    words = ("-d", url)
    told = json.loads(world.cli("runs", "explain", "full", "--json", *words).stdout)
    assert "Its journal has come to the limit" in told["text"]
    assert {one.rpartition(" runs ")[2] for one in told["commands"]} >= {
        "accept full --history 60 --reason TEXT",
        "cancel full --reason TEXT",
        "journal full",
    }
    long = json.loads(world.cli("runs", "explain", "long", "--json", *words).stdout)
    assert any(one["kind"] == "growth" for one in long["waits"])
    assert "the workflow should continue as new" in long["text"]
