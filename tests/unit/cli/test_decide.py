"""`outlast approvals edit`, `answer`, `delegate`: what is shown of votes and facts, and what is decided."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

import outlast.cli.decide
from outlast.app import local_principal, open_store
from outlast.store.change import Applied, RunKey
from outlast.store.notice import EndNotice, TakeNotices

from .conftest import World


def seen(world: World, run: str) -> str:
    """Return the hash of a run's request."""
    (one,) = json.loads(world.cli("approvals", "list", "--run", run, "--json").stdout)
    return one["subject_sha256"]


def state(world: World, run: str) -> dict[str, Any]:
    """Return a run's request."""
    (one,) = json.loads(world.cli("approvals", "list", "--all", "--run", run, "--json").stdout)
    return one


def test_votes_and_facts_are_shown(asking: World) -> None:
    """Role, votes, who may not say yes, on what a yes rests, and which answers fit; nothing of it moves a terminal."""
    text = asking.cli("approvals", "list").stdout
    assert "0/2" in text
    assert "(a question)" in text
    text = asking.cli("approvals", "show", "edit").stdout
    for words in (
        "treasurer",
        "0 of 2, 2 missing",
        "zoe\\u202e",
        'rests on head = "abc\\u001b[31m"',
        "pay(",
    ):
        assert words in text
    assert "\x1b" not in text
    asking.cli("approvals", "approve", "edit", "--hash", seen(asking, "edit"))
    assert (
        f"1 of 2, 1 missing: {local_principal()}" in asking.cli("approvals", "show", "edit").stdout
    )
    text = asking.cli("approvals", "show", "question").stdout
    assert "an answer fits" in text
    assert '"integer"' in text


@pytest.mark.parametrize(
    "words", [("--set", "0.amount=5"), ("--arguments", '{"0": {"amount": 5}}')]
)
def test_an_edit_is_bound_to_the_hash(asking: World, words: tuple[str, str]) -> None:
    """Without a terminal it needs the hash; with another one it edits nothing."""
    assert asking.cli("approvals", "edit", "edit", *words).exit_code == 2
    refused = asking.cli("approvals", "edit", "edit", *words, "--hash", "0" * 64)
    assert (refused.exit_code, "not what is asked now" in refused.stderr) == (1, True)
    done = asking.cli(
        "approvals", "edit", "edit", *words, "--hash", seen(asking, "edit"), "--reason", "less"
    )
    assert done.exit_code == 0, done.output
    assert "edited: 1~r:1 of run edit" in done.stdout
    assert state(asking, "edit")["state"] == "edited"


@pytest.mark.parametrize(
    "words",
    [(), ("--set", "amount=5"), ("--set", "0.amount"), ("--set", "0.amount=x"), ("--arguments", "5"), ("--arguments", '{"x": {}}'),
     ("--arguments", '{"0": 5}')],
)  # fmt: skip
def test_what_is_typed_wrong_edits_nothing(asking: World, words: tuple[str, ...]) -> None:
    """It is an error of use, before anything is read."""
    assert asking.cli("approvals", "edit", "edit", *words, "--hash", "0" * 64).exit_code == 2


def test_the_edited_action_is_shown_before_it_is_asked(
    asking: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal: what is asked, then what it should be, then the question; a no edits nothing."""
    monkeypatch.setattr(outlast.cli.decide, "at_terminal", lambda: True)
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda text: bool(asked.append(text)))
    result = asking.cli("approvals", "edit", "edit", "--set", '0.to="bo\\u202eb"')
    assert result.exit_code == 1
    before, _, after = result.stdout.partition("it should be instead")
    assert 'pay(amount=500, to="ann")' in before
    assert 'pay(amount=500, to="bo\\u202eb")' in after
    assert asked == [f"Edit exactly this ({seen(asking, 'edit')[:12]}…)?"]
    assert state(asking, "edit")["state"] == "pending"


def test_an_answer_is_bound_to_the_hash_and_fits(asking: World) -> None:
    """One that does not fit answers nothing."""
    sha256 = seen(asking, "question")
    assert asking.cli("approvals", "answer", "question", "--hash", sha256).exit_code == 2
    assert (
        asking.cli("approvals", "answer", "question", "--value", "yes", "--hash", sha256).exit_code
        == 2
    )
    refused = asking.cli("approvals", "answer", "question", "--value", '"yes"', "--hash", sha256)
    assert (refused.exit_code, "expected integer" in refused.stderr) == (1, True)
    refused = asking.cli("approvals", "approve", "question", "--hash", sha256)
    assert (refused.exit_code, "asks for an answer" in refused.stderr) == (1, True)
    done = asking.cli("approvals", "answer", "question", "--value", "7", "--hash", sha256)
    assert (done.exit_code, "answered: 1~r:1" in done.stdout) == (0, True)
    assert state(asking, "question")["state"] == "answered"
    assert "answered" in asking.cli("approvals", "list", "--all").stdout
    assert "answered by" in asking.cli("approvals", "show", "question", "1~r:1").stdout


def test_a_role_is_lent_for_a_request(asking: World) -> None:
    """For its workflow, for so long; in an open tenant there is none to lend."""
    words = (
        "approvals",
        "delegate",
        "edit",
        "1~r:1",
        "--to",
        "bob",
        "--for",
        "7d",
        "--reason",
        "away",
    )
    refused = asking.cli(*words)
    assert (refused.exit_code, "no roles are set" in refused.stderr) == (1, True)
    asking.cli("roles", "grant", local_principal(), "treasurer")
    done = asking.cli(*words)
    assert (done.exit_code, "bob may decide in your place until" in done.stdout) == (0, True)
    *_, last = json.loads(asking.cli("roles", "list", "--json").stdout)
    assert (last["subject"], last["resource"], last["delegated_by"]) == (
        "bob",
        "fix",
        local_principal(),
    )


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Be at a terminal where every question is answered by yes, and return what was asked."""
    asked: list[str] = []
    monkeypatch.setattr(outlast.cli.decide, "at_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text: asked.append(text) or True)
    return asked


def test_an_answer_that_does_not_fit_is_refused_before_it_is_asked(
    asking: World, at_terminal: list[str]
) -> None:
    """Nobody confirms what cannot be; neither does anybody answer what asks for a yes."""
    refused = asking.cli("approvals", "answer", "question", "--value", '"yes"')
    assert (refused.exit_code, "expected integer" in refused.stderr) == (1, True)
    refused = asking.cli("approvals", "answer", "edit", "--value", "7")
    assert (refused.exit_code, "asks for a yes" in refused.stderr) == (1, True)
    assert at_terminal == []
    assert asking.cli("approvals", "answer", "question", "--value", "7").exit_code == 0
    assert len(at_terminal) == 1


def test_an_edit_that_does_not_fit_is_refused_before_it_is_asked(
    asking: World, at_terminal: list[str]
) -> None:
    """As far as the code is known that is named: values of other types, and terms that allow no edit."""
    module = asking.folder / "payments.py"
    module.write_text(PAYMENTS, encoding="utf-8")
    words = ("approvals", "edit", "edit", "-m", str(module), "--set")
    refused = asking.cli(*words, '0.amount="much"')
    assert refused.exit_code == 1, refused.output
    for part in ("pay cannot be called so", "amount", "types that its parameters have"):
        assert part in refused.stderr
    refused = asking.cli("approvals", "edit", "fixed", "--set", "0.amount=5")
    assert (refused.exit_code, "and not edited" in refused.stderr) == (1, True), refused.output
    assert at_terminal == []
    assert asking.cli(*words, "0.amount=5").exit_code == 0
    assert len(at_terminal) == 1


PAYMENTS = """
import outlast

@outlast.effect(idempotent=True)
async def pay(amount: int, to: str) -> str:
    return "paid"
"""


def test_edits_and_who_is_asked_next_are_shown(asking: World) -> None:
    """Whether an edit is allowed and what it is; who is asked when nobody decides, from when and until when."""
    for run, part in (("edit", "is a yes to what it makes of the call"), ("fixed", "no: it is"), ("second", "somebody else has to approve")):  # fmt: skip
        (line,) = [one for one in asking.cli("approvals", "show", run).stdout.splitlines() if one.startswith("edit ")]  # fmt: skip
        assert part in line
    assert "\nedit " not in asking.cli("approvals", "show", "question").stdout
    lines = asking.cli("approvals", "show", "second").stdout.splitlines()
    found = [one for one in lines if one.startswith("next")]
    assert [one.split()[1] for one in found] == ["cfo,", "owner,"]
    assert all(", from " in one and ", before " in one and "(in " in one for one in found)
    shown = json.loads(asking.cli("approvals", "show", "second", "--json").stdout)
    assert (shown["edits"], [one["role"] for one in shown["next"]]) == ("second", ["cfo", "owner"])
    assert shown["next"][0]["at"] == shown["expires_at"]


def test_what_people_were_told_is_shown(asking: World) -> None:
    """Who was reached by what; what could not be sent, and when it is tried again; what is still to come."""

    def told() -> list[str]:
        lines = asking.cli("approvals", "show", "second").stdout.splitlines()
        return [one.removeprefix("told").strip() for one in lines if one.startswith("told")]

    async def end(**fields: Any) -> None:
        store = await open_store(asking.url)
        await store.commit([TakeNotices("", 99, timedelta(milliseconds=1))])
        said = {"reached": (), "trouble": b"", "retry_in": None, **fields}
        (notice,) = [one for one in await store.notices(RunKey("default", "second")) if one.notice == "asked"]  # fmt: skip
        change = EndNotice("default", "second", 1, "1~r:1", "asked", notice.tries, **said)
        (verdict,) = await store.commit([change])
        assert isinstance(verdict, Applied)
        await store.close()

    first, second = told()
    assert first == "nobody yet"
    assert second.startswith("reminder-1: to be sent ") and "(in " in second
    again = {"sent": False, "retry_in": timedelta(minutes=5)}
    asyncio.run(end(**again, reached=("post",), trouble=b"chat\x1b[31m: TimeoutError"))
    assert told()[0].startswith(
        "by post, and not sent: chat\\u001b[31m: TimeoutError; tried again "
    )
    shown = json.loads(asking.cli("approvals", "show", "second", "--json").stdout)
    assert (shown["told"][0]["reached"], shown["told"][0]["state"]) == (["post"], "open")
    asyncio.run(end(sent=False, trouble=b"no channel is set for the role x"))
    assert told()[0] == "not sent: no channel is set for the role x"
    asyncio.run(end(sent=True, reached=("post", "chat")))
    assert told()[0] == "by post, chat"
