"""`outlast policy`: a file is checked, and a call is explained, without any store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outlast.cli.main import app

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
