"""Locks that die with their process."""

import pytest

from outlast.store.change import WorkerId
from outlast.store.sqlite.lock import LockFolder

WORKER = WorkerId("host/7:a")


@pytest.fixture
def two(tmp_path):
    """Two stores on one file."""
    folders = [LockFolder(str(tmp_path / "s.db")) for _ in range(2)]
    folders[0].create()
    yield folders
    for folder in folders:
        folder.release()


def test_living_worker_is_not_dead(two):
    """A held lock proves life, to others and to oneself, and can be held once."""
    mine, other = two
    mine.hold(WORKER)
    mine.hold(WORKER)
    assert not mine.is_dead(WORKER)
    assert not other.is_dead(WORKER)
    with pytest.raises(BlockingIOError):
        other.hold(WORKER)


def test_released_lock_proves_death(two):
    """A file whose lock nobody holds proves that the process has ended."""
    mine, other = two
    mine.hold(WORKER)
    mine.release()
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
    mine.release()
    assert other.hold_checkpointer()
