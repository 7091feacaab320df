"""`outlast roles` and `outlast stop`: who may do what, and what is stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from outlast.app import local_principal

from .conftest import World


def test_roles_are_granted_listed_lent_and_revoked(asking: World) -> None:
    """The first grant says what it means; each is listed, escaped, as a table and as a document."""
    assert "no roles are set" in asking.cli("roles", "list").stdout
    first = asking.cli(
        "roles",
        "grant",
        "ann",
        "treasurer",
        "--resource",
        "pay_*",
        "--for",
        "30d",
        "--reason",
        "new",
    )
    assert first.exit_code == 0, first.output
    assert "granted: treasurer to ann" in first.stdout
    assert "from now on nobody holds a role who was not granted it" in first.stderr
    assert asking.cli("roles", "grant", local_principal(), "boss").stderr == ""
    lent = asking.cli("roles", "delegate", "boss", "bob", "--for", "2h")
    assert (lent.exit_code, "lent: boss to bob, until" in lent.stdout) == (0, True)
    table = asking.cli("roles", "list").stdout
    for words in ("SUBJECT", "ann", "treasurer", "pay_*", "outlast:admin", "bob"):
        assert words in table
    revoked = asking.cli("roles", "revoke", "ann", "treasurer", "--reason", "left")
    assert (revoked.exit_code, "revoked: treasurer of ann" in revoked.stdout) == (0, True)
    found = json.loads(asking.cli("roles", "list", "--json").stdout)
    assert [one["subject"] for one in found] == [local_principal(), local_principal(), "bob"]


def test_what_may_not_be_is_said(asking: World) -> None:
    """A name that cannot be one, a role of no verb, the last admin."""
    for words, what in (
        (("grant", "a\u202e", "boss"), "name of somebody"),
        (("grant", "ann", "outlast:dance"), "role of no verb"),
        (("revoke", "ann", "boss"), "no such binding"),
    ):
        result = asking.cli("roles", *words)
        assert (result.exit_code, what in result.stderr) == (1, True)
        assert "\u202e" not in result.output
    asking.cli("roles", "grant", "ann", "boss")
    result = asking.cli("roles", "revoke", local_principal(), "outlast:admin")
    assert (result.exit_code, "nobody could change the roles" in result.stderr) == (1, True)


def test_the_switch_is_thrown_listed_and_lifted(asking: World) -> None:
    """With a reason; the id that is printed lifts it."""
    assert "nothing is stopped" in asking.cli("stop", "--list").stdout
    assert asking.cli("stop", "--tool", "pay_*").exit_code == 2
    assert asking.cli("stop", "--lift", "tool:pay_*").exit_code == 2
    done = asking.cli("stop", "--tool", "pay_*", "--reason", "paid \x1b[31mtwice")
    assert (done.exit_code, done.stdout) == (0, "stopped: tool:pay_*\n")
    assert "stopped: everything" in asking.cli("stop", "--everybody", "--reason", "fire").stdout
    table = asking.cli("stop", "--list").stdout
    assert "paid \\u001b[31mtwice" in table
    assert "everybody" in table
    assert "\x1b" not in table
    found = json.loads(asking.cli("stop", "--list", "--json").stdout)
    assert [(one["id"], one["everybody"]) for one in found] == [
        ("tool:pay_*", False),
        ("everything", True),
    ]
    assert (
        "lifted: everything"
        in asking.cli("stop", "--lift", "everything", "--everybody", "--reason", "out").stdout
    )
    assert (
        "lifted: tool:pay_*"
        in asking.cli("stop", "--lift", "tool:pay_*", "--reason", "mended").stdout
    )
    assert "nothing is stopped" in asking.cli("stop", "--list").stdout
    refused = asking.cli("stop", "--lift", "tool:pay_*", "--reason", "again")
    assert (refused.exit_code, "nothing is stopped by the name" in refused.stderr) == (1, True)


MAKE = """
import asyncio, sys, outlast

async def main():
    async with outlast.connect(sys.argv[1], create=True):
        pass

asyncio.run(main())
"""


def as_user(world: World, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of another user of the machine."""
    return subprocess.run(
        [sys.executable, *words],
        env={**world.environment, "LOGNAME": user},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_local_user_is_who_came_first_in_every_process(tmp_path: Path) -> None:
    """Another user's process is refused at once, and told who it is and what that one types; which helps."""
    world = World(tmp_path)
    assert as_user(world, "ann", "-c", MAKE, world.url).returncode == 0
    cli = ("-m", "outlast.cli")
    order = ("stop", "--reason", "why")
    refused = as_user(world, "bob", *cli, *order)
    assert refused.returncode == 1
    ann, bob = (
        local_principal().replace(local_principal().split("@")[0], one, 1) for one in ("ann", "bob")
    )
    assert f"{ann}, who opened the store first, holds all of them" in refused.stderr
    grant = f"roles grant {bob} outlast:stop"
    assert f"`outlast {grant}`" in refused.stderr
    everybody = as_user(world, "bob", *cli, *order, "--everybody").stderr
    assert f"`outlast {grant} --everybody`" in everybody
    assert as_user(world, "bob", *cli, *grant.split()).returncode == 1
    assert as_user(world, "ann", *cli, *grant.split()).returncode == 0
    assert as_user(world, "bob", *cli, *order).returncode == 0
    closed = as_user(world, "cid", *cli, *order).stderr
    assert "whoever holds outlast:admin can grant it" in closed
