"""`outlast approvals edit`, `answer`, `delegate`: what is shown of votes and facts, and what is decided."""

from __future__ import annotations

import json
from typing import Any

import pytest

import outlast.cli.decide
from outlast.app import local_principal

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
    assert state(asking, "question")["state"] == "approved"


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
