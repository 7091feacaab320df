"""`outlast runs doubts` and `outlast runs resolve`: many at once, each as it was seen."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

import outlast
from outlast.cli import show
from outlast.cli.main import app
from outlast.cli.session import Session
from outlast.client import Client, Doubt
from outlast.effects.intent import Resolution
from outlast.journal.parse import parse_as
from outlast.store.change import RunKey
from outlast.workflows import registry

T = TypeVar("T")
TIMEOUT = timedelta(milliseconds=10)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=timedelta(0))
async def pay_bill(amount: int) -> str:
    raise ConnectionError("the bank did not answer")


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=timedelta(0))
async def mail_bill(amount: int) -> str:
    raise ConnectionError("no answer")


@outlast.workflow
async def bill(amount: int) -> str:
    return await pay_bill(amount)


@outlast.workflow
async def bill_twice(amount: int) -> list[str]:
    return list(await asyncio.gather(pay_bill(amount), mail_bill(amount)))


@outlast.step(queue="served by nobody")
async def count_notes(amount: int) -> int:
    return amount


@outlast.step
async def hang(amount: int) -> int:
    await asyncio.sleep(1000)
    return amount


@outlast.workflow
async def stuck(which: str) -> int:
    return await (count_notes(1) if which == "queued" else hang(1))


def asked(url: str, ask: Callable[[Client], Awaitable[T]]) -> T:
    async def work() -> T:
        async with outlast.connect(url, create=False) as client:
            return await ask(client)

    return asyncio.run(work())


async def mail_of(client: Client, run: str) -> list[Resolution]:
    """Return what was said of a run and not taken in."""
    mail = await client.store.mail(RunKey("default", run))
    decoder = msgspec.json.Decoder(Resolution)
    return [parse_as(decoder, one.message.body, nesting=100) for one in mail]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database with four effects in doubt, in three runs."""
    file = tmp_path_factory.mktemp("doubts") / "outlast.db"

    async def work() -> None:
        idle = timedelta(milliseconds=10)
        async with outlast.open(
            f"sqlite:///{file}", workflows=[bill, bill_twice], idle=idle
        ) as one:
            for run, call in (("a", bill(1)), ("b", bill(2)), ("c", bill_twice(3))):
                await one.start(call, id=run)
            while len(await one.runs.doubts()) < 4:
                await asyncio.sleep(0.01)

    own = [one for one in registry._declared if one.__module__ == __name__]
    with pytest.MonkeyPatch.context() as patch:
        # Names are unique in an app, and not over all tests.
        patch.setattr(registry, "_declared", own)
        asyncio.run(work())
    return file


@pytest.fixture
def url(made: Path, tmp_path: Path) -> str:
    """Return the URL of a copy."""
    shutil.copytree(made.parent, tmp_path / "copy")
    return f"sqlite:///{tmp_path}/copy/outlast.db"


def cli(url: str, *words: str) -> Result:
    return CliRunner(env={"OUTLAST_DATABASE_URL": url, "COLUMNS": "200"}).invoke(app, [*words])


def test_doubts_are_listed_with_what_is_known_of_them(url: str) -> None:
    """Arguments, key, attempts; of all runs, or of one effect or workflow; and what can be typed."""
    shown = cli(url, "runs", "doubts").stdout
    assert shown.count("run ") >= 4
    assert 'called with {"amount": 1} under the key' in shown
    assert "attempt 1, begun at" in shown
    assert "ConnectionError: the bank did not answer" in shown
    assert "runs resolve --all --effect NAME" in shown
    found = json.loads(cli(url, "runs", "doubts", "--effect", "pay_bill", "--json").stdout)
    assert [one["run_id"] for one in found] == ["a", "b", "c"]
    assert found[0]["attempts"][0]["number"] == 1
    narrow = cli(url, "runs", "doubts", "--workflow", "bill_twice", "--json").stdout
    assert [one["effect"] for one in json.loads(narrow)] == ["pay_bill", "mail_bill"]
    assert cli(url, "runs", "doubts", "--effect", "none").stdout == "no effect is in doubt\n"


def test_what_undoes_an_effect_is_offered_where_there_is_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the result, where that is taken; of which effects is said."""
    plain = Doubt("a", "bill", 1, "r:1", "pay_bill", 3)
    undone = replace(plain, effect="ship", compensation="take_back")
    needy = replace(plain, effect="book", compensation="cancel", needs_result=True)

    def printed(*doubts: Doubt) -> str:
        show.doubts(doubts, Session().command)
        return capsys.readouterr().out

    resolve = "outlast runs resolve RUN --operation OPERATION --reason TEXT"
    assert "--compensate" not in printed(plain)
    assert f"(ship): {resolve} --compensate\n" in printed(plain, undone)
    assert f"(book with --result JSON, ship): {resolve} --compensate\n" in printed(undone, needy)


def test_all_doubts_of_an_effect_are_resolved_as_seen(url: str) -> None:
    """One message each, bound to its doubt, with the reason; other effects are left alone."""
    words = ("runs", "resolve", "--all", "--effect", "pay_bill", "--not-applied")
    result = cli(url, *words, "--reason", "an outage", "--yes")
    assert result.exit_code == 0
    assert "accepted: 3 of 3" in result.stdout
    doubts = {
        one.run_id: one for one in asked(url, lambda client: client.runs.doubts(effect="pay_bill"))
    }
    for run in "abc":
        (said,) = asked(url, lambda client, run=run: mail_of(client, run))
        assert (said.outcome, said.reason) == ("not_applied", "an outage")
        assert (said.operation, said.doubt) == (doubts[run].operation, doubts[run].position)


def test_nobody_can_be_asked_without_a_terminal(url: str) -> None:
    """Then it has to be said that all are meant, and nothing is said before."""
    words = ("runs", "resolve", "--all", "--effect", "pay_bill", "--not-applied")
    result = cli(url, *words, "--reason", "an outage")
    assert result.exit_code == 2
    assert "say --yes" in result.stderr
    assert asked(url, lambda client: mail_of(client, "a")) == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--all", "--not-applied", "--reason", "x"), "--effect NAME"),
        (("--all", "--effect", "pay_bill", "--operation", "r:1", "--not-applied"), "--operation"),
        (("--all", "--effect", "pay_bill", "--not-applied"), "--reason"),
        (("a", "--all", "--effect", "pay_bill", "--not-applied"), "name runs"),
        (("--not-applied",), "name runs"),
        (("a", "b", "--not-applied"), "--reason"),
        (("a", "--not-applied"), "--reason"),
        (("a", "b", "--reason", "x"), "say one of"),
    ],
)
def test_what_is_typed_wrong_says_nothing(url: str, words: tuple[str, ...], why: str) -> None:
    """What is missing is named."""
    result = cli(url, "runs", "resolve", *words)
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.replace("│", " ").split())


def test_several_runs_are_resolved_together_or_not_at_all(url: str) -> None:
    """One that has no doubt, or two, keeps the others from being spoken of."""
    words = ("--applied", '"paid"', "--reason", "on the statement")
    both = cli(url, "runs", "resolve", "a", "c", *words)
    assert both.exit_code == 1
    assert "2 effects are in doubt" in both.stderr
    assert asked(url, lambda client: mail_of(client, "a")) == []
    told = cli(url, "runs", "resolve", "a", "c", "--effect", "pay_bill", *words)
    assert told.exit_code == 0
    assert "accepted: 2 of 2" in told.stdout
    assert "an alarm will show" in told.stderr
    assert asked(url, lambda client: mail_of(client, "b")) == []
    missing = cli(url, "runs", "resolve", "b", "nobody", *words)
    assert missing.exit_code == 1
    assert asked(url, lambda client: mail_of(client, "b")) == []


def test_who_is_asked_sees_what_is_meant(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A no leaves everything as it is."""
    monkeypatch.setattr("outlast.cli.doubt.at_terminal", lambda: True)
    words = [
        "runs",
        "resolve",
        "--all",
        "--effect",
        "pay_bill",
        "--failed",
        "gone",
        "--reason",
        "x",
    ]
    runner = CliRunner(env={"OUTLAST_DATABASE_URL": url, "COLUMNS": "200"})
    no = runner.invoke(app, words, input="n\n")
    assert no.exit_code == 1
    assert "3 in 3 runs: they failed for good?" in no.output
    assert "run b of bill: effect pay_bill (r:1)" in no.output
    assert asked(url, lambda client: mail_of(client, "a")) == []
    assert "accepted: 3 of 3" in runner.invoke(app, words, input="y\n").output


def test_one_run_is_resolved_as_it_was_seen(url: str) -> None:
    """The command names the doubt by itself."""
    assert cli(url, "runs", "resolve", "a", "--not-applied", "--reason", "x").exit_code == 0
    (said,) = asked(url, lambda client: mail_of(client, "a"))
    (doubt,) = asked(url, lambda client: client.runs.doubts(run_id="a"))
    assert said.doubt == doubt.position


def test_show_and_explain_say_what_is_known(url: str) -> None:
    """What an operator needs to look the effect up."""
    for command in ("show", "explain"):
        text = " ".join(cli(url, "runs", command, "a").stdout.split())
        assert "attempt 1, begun at" in text
        assert "ConnectionError: the bank did not answer" in text
    document: dict[str, Any] = json.loads(cli(url, "runs", "show", "a", "--json").stdout)
    (open_one,) = document["operations"]
    assert open_one["attempts"][0]["ended"] == "ConnectionError: the bank did not answer"
    assert isinstance(open_one["doubt"], int)


def test_pages_follow_each_other_and_one_run_is_read_at_a_time(url: str) -> None:
    """Without loss or repetition; what is read is one page, and of finished runs nothing."""

    async def paged(client: Client) -> list[str]:
        loads: list[str] = []
        load = client.store.load

        async def counted(run: RunKey) -> Any:
            loads.append(run.run_id)
            return await load(run)

        client.store.load = counted  # type: ignore[method-assign]
        first = await client.runs.doubts(limit=3)
        rest = await client.runs.doubts(after=first[-1])
        assert [one.operation for one in (*first, *rest)] == ["r:1", "r:1", "r:1", "r:2"]
        with pytest.raises(outlast.DefinitionError, match="a page of -1 doubts"):
            await client.runs.doubts(limit=-1)
        with pytest.raises(outlast.RunNotFoundError):
            await client.runs.doubts(run_id="nobody")
        return loads

    assert asked(url, paged)[:4] == ["a", "b", "c", "c"]


def test_what_is_settled_meanwhile_is_named_with_why(url: str) -> None:
    """Of each doubt it is told whether what was said is accepted; a reason has to be given."""

    async def work(client: Client) -> list[tuple[bool, str]]:
        seen = await client.runs.doubts(effect="pay_bill")
        with pytest.raises(outlast.DefinitionError, match="no reason"):
            await client.runs.resolve(seen, not_applied=True, reason=" ")
        with pytest.raises(outlast.DefinitionError, match="one thing"):
            await client.runs.resolve(seen, reason="x")
        await client.handle("a").terminate("no longer wanted")
        told = await client.runs.resolve(seen, applied="paid", reason="on the statement")
        assert [one.doubt.run_id for one in told] == ["a", "b", "c"]
        return [(one.accepted, one.why) for one in told]

    assert asked(url, work) == [(False, "it is no longer in doubt"), (True, ""), (True, "")]


@pytest.mark.parametrize("which", ["queued", "hanging"])
def test_a_step_that_can_never_succeed_gets_its_outcome(tmp_path: Path, which: str) -> None:
    """In a queue that nobody serves, and in the middle of a first attempt, which leaves no trace."""
    url = f"sqlite:///{tmp_path}/outlast.db"
    words = ("runs", "resolve", "s", "--operation", "r:1")

    async def work() -> tuple[int, list[Result]]:
        async with outlast.open(url, workflows=[stuck]) as one:
            handle = await one.start(stuck(which), id="s")
            while (await handle.status()).status == "ready" or len(await handle.journal()) < 2:
                await asyncio.sleep(0.01)
            while which == "queued" and not (await handle.detail()).tasks:
                await asyncio.sleep(0.01)
            told = [
                await asyncio.to_thread(cli, url, *words, "--not-applied"),
                await asyncio.to_thread(cli, url, *words, "--applied", "7", "--reason", "counted"),
            ]
            return await handle.result(), told

    result, (refused, accepted) = asyncio.run(work())
    assert result == 7
    assert accepted.exit_code == 0
    assert ("leaves no trace" in accepted.stderr) is (which == "hanging")
    assert refused.exit_code == (1 if which == "hanging" else 0)
    settled = cli(url, *words, "--applied", "8")
    assert settled.exit_code == 1
