"""Locks that die with their process, and with nothing else."""

import os
from pathlib import Path

import pytest

from outlast.store.change import WorkerId
from outlast.store.sqlite import lock
from outlast.store.sqlite.lock import LockFolder

WORKER = WorkerId("host/7:a")


@pytest.fixture
def two(tmp_path):
    """Two stores on one file."""
    folders = [LockFolder(str(tmp_path / "s.db")) for _ in range(2)]
    folders[0].create()
    yield folders
    for folder in folders:
        folder.forget(WORKER)
        folder.abandon()


def test_living_worker_is_not_dead(two):
    """A held lock proves life, to others and to oneself, and can be held once."""
    mine, other = two
    mine.hold(WORKER)
    mine.hold(WORKER)
    assert not mine.is_dead(WORKER)
    assert not other.is_dead(WORKER)
    with pytest.raises(BlockingIOError):
        other.hold(WORKER)


def test_abandoned_lock_proves_death(two):
    """A file whose lock nobody holds proves that the process has ended."""
    mine, other = two
    mine.hold(WORKER)
    mine.abandon()
    assert other.is_dead(WORKER)
    other.bury(WORKER)
    assert not other.is_dead(WORKER)


def test_missing_file_proves_nothing(two):
    """Without a file only the lease can tell."""
    assert not two[0].is_dead(WORKER)


def test_forgotten_worker_leaves_no_file(two, tmp_path):
    """A worker that retires removes its file; forgetting an unknown one is no error."""
    two[0].hold(WORKER)
    two[0].forget(WORKER)
    two[0].forget(WORKER)
    assert list((tmp_path / "s.db-workers").iterdir()) == []


def test_one_checkpoints(two):
    """One of all checkpoints; another takes over when it ends."""
    mine, other = two
    assert mine.hold_checkpointer()
    assert mine.hold_checkpointer()
    assert not other.hold_checkpointer()
    mine.close()
    assert other.hold_checkpointer()


def test_closing_is_no_death(two):
    """Closing the store keeps the locks of its workers, though nothing refers to the store any more."""
    mine, other = two
    mine.hold(WORKER)
    mine.close()
    mine.close()
    two[0] = mine = other
    assert not other.is_dead(WORKER)
    with pytest.raises(BlockingIOError):
        other.hold(WORKER)


def test_retirement_after_closing_frees_the_lock(two, tmp_path):
    """A worker that is retired through another store of its process leaves neither file nor descriptor."""
    mine, other = two
    mine.hold(WORKER)
    mine.close()
    before = descriptors()
    other.forget(WORKER)
    assert descriptors() == before - 1
    assert tmp_path / "s.db-workers" not in {path.parent for path in lock._outliving}
    assert list((tmp_path / "s.db-workers").iterdir()) == []


def test_retirement_of_the_buried_frees_the_lock(two, tmp_path):
    """A worker that lapsed and was buried by another leaves no descriptor behind when its own process retires it."""
    mine, other = two
    before = descriptors()
    mine.hold(WORKER)
    other.bury(WORKER)
    assert descriptors() == before + 1
    mine.forget(WORKER)
    assert descriptors() == before
    assert list((tmp_path / "s.db-workers").iterdir()) == []


def test_forked_child_drops_locks_of_closed_stores(two):
    """A forked child keeps no lock of its parent, also not of a store that was closed."""
    mine, other = two
    mine.hold(WORKER)
    mine.close()
    kept = lock._outliving.copy()
    duplicates = {path: os.dup(descriptor) for path, descriptor in kept.items()}
    lock._close_in_child()
    assert not lock._outliving
    assert not other.is_dead(WORKER)
    for descriptor in duplicates.values():
        os.close(descriptor)
    assert other.is_dead(WORKER)


def descriptors():
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
