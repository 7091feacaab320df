"""`--sticky` of `approve` and `deny`, `outlast approvals sticky` and `revoke`: what is typed, what is shown, and what is taken back."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import outlast.cli.decide
from outlast.app import SystemClock, local_principal, open_store
from outlast.cli.stick import text
from outlast.client import Sticky
from outlast.journal.asking import Terms
from outlast.policy import Predicate

from .conftest import World

HASH = "0" * 64


@pytest.fixture
def asking(tmp_path: Path) -> World:
    """Return a database in which two runs ask for a yes that may stick, without a worker."""
    from asked_bench import Asked, putting

    world = World(tmp_path)

    async def make() -> None:
        store = await open_store(world.url)
        asked = Asked(store, SystemClock())  # type: ignore[arg-type]  # its clock is not moved
        terms = Terms("treasurer", timedelta(hours=1), sticky="run")
        for name in ("one", "two"):
            await asked.ask(putting(asked, terms=terms, source="declared"), name=name)
        await store.close()

    asyncio.run(make())
    return world


def decide(world: World, word: str, run: str, *options: str) -> Any:
    """Decide on a run's request."""
    (one,) = json.loads(world.cli("approvals", "list", "--run", run, "--json").stdout)
    return world.cli("approvals", word, run, "--hash", one["subject_sha256"], *options)


def listed(world: World, *options: str) -> list[dict[str, Any]]:
    """Return the decisions that stick."""
    return json.loads(world.cli("approvals", "sticky", "--json", *options).stdout)


def test_a_decision_is_made_to_stick_listed_and_taken_back(asking: World) -> None:
    """Each of its options is kept, and shown in words; a second revocation is refused."""
    assert "may stick  as far as the run" in asking.cli("approvals", "show", "one").stdout
    assert asking.cli("approvals", "sticky").stdout == "no decision sticks\n"
    options = ("--same", "to", "--when", "amount:at_most:500", "--uses", "3", "--for", "8h")
    done = decide(asking, "approve", "one", "--sticky", "run", *options)
    assert done.exit_code == 0, done.output
    (row,) = listed(asking)
    assert (row["same"], row["uses"], row["reach"]) == ({"to": "ann"}, 3, "run")
    assert (row["by"], row["approved"], row["sticks"]) == (local_principal(), True, True)
    shown = asking.cli("approvals", "sticky", "--run", "one", "--effect", "pay").stdout
    for words in (
        row["sticky_id"],
        "ROLE",
        "treasurer",
        'to="ann"',
        "amount at_most 500",
        "run one",
        "sticks",
    ):
        assert words in shown
    assert asking.cli("approvals", "sticky", "--run", "two").stdout == "no decision sticks\n"
    gone = asking.cli("approvals", "revoke", row["sticky_id"], "--reason", "a mistake")
    assert (gone.exit_code, gone.stdout) == (0, f"taken back: {row['sticky_id']}\n")
    assert listed(asking) == []
    assert "a mistake" in asking.cli("approvals", "sticky", "--all").stdout
    again = asking.cli("approvals", "revoke", row["sticky_id"], "--reason", "a mistake")
    assert again.exit_code == 1
    assert "it was taken back before" in again.stderr


def test_a_no_sticks_and_equal_calls_are_the_default(asking: World) -> None:
    """With all arguments of the call; `--any-arguments` says that they may be any."""
    assert decide(asking, "deny", "one", "--reason", "no", "--sticky", "run").exit_code == 0
    decide(asking, "deny", "two", "--sticky", "run", "--any-arguments")
    one, two = listed(asking)
    assert (one["approved"], one["same"], two["same"]) == (False, {"amount": 500, "to": "ann"}, {})
    shown = asking.cli("approvals", "sticky").stdout
    assert 'amount=500, to="ann"' in shown
    assert "any" in shown


def test_what_is_to_stick_is_shown_in_words() -> None:
    """To whoever is asked at a terminal."""
    when = (Predicate("amount", "at_most", 500),)
    sticky = Sticky("run", ("to",), when, 3, timedelta(hours=8))
    said = "to the run, for calls with the same to, where amount at_most 500, 3 times, for 8:00:00"
    assert text(sticky) == said
    assert text(Sticky("turn", ())) == "to the turn, for any arguments"
    assert text(Sticky("call")) == "to the call"


def test_a_yes_that_may_not_stick_so_far_is_refused(asking: World) -> None:
    """And the request waits."""
    done = decide(asking, "approve", "one", "--sticky", "workflow", "--for", "8h")
    assert done.exit_code == 1
    assert "may not stick" in done.stderr
    assert decide(asking, "approve", "one").exit_code == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--same", "to"),
        ("--any-arguments",),
        ("--uses", "3"),
        ("--for", "8h"),
        ("--sticky", "run", "--uses", "0"),
        ("--sticky", "run", "--same", "to", "--any-arguments"),
        ("--sticky", "run", "--any-arguments", "--when", "amount:at_most"),
        ("--sticky", "run", "--any-arguments", "--when", "amount:is_like:5"),
        ("--sticky", "run", "--any-arguments", "--when", "amount:at_most:x"),
        ("--sticky", "ever"),
        ("--sticky", "no"),
        ("--sticky", "workflow"),
        ("--sticky", "run", "--when", "amount:at_most:5"),
        ("--sticky", "call", "--same", "to"),
        ("--sticky", "call", "--any-arguments", "--when", "amount:at_most:5"),
        ("--sticky", "run", "--for", "0s"),
        ("--sticky", "run", "--for", "99999d"),
    ],
)
def test_what_is_typed_wrong_decides_nothing(asking: World, options: tuple[str, ...]) -> None:
    """It is an error of use, before anything is read, in the words of the options."""
    done = asking.cli("approvals", "approve", "one", "--hash", HASH, *options)
    assert (done.exit_code, "--" in done.stderr, "=" in done.stderr) == (2, True, False)


def test_a_no_has_no_number_of_uses(asking: World) -> None:
    """It is an error of use, too."""
    options = "--hash", HASH, "--sticky", "run", "--uses", "2"
    done = asking.cli("approvals", "deny", "one", *options)
    assert (done.exit_code, "leave --uses out" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("word", "options", "why"),
    [
        ("approve", ("--sticky", "workflow", "--for", "8h"), "a nearer --sticky"),
        ("approve", ("--sticky", "run", "--same", "nobody"), "pay has no argument 'nobody'"),
        ("deny", ("--sticky", "run", "--same", "nobody"), "its arguments are amount, to"),
    ],
)
def test_what_cannot_stick_is_refused_before_it_is_asked(
    asking: World,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    options: tuple[str, ...],
    why: str,
) -> None:
    """Nobody confirms what cannot be; what may stick is asked, also a no that reaches farther than a yes may."""
    questions: list[str] = []
    monkeypatch.setattr(outlast.cli.decide, "at_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text: bool(questions.append(text)))
    done = asking.cli("approvals", word, "one", *options)
    assert (done.exit_code, questions) == (1, [])
    assert why in " ".join(done.stderr.split())
    done = asking.cli("approvals", "deny", "one", "--sticky", "workflow", "--for", "8h")
    assert len(questions) == 1
    assert "it sticks, too: to the workflow" in done.stdout
