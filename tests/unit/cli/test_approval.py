"""`outlast approvals`: what is shown, and what a decision is bound to."""

from __future__ import annotations

import json

import apsw

from .conftest import World


def _hash(world: World) -> str:
    (one,) = json.loads(world.cli("approvals", "list", "--json").stdout)
    return one["subject_sha256"]


def test_list(world: World) -> None:
    """The request that waits is listed, as a table and as a document."""
    (one,) = json.loads(world.cli("approvals", "list", "--json").stdout)
    assert (one["run_id"], one["approval_id"], one["role"]) == ("approval", "1~r:1", "boss")
    assert one["expires_at"].endswith("Z")
    assert "ship" in world.cli("approvals", "list").stdout
    assert json.loads(world.cli("approvals", "list", "--json", "--run", "signal").stdout) == []


def test_show(world: World) -> None:
    """Subject, diff, covers, hash and deadlines are shown; what hides or directs is escaped."""
    text = world.cli("approvals", "show", "approval").stdout
    for words in (
        "fix \\u202eevil",
        "+new\\u200b\\u001b[2J",
        'ship(place="here")',
        "boss",
        _hash(world),
        "(in ",
    ):
        assert words in text
    assert "2 characters of the diff" in text
    assert "\x1b" not in text
    assert (
        json.loads(world.cli("approvals", "show", "approval", "1~r:1", "--json").stdout)["state"]
        == "pending"
    )


def test_approve_needs_the_hash_without_a_terminal(world: World) -> None:
    """Nobody approves blindly: without terminal and hash it is a usage error."""
    result = world.cli("approvals", "approve", "approval")
    assert result.exit_code == 2
    assert "--hash" in result.stderr
    assert world.cli("approvals", "approve", "approval", "--hash", "abc").exit_code == 2


def test_another_hash_is_refused(world: World) -> None:
    """A yes to something else than what is asked decides nothing."""
    result = world.cli("approvals", "approve", "approval", "--hash", "0" * 64)
    assert result.exit_code == 1
    assert "not what is asked now" in result.stderr
    assert _hash(world)


def test_approve_and_deny_with_the_hash(world: World) -> None:
    """The decision is recorded with who and by whom; a second one is refused."""
    seen = _hash(world)
    result = world.cli(
        "approvals", "approve", "approval", "--hash", seen.upper(), "--reason", "fine"
    )
    assert result.exit_code == 0, result.output
    assert "approved: 1~r:1 of run approval" in result.stdout
    (one,) = json.loads(world.cli("approvals", "list", "--all", "--json").stdout)
    assert one["state"] == "approved"
    assert "@" in one["by"]
    again = world.cli("approvals", "deny", "approval", "1~r:1", "--hash", seen)
    assert again.exit_code == 1
    assert "decided before" in again.stderr


def test_id_that_no_run_can_have(world: World) -> None:
    """What was typed is told, and nobody is sent to restore a backup."""
    for command in (("list", "--run", "\udcff"), ("show", "\udcff")):
        result = world.cli("approvals", *command)
        assert result.exit_code == 1
        assert "the run id holds a lone surrogate" in result.stderr
        assert "backup" not in result.stderr


def test_no_request(world: World) -> None:
    """A run that asks nothing says so."""
    result = world.cli("approvals", "show", "signal")
    assert result.exit_code == 1
    assert "no request of this run waits" in result.stderr


def test_request_that_was_changed_in_the_store(world: World) -> None:
    """A subject that does not have its hash is neither shown nor decided."""
    seen = _hash(world)
    connection = apsw.Connection(str(world.file))
    connection.execute(
        "UPDATE approval SET body = CAST(replace(CAST(body AS TEXT), 'here', 'away') AS BLOB)"
    )
    assert connection.changes() == 1
    connection.close()
    for words in (("show", "approval"), ("approve", "approval", "--hash", seen)):
        result = world.cli("approvals", *words)
        assert result.exit_code == 1
        assert "something else than what its hash says" in result.stderr
        assert "away" not in result.stdout


def test_request_that_does_not_exist_or_was_decided(world: World) -> None:
    """What is named and not there, and what no longer waits, are told apart; so is a run that is not there."""
    missing = world.cli("approvals", "show", "approval", "1~r:9")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "there is no such request: 1~r:9" in missing.stderr
    world.cli("approvals", "deny", "approval", "--hash", _hash(world))
    decided = world.cli("approvals", "show", "approval")
    assert "no request of this run waits; the last one, 1~r:1, is denied (by " in decided.stderr
    assert "there is no such run" in world.cli("approvals", "show", "nobody").stderr
