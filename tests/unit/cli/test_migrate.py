"""`outlast migrate`: what is missing is applied and told, or only told."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outlast import app as composition
from outlast.cli.main import app
from outlast.store.migrate import Migration, read_migrations
from outlast.store.sqlite import connection, upgrade

KNOWN = read_migrations("outlast.store.sqlite")
PRE = Migration(len(KNOWN) + 1, "pre", "fresh", "CREATE TABLE fresh (x)", "a")
POST = Migration(len(KNOWN) + 2, "post", "tidy", "DROP TABLE fresh", "b")


def migrating(file: Path, *words: str) -> Result:
    """Run the command on a file."""
    url = f"sqlite:///{file}"
    return CliRunner(env={"OUTLAST_DATABASE_URL": url}).invoke(app, ["migrate", *words])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that stands as this version makes it."""
    file = tmp_path / "s.db"
    assert migrating(file).exit_code == 0
    return file


@pytest.fixture
def newer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a version that brings one migration of each phase, once the file is made."""
    for module in (connection, upgrade):
        monkeypatch.setattr(module, "read_migrations", lambda _: (*KNOWN, PRE, POST))


def test_a_store_is_made_and_told(tmp_path: Path) -> None:
    """Each migration has a line; the second time there is none."""
    file = tmp_path / "s.db"
    first, second = migrating(file), migrating(file)
    assert first.stdout.splitlines() == [f"applied {one.title}" for one in KNOWN]
    assert (second.exit_code, second.stdout) == (0, "")
    assert f"{file} is up to date" in second.stderr


def test_check_makes_nothing(tmp_path: Path) -> None:
    """A store that is not there is not made."""
    result = migrating(tmp_path / "s.db", "--check")
    assert result.exit_code == 1
    assert "there is no database at" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("newer")
def test_check_names_what_is_missing(file: Path) -> None:
    """Of the phase that is asked for; nothing is applied."""
    before = file.read_bytes()
    both, pre = migrating(file, "--check"), migrating(file, "--phase", "pre", "--check")
    assert (both.exit_code, both.stdout.splitlines()) == (
        1,
        [f"missing {PRE.title}", f"missing {POST.title}"],
    )
    assert (pre.exit_code, pre.stdout.splitlines()) == (1, [f"missing {PRE.title}"])
    assert file.read_bytes() == before


@pytest.mark.usefixtures("newer")
def test_phases_are_steps_of_their_own(file: Path) -> None:
    """`post` before `pre` is refused with what to type first."""
    early = migrating(file, "--phase", "post")
    assert early.exit_code == 1
    assert "outlast migrate --phase pre" in early.stderr
    assert migrating(file, "--phase", "pre").stdout == f"applied {PRE.title}\n"
    assert migrating(file, "--check", "--phase", "pre").exit_code == 0
    assert migrating(file, "--phase", "post").stdout == f"applied {POST.title}\n"
    assert migrating(file, "--check").exit_code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--partitions", "3"], "only a store in PostgreSQL has partitions"),
        (["--grant", "worker"], "knows no roles of a database"),
        (["--print-grants"], "--print-grants needs --grant ROLE"),
        (["--check", "--grant", "worker"], "--check changes nothing"),
        (["-d", "memory://"], "has no tables to migrate"),
    ],
)
def test_what_makes_no_sense_is_refused(file: Path, words: list[str], told: str) -> None:
    """With what to do."""
    result = migrating(file, *words)
    assert result.exit_code in {1, 2}
    assert told in " ".join(result.stderr.split())


@pytest.mark.usefixtures("newer")
def test_opening_applies_no_post_migration(file: Path) -> None:
    """Old processes may still live: only `outlast migrate` says that none does."""
    import asyncio

    async def opened() -> None:
        store = await composition.open_store(f"sqlite:///{file}")
        await store.close()

    asyncio.run(opened())
    assert migrating(file, "--check").stdout == f"missing {POST.title}\n"
