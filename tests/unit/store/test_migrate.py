"""Migrations: numbered, checked, forward only."""

import contextlib
from pathlib import Path

import pytest

from outlast.errors import StoreCorruptError, StoreUnavailableError, StoreVersionError
from outlast.store.migrate import AppliedMigration, Migration, migrate, plan, read_migrations

ONE = Migration(1, "pre", "initial", "sql 1", "c1")
TWO = Migration(2, "post", "tidy", "sql 2", "c2")
THREE = Migration(3, "pre", "grow", "sql 3", "c3")
PRE, POST = ("pre",), ("post",)


def having(*migrations):
    """Return what a store says that has these."""
    return {
        one.number: AppliedMigration(one.phase, one.subject, one.checksum) for one in migrations
    }


class Target:
    """A schema in a dict; `between` runs when the lock is taken, as another process might."""

    def __init__(self, applied=(), between=lambda target: None):
        self.done = having(*applied)
        self.ran = []
        self.between = between

    @contextlib.contextmanager
    def exclusively(self):
        """Take the lock."""
        self.between(self)
        yield

    def applied(self):
        """Return what was applied."""
        return dict(self.done)

    def apply(self, migration):
        """Apply."""
        self.ran.append(migration.number)
        self.done |= having(migration)


def test_missing_ones_are_applied_in_order():
    """What is missing runs, once, in order."""
    target, told = Target(), []
    assert migrate(target, [ONE, TWO], "here", before=told.append) == [ONE, TWO]
    assert (target.ran, told) == ([1, 2], [ONE, TWO])
    assert migrate(target, [ONE, TWO], "here") == []
    assert target.ran == [1, 2]


def test_phases_are_applied_apart():
    """A `post` migration waits until it is asked for."""
    target = Target([ONE])
    assert migrate(target, [ONE, TWO], "here", phases=PRE) == []
    assert migrate(target, [ONE, TWO], "here", phases=POST) == [TWO]


def test_an_empty_store_gets_everything():
    """No old process can be there."""
    assert migrate(Target(), [ONE, TWO, THREE], "here", phases=PRE) == [ONE, TWO, THREE]


@pytest.mark.parametrize("phases", [PRE, POST])
def test_the_order_is_kept(phases):
    """What comes after one that is not to be applied now is refused, and nothing is applied."""
    four = Migration(4, "post", "end", "sql 4", "c4")
    target = Target([ONE] if phases == PRE else [ONE, TWO])
    later, first = (THREE, TWO) if phases == PRE else (four, THREE)
    with pytest.raises(
        StoreUnavailableError, match=f"{later.title} is to be applied after {first.title}"
    ) as caught:
        migrate(target, [ONE, TWO, THREE, four], "here", phases=phases)
    assert "`outlast migrate" in caught.value.hint
    assert target.ran == []
    assert migrate(target, [ONE, TWO, THREE, four], "here")[-1] == four


def test_a_gap_is_damage():
    """A store has all up to one number."""
    with pytest.raises(
        StoreCorruptError, match="lacks the migration 0002_post_tidy, and has later"
    ):
        plan([ONE, TWO, THREE], having(ONE, THREE), "here")


def test_faster_process_is_noticed_under_the_lock():
    """What another process applied while we waited for the lock is not applied again."""
    target = Target(between=lambda target: target.done.update(having(ONE)))
    assert migrate(target, [ONE, TWO], "here") == [TWO]


def test_check_only_changes_nothing():
    """A role without rights to the schema learns what is missing."""
    target = Target([ONE])
    with pytest.raises(StoreUnavailableError, match="here lacks migrations: 0002_post_tidy"):
        migrate(target, [ONE, TWO], "here", check_only=True)
    assert target.ran == []
    assert migrate(target, [ONE], "here", check_only=True) == []


def test_old_code_works_on_with_what_is_prepared_for_newer_code(caplog):
    """A `pre` migration fits the code before it, and says so in the log; a `post` one is refused, wherever it stands."""
    fresh = Migration(2, "pre", "fresh", "", "?")
    with caplog.at_level("INFO"):
        assert migrate(Target([ONE, fresh]), [ONE], "here") == []
    assert "prepared for a newer version of Outlast (0002_pre_fresh)" in caplog.text
    for newer in ([ONE, TWO], [ONE, TWO, THREE], [ONE, fresh, Migration(3, "?", "x", "", "")]):
        with pytest.raises(StoreVersionError, match="here was written by a newer version"):
            plan([ONE], having(*newer), "here")


def test_changed_checksum_is_refused():
    """An applied migration whose text has changed stops everything."""
    other = Migration(1, "pre", "initial", "", "other")
    with pytest.raises(StoreCorruptError, match=r"another text of 0001 \(initial\)"):
        plan([ONE, TWO], having(other), "here")


def test_files_are_read_in_order_and_checked(tmp_path, monkeypatch):
    """Files are found by name; a wrong name or a gap is an error."""
    package = tmp_path / "some_migrated_store"
    folder = package / "migrations"
    folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "0002_post_b.sql").write_text("B")
    (folder / "0001_pre_a.sql").write_text("A")
    (folder / "README").touch()
    found = read_migrations("some_migrated_store")
    assert [(each.number, each.phase, each.subject, each.sql) for each in found] == [
        (1, "pre", "a", "A"),
        (2, "post", "b", "B"),
    ]
    Path(folder / "0004_pre_d.sql").touch()
    with pytest.raises(ValueError, match="without gaps"):
        read_migrations("some_migrated_store")
    (folder / "third.sql").touch()
    with pytest.raises(ValueError, match=r"third\.sql"):
        read_migrations("some_migrated_store")
