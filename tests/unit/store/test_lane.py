"""One thread, one queue, urgent jobs first."""

import threading

import apsw
import pytest

from outlast.errors import StoreCorruptError, StoreUnavailableError
from outlast.store.lane import Lane
from outlast.store.sqlite.failure import failure_of


def told(error):
    """Tell what the driver has raised."""
    return failure_of(error, "/x.db") if isinstance(error, apsw.Error) else None


@pytest.fixture
def lane():
    """A lane that is stopped at the end."""
    made = Lane("/x.db", "test-lane", tell=told, idle=lambda: None, last=lambda: None)
    made.start()
    yield made
    made.stop()
    made.join()


def test_urgent_jobs_jump_ahead(lane):
    """A renewal does not wait behind commits."""
    gate, order = threading.Event(), []
    lane.submit(lambda: gate.wait(10))
    jobs = [lane.submit(lambda name=name: order.append(name)) for name in "ab"]
    urgent = lane.submit(lambda: order.append("urgent"), urgent=True)
    gate.set()
    for job in (*jobs, urgent):
        job.result(10)
    assert order == ["urgent", "a", "b"]


def test_errors_belong_to_who_waits(lane):
    """A job's error is told to its caller, SQLite's as Outlast's, and the lane goes on."""

    def corrupt():
        raise apsw.CorruptError("disk image is malformed")

    with pytest.raises(StoreCorruptError, match=r"/x\.db is damaged"):
        lane.submit(corrupt).result(10)
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda: 1 // 0).result(10)
    assert lane.submit(lambda: 7).result(10) == 7


def test_cancelled_job_is_skipped(lane):
    """A job that nobody waits for is not run."""
    gate, ran = threading.Event(), []
    lane.submit(lambda: gate.wait(10))
    job = lane.submit(lambda: ran.append(1))
    assert job.cancel()
    gate.set()
    lane.submit(lambda: None).result(10)
    assert ran == []


def test_stopping_finishes_what_is_queued():
    """Queued jobs are done before the end; later ones are refused; the last act runs on the thread."""
    gate, order = threading.Event(), []
    lane = Lane(
        "/x.db",
        "test-lane",
        tell=told,
        idle=lambda: None,
        last=lambda: order.append(threading.current_thread().name),
    )
    lane.start()
    lane.submit(lambda: gate.wait(10))
    queued = lane.submit(lambda: order.append("queued"))
    lane.stop()
    with pytest.raises(StoreUnavailableError, match="closed"):
        lane.submit(lambda: None)
    gate.set()
    queued.result(10)
    lane.ended.result(10)
    lane.join()
    assert order == ["queued", "test-lane"]


@pytest.mark.parametrize("error", [apsw.BusyError("busy"), AttributeError("no such thing")])
def test_idle_is_called_when_nothing_is_to_do(error):
    """Idle time is used as often as was asked, and a chore that fails, or breaks, does not end the thread."""
    calls, enough = [], threading.Event()

    def chore():
        calls.append(1)
        if len(calls) == 3:
            enough.set()
        raise error

    lane = Lane("/x.db", "test-idle", tell=told, idle=chore, last=lambda: None)
    lane.tick_every(0.001)
    lane.start()
    assert enough.wait(10)
    assert lane.submit(lambda: 7).result(10) == 7
    lane.stop()
    lane.join()


def test_nothing_is_done_before_the_start():
    """What idle time needs may be made after the lane: until it is started, it does nothing."""
    idle, calls = threading.Event(), []
    lane = Lane("/x.db", "test-late", tell=told, idle=idle.set, last=lambda: None)
    lane.tick_every(0.001)
    job = lane.submit(lambda: calls.append(1))
    assert not job.running() and not lane._thread.is_alive()
    lane.start()
    job.result(10)
    assert idle.wait(10)
    lane.stop()
    lane.join()
    assert calls == [1]
