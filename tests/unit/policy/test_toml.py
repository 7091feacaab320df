"""A policy as a file: read whole, or refused with what to write instead."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from outlast.errors import PolicyError
from outlast.policy import Allow, Policy, PolicyFile, Predicate, Rule, Window, policy_of, toml_of

WHOLE = """
mode = "accept_edits"

[agents]
researcher = ["search", "files:read_*"]
"*" = []

[[deny]]
name = "no deletes"
tool = "delete_*"
server = "files"
tenant = "prod-*"
principal = "*@example.org"
workflow = "fix"
agent = "researcher"
reason = "nothing is deleted in production by an agent"

[[ask]]
tool = "pay"
role = "treasurer"
expires_in = "72h"
sticky = "run"
when = { amount = { greater = 100, at_most = 5000 }, "to.country" = { in = ["DE", "FR"] } }
between = { zone = "Europe/Berlin", days = ["mon-fri"], hours = "08:00-18:00" }

[[allow]]
tool = "files:read_file"
when = { path = { inside = "/srv/project" } }
"""


def test_every_key() -> None:
    """What stands in a file is what the same words say in Python."""
    office = Window("Europe/Berlin", ("mon", "tue", "wed", "thu", "fri"), "08:00-18:00")
    large = (
        Predicate("amount", "greater", 100),
        Predicate("amount", "at_most", 5000),
        Predicate("to.country", "in", ["DE", "FR"]),
    )
    expected = Policy(
        (
            Rule("ask", "pay", large, between=office, role="treasurer", expires_in=timedelta(hours=72), sticky="run"),
            Rule("allow", "read_file", (Predicate("path", "inside", "/srv/project"),), server="files"),
            Rule(
                "deny", "delete_*", server="files", tenant="prod-*", principal="*@example.org", workflow="fix", agent="researcher",
                reason="nothing is deleted in production by an agent", name="no deletes",
            ),
        ),
        "accept_edits",
        {"researcher": ("search", "files:read_*"), "*": ()},
    )  # fmt: skip
    assert policy_of(WHOLE) == expected
    assert policy_of(toml_of(expected)) == expected


def test_an_empty_file_is_the_default_policy() -> None:
    """Its version is the same wherever it is made, and is a part of what is kept: it does not change."""
    assert policy_of("") == Policy()
    assert Policy().version == "2d66ea0373c76748"


REFUSED = [
    # what stands in the file, the place, the key, words of the hint
    ('mode = "plans"', "", "", "modes are default, plan"),
    ("mode = 5", "", "", "modes are"),
    ("modus = 5", "", "modus", "keys here are mode, agents"),
    ("agents = []", "", "agents", "[agents]"),
    ('agents = { a = "search" }', "", "", 'agents.a = ["search"'),
    ('agents = { "a*" = [] }', "", "", "name each agent"),
    ('deny = "*"', "", "deny", "[[deny]]"),
    ("deny = [5]", "[[deny]] number 1", "", "[[deny]]"),
    ("[[deny]]", "[[deny]] number 1", "tool", 'tool = "*"'),
    ('[[deny]]\ntool = "a"\n[[deny]]\ntools = "a"', "[[deny]] number 2", "tools", "keys here are tool"),
    ('[[deny]]\ntool = ["a"]', "[[deny]] number 1", "tool", 'tool = "…"'),
    ('[[deny]]\ntool = "[ab]"', "[[deny]] number 1", "", "only `*` and `?`"),
    ('[[deny]]\ntool = "a"\nrole = "x"', "[[deny]] number 1", "", "ask rules"),
    ('[[ask]]\ntool = "a"\nexpires_in = "soon"', "[[ask]] number 1", "expires_in", '"72h"'),
    ('[[ask]]\ntool = "a"\nexpires_in = "0s"', "[[ask]] number 1", "expires_in", '"72h"'),
    ('[[ask]]\ntool = "a"\nexpires_in = 5', "[[ask]] number 1", "expires_in", '"72h"'),
    ('[[ask]]\ntool = "a"\nexpires_in = "999999999999999d"', "[[ask]] number 1", "expires_in", '"72h"'),
    ('[[deny]]\ntool = "a"\nwhen = 5', "[[deny]] number 1", "when", "{ greater = 100 }"),
    ('[[deny]]\ntool = "a"\nwhen = { x = 5 }', "[[deny]] number 1", "when.x", "operators are"),
    ('[[deny]]\ntool = "a"\nwhen = { x = {} }', "[[deny]] number 1", "when.x", "operators are"),
    ('[[deny]]\ntool = "a"\nwhen.x.y.equals = 5', "[[deny]] number 1", "when.x.y", "in quotes"),
    ('[[deny]]\ntool = "a"\nwhen.x.greater = "y"', "[[deny]] number 1", "when.x.greater", "greater = 100"),
    ('[[deny]]\ntool = "a"\nwhen.x.equals = 2026-01-01', "[[deny]] number 1", "when.x.equals", "as text"),
    (f'[[deny]]\ntool = "a"\nwhen.x.equals = 0x{"f" * 9000}', "[[deny]] number 1", "when.x.equals", "as text"),
    ('[[deny]]\ntool = "a"\nbetween = "night"', "[[deny]] number 1", "between", "zone ="),
    ('[[deny]]\ntool = "a"\nbetween = { hours = "08:00-18:00" }', "[[deny]] number 1", "between.zone", "Europe/Berlin"),
    ('[[deny]]\ntool = "a"\nbetween = { zone = "UTC", hour = "8" }', "[[deny]] number 1", "between.hour", "zone, days, hours"),
    ('[[deny]]\ntool = "a"\nbetween = { zone = "UTC", hours = "8" }', "[[deny]] number 1", "between", "08:00-18:00"),
    ('[[deny]]\ntool = "a"\nname = "x"\n[[ask]]\ntool = "b"\nname = "x"', "", "", "names one of them"),
    ('[[deny]]\ntool = "a"\nname = "deny 1"', "[[deny]] number 1", "", "what it is about"),
    ("[[deny", "", "", "toml.io"),
    (f"x = {'[' * 5000}", "", "", "less deep"),
    (f"x = {'9' * 5000}", "", "", "shorter numbers"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place", "key", "hint"), REFUSED, ids=[str(n) for n in range(len(REFUSED))]
)
def test_what_is_refused(text: str, place: str, key: str, hint: str) -> None:
    """With file, table, key, and what to write instead; nothing of the file is used."""
    with pytest.raises(PolicyError) as caught:
        policy_of(text, file="policy.toml")
    error = caught.value
    assert (error.file, error.place, error.key) == ("policy.toml", place, key)
    assert error.message.startswith("policy.toml: ")
    assert place in error.message
    assert hint in error.hint
    assert len(str(error)) < 1000


def test_code_is_written_to_no_file() -> None:
    """A policy without its hooks would allow more."""
    for policy in (Policy(hooks=(print,)), Policy(callback=print)):
        with pytest.raises(PolicyError, match="are code"):
            toml_of(policy)
    with pytest.raises(PolicyError, match="no null"):
        toml_of(Policy((Rule("deny", "*", (Predicate("x", "equals", None),)),)))


def allow_all(call: object) -> Allow:
    """Allow."""
    return Allow()


def write(path: Path, text: str, tick: int) -> None:
    """Write a file at a time of its own, however coarse the clock of the file system is."""
    path.write_text(text)
    os.utime(path, ns=(tick, tick))


def test_a_file_that_changes(tmp_path: Path) -> None:
    """Is read when it has changed, and says whether that made another policy; hooks and callback stay."""
    path = tmp_path / "policy.toml"
    write(path, 'mode = "plan"', 1)
    file = PolicyFile(path, callback=allow_all, callback_tools=("x",))
    assert file.reload_if_changed()
    assert file.policy == Policy(mode="plan", callback=allow_all, callback_tools=("x",))
    assert not file.reload_if_changed()
    write(path, 'mode = "plan"', 2)
    assert not file.reload_if_changed()
    write(path, 'mode = "plan" # the same', 3)
    assert not file.reload_if_changed()
    write(path, 'mode = "dont_ask"', 4)
    assert file.reload_if_changed()
    assert file.policy.mode == "dont_ask"


@pytest.mark.parametrize("broken", ["mode =", 'mode = "x"', "\udcff", "#" * (1 << 21), None])
def test_a_broken_file_changes_nothing(tmp_path: Path, broken: str | None) -> None:
    """The last good policy stays; it is said once of each change."""
    path = tmp_path / "policy.toml"
    write(path, 'mode = "plan"', 1)
    file = PolicyFile(path)
    before = file.load()
    if broken is None:
        path.unlink()
    else:
        path.write_bytes(broken.encode(errors="surrogateescape"))
    with pytest.raises(PolicyError, match="policy.toml"):
        file.reload_if_changed()
    assert not file.reload_if_changed()
    if broken is not None and len(broken) < 1000:
        os.utime(path, ns=(5, 5))
        assert not file.reload_if_changed()
    assert file.policy is before
    write(path, 'mode = "plan"', 9)
    assert not file.reload_if_changed()
    write(path, "", 10)
    assert file.reload_if_changed()


def test_a_first_file_that_cannot_be_used(tmp_path: Path) -> None:
    """Raises each time: there is no policy to stay."""
    file = PolicyFile(tmp_path / "none.toml")
    for _ in range(2):
        with pytest.raises(PolicyError, match="cannot be read"):
            file.load()
        with pytest.raises(PolicyError, match="cannot be read"):
            file.reload_if_changed()
        with pytest.raises(PolicyError, match="cannot be read"):
            _ = file.policy
