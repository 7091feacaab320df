"""What the pages on approvals and roles show is what happens, and their tables name what there is."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlast
from outlast import errors
from outlast.approvals.decision import REFUSALS
from outlast.cli.main import app
from outlast.policy.binding import FREE, VERBS, RoleBinding

ROOT = Path(__file__).parents[2]
APPROVALS = (ROOT / "docs/approvals.md").read_text()
ROLES = (ROOT / "docs/roles.md").read_text()
MAIN = 'if __name__ == "__main__":\n    asyncio.run(main())\n'
ANY = "…"
OF_THE_CLIENT = {"ambiguous", "unfit"}
"""Refusals that no store says."""

SERVE = """
async def serve() -> None:
    async with outlast.open("sqlite:///refunds.db") as app:
        handle = await app.start(complaint("ACME", 100, "Sorry."), id="complaint-8")
        try:
            await handle.result()
        except outlast.WorkflowFailedError as error:
            print(error.__cause__.reason)


asyncio.run(serve())
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def program(page: str, end: str) -> str:
    """Return all Python of a page as one program.

    Args:
        end: What it does.
    """
    parts = blocks(page, "python")
    assert MAIN in parts[0]
    return "\n\n".join([parts[0].replace(MAIN, ""), *parts[1:], end])


def printed_by(text: str, folder: Path) -> str:
    """Return what a program prints."""
    (folder / "page.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def typed(block: str) -> Iterator[tuple[list[str], str]]:
    """Return the commands of a block as they are typed, each with what the page says that it prints."""
    for one in re.split(r"^\$ outlast ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = one.partition("\n")
        yield shlex.split(command), shown


def is_shown(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows. Dots stand for anything in a line; spaces at its end do not count."""
    lines = [re.escape(one.rstrip()).replace(re.escape(ANY), ".*") for one in shown.splitlines()]
    return re.fullmatch(" *\n".join(lines) + r"\s*", printed) is not None


def outlast_prints(*command: str) -> str:
    """Return what the command line prints, errors included."""
    return CliRunner().invoke(app, list(command)).output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, where the command line finds the database of a page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLAST_DATABASE_URL", "sqlite:///refunds.db")
    return tmp_path


def make_store() -> None:
    """Make an empty database."""

    async def create() -> None:
        async with outlast.connect("sqlite:///refunds.db", create=True):
            pass

    asyncio.run(create())


@pytest.fixture
def store(folder: Path) -> None:
    """Make an empty database there."""
    make_store()


def test_the_program_on_approvals_prints_what_the_page_says(folder: Path) -> None:
    """All its Python is one program, in which somebody edits, answers and approves."""
    said = printed_by(program(APPROVALS, "asyncio.run(main())"), folder).strip()
    assert f"It prints `{said}`" in APPROVALS


def test_the_program_on_what_sticks_prints_what_the_page_says(folder: Path) -> None:
    """One call is answered by the decision on the one before, and the next one asks."""
    said = printed_by(program(APPROVALS, "asyncio.run(stick())"), folder).strip()
    assert f"`stick()` prints `{said}`" in APPROVALS


def hash_of_what_waits() -> str:
    """Return the hash of the one request that waits, as soon as there is one."""
    for _ in range(1000):
        found = json.loads(outlast_prints("approvals", "list", "--json"))
        if found:
            return found[0]["subject_sha256"]
    raise AssertionError("nobody is asked")


@pytest.mark.usefixtures("store")
def test_the_commands_on_approvals_print_what_the_page_says(folder: Path) -> None:
    """As they are typed, in their order, beside the program that asks; then the kill switch."""
    (folder / "page.py").write_text(program(APPROVALS, SERVE))
    decisions, stops = blocks(APPROVALS, "console")
    process = subprocess.Popen(
        [sys.executable, "page.py"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        for command, shown in typed(decisions):
            seen = hash_of_what_waits()
            printed = outlast_prints(*(seen if one == ANY else one for one in command))
            assert is_shown(shown, printed), printed
        assert process.communicate(timeout=60)[0] == "not in this tone\n"
    finally:
        process.kill()
        process.communicate()
    for command, shown in typed(stops):
        printed = outlast_prints(*command)
        assert is_shown(shown, printed), printed


def test_the_program_on_roles_prints_what_the_page_says(folder: Path) -> None:
    """Who may not decide does not, and who may does; the directory says no."""
    end = "asyncio.run(main())\nasyncio.run(ask_the_directory())"
    printed = printed_by(program(ROLES, end), folder)
    (shown,) = blocks(ROLES, "text")
    *decided, refused = printed.splitlines()
    assert decided == shown.splitlines()
    assert f"`ask_the_directory()` prints `{refused}`" in ROLES


@pytest.mark.usefixtures("store")
def test_the_commands_on_roles_print_what_the_page_says() -> None:
    """As they are typed, on a new database."""
    _, block = blocks(ROLES, "console")
    for command, shown in typed(block):
        printed = outlast_prints(*command)
        assert is_shown(shown, printed), printed


def test_the_local_user_is_who_the_page_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens a new database first is told so; another user is refused, and told who can help."""
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    block, _ = blocks(ROLES, "console")
    assert not (folder / "refunds.db").exists()
    for number, one in enumerate(re.split(r"^\$ LOGNAME=", block, flags=re.MULTILINE)[1:]):
        line, _, shown = one.partition("\n")
        user, _, *command = shlex.split(line)
        monkeypatch.setenv("LOGNAME", user)
        if not number:
            make_store()
        printed = outlast_prints(*command)
        assert is_shown(shown, printed), printed


def named(page: str, heading: str) -> set[str]:
    """Return what the first column of the tables of a section names in code."""
    section = re.split(r"\n##+ ", re.split(rf"\n##+ {heading}\n", page)[1])[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


def test_the_tables_name_all_there_is() -> None:
    """Whoever adds an option, a refusal, an error, a verb or a field of a binding says what it means."""
    options = set(inspect.signature(outlast.Approval).parameters)
    assert named(APPROVALS, "What each option says") == options
    assert named(APPROVALS, "Deciding") == {*REFUSALS, *OF_THE_CLIENT}
    of_an_action = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and one.__base__ is errors.ApprovalError
    }
    others = {"EffectsStoppedError", "PermissionDeniedError"}
    told = named(APPROVALS, "At the moment of the call")
    assert told == (of_an_action | others) - {"DecisionRefusedError", "ReceiptError"}
    assert named(ROLES, "What may be done") == set(VERBS)
    assert named(ROLES, "What a binding says") == set(RoleBinding.__struct_fields__)


def test_the_page_on_roles_says_which_verbs_are_free() -> None:
    """Each of them, and no other one."""
    said = set(re.findall(r"^\| `(\w+)` \|.*\| free \|$", ROLES, re.MULTILINE))
    assert said == FREE
