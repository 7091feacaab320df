"""`outlast runs` against a database that a real worker made."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.main import app

from .conftest import STANDING, World


def test_list_is_one_json_document(world: World) -> None:
    """`--json` prints every run with stable field names, and nothing else."""
    result = world.cli("runs", "list", "--json")
    found = {one["run_id"]: one for one in json.loads(result.stdout)}
    assert {run: one["status"] for run, one in found.items()} == STANDING
    assert set(found["doubt"]) == {
        "run_id", "workflow", "status", "reason", "generation", "entries", "created_at",
        "changed_at", "wake_at", "worker", "waits",
    }  # fmt: skip
    assert found["doubt"]["created_at"].endswith("Z")
    assert result.stderr == ""


def test_list_narrows(world: World) -> None:
    """Status, workflow and limit narrow the list."""
    blocked = json.loads(world.cli("runs", "list", "--status", "blocked", "--json").stdout)
    assert [one["run_id"] for one in blocked] == ["doubt"]
    assert len(json.loads(world.cli("runs", "list", "--limit", "2", "--json").stdout)) == 2
    assert json.loads(world.cli("runs", "list", "--workflow", "other", "--json").stdout) == []
    assert world.cli("runs", "list", "--status", "nonsense").exit_code == 2
    assert json.loads(world.cli("runs", "list", "--workflow", "\udcff", "--json").stdout) == []
    assert world.cli("runs", "list", "--limit", "9" * 20).exit_code == 2
    no_such = world.cli("runs", "journal", "plain", "--generation", "9" * 20)
    assert "cannot be read" not in no_such.output


def test_table_says_what_runs_wait_for(world: World) -> None:
    """The table names message, approval and effect in doubt."""
    text = world.cli("runs", "list").stdout
    for words in ("message go", "approval 1~r:1", "in doubt r:1", "retry r:1", "timer r:1"):
        assert words in text


def test_show_has_result_failure_and_entries(world: World) -> None:
    """A closed run shows how it ended."""
    plain = json.loads(world.cli("runs", "show", "plain", "--json").stdout)
    assert (plain["result"], plain["failure"]) == ("done", None)
    assert plain["last_entries"][-1]["kind"] == "completed"
    bad = json.loads(world.cli("runs", "show", "bad", "--json").stdout)
    assert bad["failure"]["type"] == "RuntimeError"
    assert "RuntimeError: no good" in world.cli("runs", "show", "bad").stdout


def test_show_tells_when_outcomes_are_written(world: World) -> None:
    """As the run was started; `sync` where nothing was said."""
    assert json.loads(world.cli("runs", "show", "plain", "--json").stdout)["durability"] == "sync"
    assert "durability sync" in world.cli("runs", "show", "plain").stdout
    exits = outlast.workflow(durability="exit", name="exits")(_nothing)

    async def run() -> None:
        async with outlast.open(world.url, workflows=[exits]) as opened:
            await opened.run(exits(), id="exits")

    asyncio.run(run())
    assert "durability exit" in world.cli("runs", "show", "exits").stdout


async def _nothing() -> None:
    """Return at once."""


def test_show_has_open_operations(world: World) -> None:
    """An effect in doubt is shown with its key and arguments."""
    doubt = json.loads(world.cli("runs", "show", "doubt", "--json").stdout)
    (operation,) = doubt["operations"]
    assert operation["state"] == "in doubt"
    assert operation["arguments"] == {"amount": 5}
    assert len(operation["key"]) == 32


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("signal", ["the message 'go'", "runs send signal go JSON"]),
        ("timer", ["Timer r:1 is due at", " min"]),
        ("retry", ["Step flaky (r:1) failed", "ConnectionError: no route", "attempt"]),
        ("doubt", ["pay (r:1) is in doubt", '{"amount": 5}', "cut off", "runs resolve doubt --operation r:1 --not-applied"]),
        ("approval", ["role boss", "approvals approve approval '1~r:1'", "expires at"]),
        ("plain", ["ended as completed"]),
        ("bad", ["ended as failed", "RuntimeError: no good"]),
    ],
)  # fmt: skip
def test_explain(world: World, run: str, words: list[str]) -> None:
    """Each kind of wait is told in words, with the command to type."""
    text = world.cli("runs", "explain", run).stdout
    assert [one for one in words if one not in text] == []
    assert ("No live worker has registered workflow flow" in text) == (run not in {"plain", "bad"})


def test_explain_has_a_document(world: World) -> None:
    """The same as data: kinds, deadlines, commands; commands name the store that was named."""
    result = world.cli("runs", "explain", "approval", "--json", "-d", world.url)
    document = json.loads(result.stdout)
    assert [one["kind"] for one in document["waits"]] == ["approval", "worker"]
    assert document["commands"][1] == f"outlast -d {world.url} approvals approve approval '1~r:1'"
    assert document["waits"][0]["until"].endswith("Z")


def test_journal(world: World) -> None:
    """The journal is printed in order with decoded bodies."""
    entries = json.loads(world.cli("runs", "journal", "doubt", "--json").stdout)
    kinds = [one["kind"] for one in entries]
    assert kinds == ["started", "taken", "effect_intended", "effect_in_doubt"]
    assert [one["seq"] for one in entries] == [0, 1, 2, 3]
    assert entries[2]["body"]["effective"] == {"amount": 5}
    assert entries[2]["operation"] == "r:1"
    text = world.cli("runs", "journal", "doubt").stdout
    assert "effect_in_doubt" in text
    assert "cut off" in text


@pytest.mark.parametrize("command", ["list", "show retry", "explain retry", "journal approval", "list --json", "journal approval --json"])  # fmt: skip
def test_terminal_is_not_directed(world: World, command: str) -> None:
    """No control or direction character of stored text reaches the terminal."""
    text = world.cli("runs", *command.split()).stdout
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text


def test_send(world: World) -> None:
    """A message is accepted; the same id again is the same message."""
    for _ in range(2):
        assert world.cli("runs", "send", "signal", "go", '"now"', "--id", "m1").exit_code == 0
    shown = json.loads(world.cli("runs", "show", "signal", "--json").stdout)
    assert shown["unread_messages"] == 1
    assert "The message 'go' has arrived" in world.cli("runs", "explain", "signal").stdout


def test_send_refuses_what_is_no_json(world: World) -> None:
    """Text without quotes is a usage error that says so."""
    result = world.cli("runs", "send", "signal", "go", "now")
    assert result.exit_code == 2
    assert "quotes" in result.stderr


def test_cancel_and_terminate(world: World) -> None:
    """A cancel is a message; a termination ends the run at once."""
    assert world.cli("runs", "cancel", "timer", "--reason", "late").exit_code == 0
    assert json.loads(world.cli("runs", "show", "timer", "--json").stdout)["unread_messages"] == 1
    assert world.cli("runs", "terminate", "timer", "--reason", "too late").exit_code == 0
    shown = json.loads(world.cli("runs", "show", "timer", "--json").stdout)
    assert (shown["status"], shown["result"]) == ("terminated", None)
    assert "too late" in shown["reason"]
    assert shown["terminated_by"]
    for command in ("show", "explain"):
        said = f" by {shown['terminated_by']}: too late"
        assert said in world.cli("runs", command, "timer").stdout.replace("\n", " ")
    again = world.cli("runs", "cancel", "timer")
    assert again.exit_code == 1
    assert "the run has ended" in again.stderr


def test_pause_and_resume(world: World) -> None:
    """Both are messages, with who and why; resuming what was not paused is said to be so."""
    paused = world.cli("runs", "pause", "timer", "--reason", "maintenance")
    assert (paused.exit_code, paused.stderr) == (0, "")
    assert "accepted: run timer is asked to pause" in paused.stdout
    assert "outlast runs resume timer" in paused.stdout
    resumed = world.cli("runs", "resume", "signal")
    assert resumed.exit_code == 0
    assert "was not paused" in resumed.stderr
    worker = world.worker()
    try:
        world.until(lambda: world.status("timer").status == "paused")
        shown = json.loads(world.cli("runs", "show", "timer", "--json").stdout)
        assert shown["paused_by"].endswith(": maintenance")
        assert "maintenance" in world.cli("runs", "show", "timer").stdout
        assert "maintenance" in world.cli("runs", "explain", "timer").stdout
        again = world.cli("runs", "resume", "timer")
        assert (again.exit_code, again.stderr) == (0, "")
        world.until(lambda: world.status("timer").status == "waiting")
    finally:
        worker.kill()
        worker.communicate(timeout=30)
    kinds = [
        one["kind"] for one in json.loads(world.cli("runs", "journal", "timer", "--json").stdout)
    ]
    assert kinds[-2:] == ["pause_requested", "resume_requested"]
    ended = world.cli("runs", "pause", "plain")
    assert ended.exit_code == 1
    assert "the run has ended" in ended.stderr


@pytest.mark.parametrize(
    "said",
    [
        (),
        ("--applied", "null", "--not-applied"),
        ("--applied", "nonsense"),
        ("--not-applied", "--failed", "x"),
    ],
)
def test_resolve_wants_one_outcome(world: World, said: tuple[str, ...]) -> None:
    """No outcome, two outcomes and one that is no JSON are usage errors."""
    assert world.cli("runs", "resolve", "doubt", *said).exit_code == 2


def test_resolve_finds_the_effect_in_doubt(world: World) -> None:
    """The operation may be left out when exactly one effect is in doubt; null is a result."""
    result = world.cli("runs", "resolve", "doubt", "--applied", "null", "--reason", "seen")
    assert "r:1" in result.stdout
    other = world.cli("runs", "resolve", "signal", "--applied", "null")
    assert other.exit_code == 1
    assert "no effect of this run is in doubt" in other.stderr
    assert "`outlast runs explain signal`" in other.stderr
    wrong = world.cli("runs", "resolve", "doubt", "--operation", "r:9", "--not-applied")
    assert wrong.exit_code == 1
    assert "in doubt: r:1" in wrong.stderr


def test_resolve_of_a_handle_wants_one_outcome(world: World) -> None:
    """Saying nothing is not the same as saying that the result was None."""

    async def say_nothing() -> None:
        async with outlast.connect(world.url, create=False) as client:
            await client.handle("doubt").resolve("r:1")

    with pytest.raises(outlast.DefinitionError, match="an outcome is one thing"):
        asyncio.run(say_nothing())


def test_missing_run(world: World) -> None:
    """A run that is not there is an error with a hint, not a traceback."""
    result = world.cli("runs", "show", "nobody")
    assert result.exit_code == 1
    assert "there is no such run" in result.stderr
    assert "→" in result.stderr
    assert result.stdout == ""


def test_other_tenant_sees_nothing(world: World) -> None:
    """`--tenant` stands before or behind the command's name."""
    assert json.loads(world.cli("--tenant", "other", "runs", "list", "--json").stdout) == []
    assert json.loads(world.cli("runs", "list", "--json", "--tenant", "other").stdout) == []


@pytest.mark.parametrize("command", ["runs list", "runs show x", "runs send x go", "runs cancel x", "approvals list"])  # fmt: skip
def test_no_database_is_made_by_looking(tmp_path: Path, command: str) -> None:
    """A database that is not there is named absolutely, and not made."""
    file = tmp_path / "none.db"
    result = CliRunner().invoke(app, ["-d", f"sqlite:///{file}", *command.split()])
    assert result.exit_code == 1
    assert str(file) in result.stderr
    assert "outlast worker" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_send_of_another_name_is_noted(world: World) -> None:
    """A message that the run does not wait for is accepted, and said to be so on standard error."""
    other = world.cli("runs", "send", "signal", "gone", "1")
    assert (other.exit_code, other.stdout) == (0, "accepted: gone for run signal\n")
    assert "did not wait for 'gone' but for 'go'" in other.stderr
    assert world.cli("runs", "send", "signal", "go", '"x"').stderr == ""
    assert world.cli("runs", "send", "timer", "go", '"x"').stderr == ""


def test_resolve_says_where_an_unfit_value_shows(world: World) -> None:
    """The client does not know the type, so it says where to look."""
    applied = world.cli("runs", "resolve", "doubt", "--applied", "5", "--reason", "x")
    assert "an alarm will show in `outlast runs explain doubt`" in applied.stderr
    assert world.cli("runs", "resolve", "doubt", "--not-applied", "--reason", "x").stderr == ""


def test_commands_stand_on_lines_of_their_own(world: World) -> None:
    """Sentences first; what is typed comes after, with what it is for."""
    text, _, commands = world.cli("runs", "explain", "doubt").stdout.partition("\n\n")
    assert "outlast " not in text
    lines = commands.splitlines()
    assert [line.split("  outlast")[0].strip() for line in lines] == [
        "it happened, with this result",
        "it did not; attempt it again",
        "it did not and never will",
        "start a worker",
    ]


def test_show_says_a_failure_once_and_where(world: World) -> None:
    """The failure has one line, the place in the author's code another."""
    text = world.cli("runs", "show", "bad").stdout
    assert text.count("no good") == 1
    assert "raised     at agent.py:" in text
    assert json.loads(world.cli("runs", "show", "bad", "--json").stdout)["raised"].startswith(
        "at agent.py:"
    )


def test_table_leaves_out_what_says_nothing(world: World) -> None:
    """No seed, no epoch, no empty fields, and one way to write times; the JSON document keeps all."""
    text = world.cli("runs", "journal", "doubt").stdout
    for word in ("seed", "epoch", "policy_version", '""', "[]"):
        assert word not in text
    assert " UTC" in text
    entries = json.loads(world.cli("runs", "journal", "doubt", "--json").stdout)
    assert entries[0]["body"]["seed"]
    listed = world.cli("runs", "list").stdout
    assert "WAITS FOR / REASON" in listed
    assert "+00:00" not in listed
    assert "T" not in listed.split("timer r:1 at ")[1][:20]


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "list", "--limit", f"{10**20}"),
        ("runs", "journal", "plain", "--generation", f"{10**22}"),
        ("runs", "export", "plain", "--generation", f"{10**22}"),
        ("runs", "accept", "plain", "--history", f"{10**22}", "--reason", "x"),
        ("runs", "accept", "plain", "--entry", f"{10**22}", "--reason", "x"),
        ("runs", "fork", "plain", "--generation", f"{10**22}", "--id", "f", "--reason", "x"),
        ("runs", "fork", "plain", "--at", f"{10**22}", "--id", "f", "--reason", "x"),
    ],
)
def test_a_number_that_no_store_can_hold_is_typed_wrong(
    world: World, words: tuple[str, ...]
) -> None:
    """It is refused as other numbers out of range are."""
    result = world.cli(*words)
    assert result.exit_code == 2, result.output
    assert "Input should be less than or equal to" in " ".join(result.stderr.split())


@pytest.mark.parametrize("where", ["nowhere/x.json", "."])
def test_a_journal_that_cannot_be_written_is_told(world: World, where: str) -> None:
    """In a folder that is not there, or over one: in words, and not as a traceback."""
    result = world.cli("runs", "export", "plain", "-o", str(world.folder / where))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be written: " in result.stderr
    assert "--output FILE" in result.stderr


@pytest.mark.parametrize("name", ["", "a\x1bb"])
def test_a_name_that_no_message_can_have_is_refused(world: World, name: str) -> None:
    """Nothing is sent that no code could take."""
    result = world.cli("runs", "send", "signal", name)
    assert result.exit_code == 1
    assert "cannot be the name of a signal" in result.stderr
    assert json.loads(world.cli("runs", "show", "signal", "--json").stdout)["unread_messages"] == 0


def test_what_is_to_be_typed_tells_an_id_with_a_dash_from_an_option(world: World) -> None:
    """Of a run that begins so: each command that `explain` and `show` name can be typed as it is printed."""

    async def begin() -> None:
        async with outlast.connect(world.url) as client:
            await client.handle("signal").fork(id="-x", reason="to see")

    asyncio.run(begin())
    explained = json.loads(world.cli("runs", "explain", "--json", "--", "-x").stdout)
    shown = world.cli("runs", "show", "--", "-x").stdout
    assert "outlast runs explain -- -x" in shown
    typed = [*explained["commands"], "outlast runs journal --generation 1 -- -x"]
    for one in typed:
        if " runs " in one:
            assert " -- -x" in one
    assert world.cli(*shlex.split(typed[-1])[1:]).exit_code == 0
