"""`outlast policy`: a file is checked, and a call is explained, without any store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outlast.app import local_principal
from outlast.cli.main import app
from outlast.policy import ForeignTool

from .conftest import World

FILE = """
[agents]
buyer = ["pay"]
[[deny]]
tool = "pay"
tenant = "prod"
between = { zone = "UTC", days = ["sat-sun"] }
reason = "not at weekends"
[[ask]]
tool = "pay"
role = "boss"
when = { amount = { greater = 100 } }
"""
SATURDAY, MONDAY = "2026-03-07T12:00:00Z", "2026-03-02T12:00:00+01:00"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a policy that says nothing in vain."""
    path = tmp_path / "policy.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def cli(*words: str | Path) -> Result:
    """Run a command in this process, beside no store."""
    return CliRunner(env={"OUTLAST_DATABASE_URL": "sqlite:////nowhere/x.db"}).invoke(
        app, ["policy", *map(str, words)]
    )


def test_check(file: Path) -> None:
    """A policy without findings is named with its version, and the status is 0."""
    result = cli("check", file)
    assert result.exit_code == 0, result.output
    assert "2 rules, mode default, version " in result.stdout
    document = json.loads(cli("check", file, "--json").stdout)
    assert (document["rules"], document["findings"]) == (2, [])
    assert document["version"] in result.stdout


def test_check_with_findings(file: Path) -> None:
    """Each is a line, and the status is 1."""
    file.write_text(
        f'{file.read_text("utf-8")}[[allow]]\ntool = "pay"\nagent = "other"\n[[allow]]\ntool = "pay"\nagent = "other"\n',
        "utf-8",
    )
    result = cli("check", file)
    assert result.exit_code == 1
    assert "allow 2 (allow pay agent other) can never fire: allow 1 says the same" in result.stdout
    as_json = cli("check", file, "--json")
    assert as_json.exit_code == 1
    assert [one["kind"] for one in json.loads(as_json.stdout)["findings"]] == ["duplicate"]


def test_a_file_that_cannot_be_used(file: Path) -> None:
    """Says where, and what to write instead."""
    file.write_text('[[deny]]\ntools = "x"\n')
    for words in (("check", file), ("explain", "pay", "{}", "--file", file)):
        result = cli(*words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "[[deny]] number 1: key tools: there is no such key" in result.stderr
        assert "keys here are tool" in result.stderr
    assert "cannot be read" in cli("check", file.with_name("none")).stderr


@pytest.mark.parametrize(
    ("words", "verdict", "code"),
    [
        (["pay", '{"amount": 250}'], "asked", "rule"),
        (["pay", '{"amount": 50}'], "allowed", "default"),
        (["pay", '{"amount": 50}', "--foreign"], "asked", "undecided"),
        (["pay", '{"amount": 50}', "--server", "bank"], "asked", "undecided"),
        (["pay", '{"amount": 50}', "--server", "bank", "--reads"], "allowed", "default"),
        (["pay", '{"amount": 50}', "--server", "bank", "--writes"], "asked", "undecided"),
        (["pay", "{}", "--tenant", "prod", "--at", SATURDAY], "denied", "rule"),
        (["pay", "{}", "--tenant", "prod", "--at", MONDAY], "asked", "rule"),
        (["read", "{}", "--agent", "buyer"], "denied", "unlisted"),
    ],
)
def test_explain(file: Path, words: list[str], verdict: str, code: str) -> None:
    """Each option is a part of the call that is judged."""
    result = cli("explain", *words, "--file", file, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["verdict"], document["code"]) == (verdict, code)


def test_explain_in_words(file: Path) -> None:
    """The outcome, then what was looked at; what hides or directs is escaped. The tenant may be said before, too."""
    result = CliRunner().invoke(
        app,
        ["--tenant", "prod", "policy", "explain", "pay", "{}", "-f", str(file), "--at", SATURDAY],
    )
    assert result.stdout.startswith("denied by deny 1 (rule): not at weekends\n")
    assert "→ deny 1: matches deny pay tenant prod sat,sun 00:00-24:00 UTC" in result.stdout
    hidden = cli("explain", "pay\u202e", "{}", "--agent", "buyer", "--file", file).stdout
    assert "there is no tool pay\\u202e for agent buyer" in hidden
    file.write_text('mode = "bypass"')
    words = ("explain", "x", "{}", "--foreign", "--file", file)
    assert "bypass is not honoured" in cli(*words).stdout
    assert cli(*words, "--may-bypass").stdout.startswith("allowed (mode)")
    file.write_text('mode = "accept_edits"')
    assert cli(*words, "--edits").stdout.startswith("allowed (mode)")


LISTED = """{"tools": [
    {"name": "read", "annotations": {"readOnlyHint": true}}, {"name": "twice"}, {"name": "twice"},
    {"name": "write", "description": "Writes"}
]}"""


@pytest.fixture
def listed(asking: World) -> Path:
    """Return what a server lists, beside a store."""
    path = asking.folder / "listed.json"
    path.write_text(LISTED)
    return path


def test_pins_are_made_listed_and_forgotten(asking: World, listed: Path) -> None:
    """From a definition, or a list of them; as a table and as a document."""
    pins = ("policy", "pins")
    assert "no definition is pinned" in asking.cli(*pins, "list").stdout
    made = asking.cli(*pins, "pin", "files", "read", str(listed), "--reason", "looked")
    assert (made.exit_code, "pinned: files:read as " in made.stdout) == (0, True)
    assert made.stdout.endswith("\n    it says nothing of itself\n")
    alone = asking.folder / "one.json"
    both = '"input_schema": {"a": 1}, "inputSchema": {"b": 2}'
    alone.write_text(f'{{"name": "write", "description": "Writes\\nmuch", {both}}}')
    printed = asking.cli(*pins, "pin", "files", "write", str(alone)).stdout.splitlines()
    assert printed[1:] == [
        "    description: Writes\\u000amuch",
        '    input schema: [{"b":2},{"a":1}]',
    ]
    alone.write_text('{"name": "write", "description": "Writes"}')
    document = json.loads(asking.cli(*pins, "pin", "files", "write", str(alone), "--json").stdout)
    assert (document["tool"], document["by"]) == ("write", local_principal())
    found = json.loads(asking.cli(*pins, "list", "--json").stdout)
    assert [one["tool"] for one in found] == ["read", "write"]
    table = asking.cli(*pins, "list").stdout
    for words in ("SERVER", "files", "read", document["sha256"][:16], local_principal()):
        assert words in table
    gone = asking.cli(*pins, "forget", "files", "write", "--reason", "left")
    assert gone.stdout == "forgotten: files:write\n"
    again = asking.cli(*pins, "forget", "files", "write")
    assert (again.exit_code, "no definition is pinned of the tool" in again.stderr) == (1, True)
    left = asking.cli(*pins, "forget", "files", "read", "--json").stdout
    assert json.loads(left) == {"server": "files", "tool": "read"}


@pytest.mark.parametrize(
    "held",
    [
        f'{{"jsonrpc": "2.0", "id": 1, "result": {LISTED}}}',
        '{"description": "Writes", "inputSchema": null}',
        '{"description": "Writes", "input_schema": null}',
    ],
)
def test_a_definition_in_other_shapes(asking: World, held: str) -> None:
    """As it came over the wire, or without its name: it is the same definition, of one hash."""
    path = asking.folder / "held.json"
    path.write_text(held)
    made = asking.cli("policy", "pins", "pin", "files", "write", str(path), "--json")
    tool = ForeignTool("files", "write", {"description": "Writes"})
    assert json.loads(made.stdout)["sha256"] == tool.sha256


def test_a_definition_that_cannot_be_used(asking: World, listed: Path) -> None:
    """No file, no JSON, no definition, none or two of that name, or that of another tool: typed wrong, and nothing is pinned."""
    told = asking.folder / "told.json"
    told.write_text('{"description": "Reads", "server": "files"}')
    failed = asking.folder / "failed.json"
    failed.write_text('{"jsonrpc": "2.0", "id": 1, "error": {"code": 1}, "name": "read"}')
    bad = asking.folder / "bad.json"
    bad.write_text("{")
    other = asking.folder / "other.json"
    other.write_text('{"name": "other"}')
    for tool, path, said in (
        ("read", asking.folder / "none.json", "cannot be read"),
        ("read", bad, "is not JSON"),
        ("read", other, "is that of 'other'"),
        ("read", told, "neither a name nor an inputSchema; give it as the server lists it"),
        ("read", failed, "an answer of JSON-RPC without a result"),
        ("none", listed, "holds no definitions"),
        ("twice", listed, "holds 2 definitions"),
    ):
        result = asking.cli("policy", "pins", "pin", "files", tool, str(path))
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.stderr.replace("│", " ").split())
    assert json.loads(asking.cli("policy", "pins", "list", "--json").stdout) == []


def test_a_definition_is_explained(asking: World, listed: Path, file: Path) -> None:
    """How it stands to the pinned one, whatever decides; what it says of itself counts where the policy trusts the server."""

    def explained(*more: str, tool: str = "read") -> tuple[str, str, str]:
        words = ("policy", "explain", tool, "{}", "-f", str(file), "--server", "files")
        result = asking.cli(*words, "--definition", str(listed), *more, "--json")
        document = json.loads(result.stdout)
        return document["verdict"], document["code"], document["definition"]

    assert explained() == ("asked", "definition_new", "new")
    asking.cli("policy", "pins", "pin", "files", "read", str(listed))
    assert explained() == ("asked", "undecided", "pinned")
    assert explained("--tenant", "other") == ("asked", "definition_new", "new")
    with file.open("a") as policy:
        policy.write('[trusted]\nfiles = "here"\n')
    assert explained("--identity", "here") == ("allowed", "default", "pinned")
    assert explained("--identity", "there") == ("asked", "undecided", "pinned")
    listed.write_text(LISTED.replace("true", "false"))
    assert explained("--identity", "here") == ("asked", "definition_changed", "changed")
    assert explained("--agent", "buyer") == ("denied", "unlisted", "changed")
    words = ("policy", "explain", "read", "{}", "-f", str(file), "--definition", str(listed))
    said = asking.cli(*words, "--server", "files").stdout
    assert "definition of files:read: changed, another one is pinned\n" in said
    listed.write_text(json.dumps({"name": "read", "description": "Reads" * 1_000}))
    said = asking.cli(*words, "--server", "files").stdout
    assert f"    description: {'Reads' * 1_000}\n" in said
    assert asking.cli(*words).exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["[]"], "one object of arguments"),
        (["{"], "is not JSON"),
        (["{}", "--at", "noon"], "is no time"),
        (["{}", "--at", "2026-03-02T12:00:00"], "needs its offset"),
    ],
)
def test_what_is_typed_wrong(file: Path, words: list[str], said: str) -> None:
    """Ends with status 2."""
    result = cli("explain", "pay", *words, "--file", file)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
