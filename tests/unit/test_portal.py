"""The portal: the async classes from synchronous code, in any thread."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.errors import DefinitionError

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


@outlast.step
def double(number: int) -> int:
    """A synchronous step, as a synchronous program has them."""
    return 2 * number


@outlast.workflow
async def doubled(number: int) -> int:
    """Call the step."""
    return await double(number)


@outlast.workflow
async def fails() -> None:
    """End in an error of the author's."""
    raise ValueError("no")


async def seen() -> str:
    """Return what the caller has set."""
    return SEEN.get()


def test_a_script_starts_and_awaits_a_run(tmp_path: Path) -> None:
    """Client and worker in one, entered, called and left without an async line."""
    with outlast.Portal() as portal:
        app = portal.enter(outlast.open(f"sqlite:///{tmp_path / 'a.db'}"))
        handle = portal.call(app.start, doubled(4), id="four")
        assert portal.call(handle.result) == 8
        assert portal.call(app.run, doubled(5), id="five") == 10


def test_twenty_threads_share_one_portal() -> None:
    """The threads of a web server call at the same time."""
    with outlast.Portal() as portal, ThreadPoolExecutor(20) as threads:
        app = portal.enter(outlast.open("memory://"))

        def one(number: int) -> int:
            return portal.call(app.run, doubled(number), id=f"run-{number}")

        assert list(threads.map(one, range(20))) == [2 * number for number in range(20)]


def test_errors_arrive_as_they_are() -> None:
    """The caller can catch what an async caller would."""
    with outlast.Portal() as portal:
        app = portal.enter(outlast.open("memory://"))
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            portal.call(app.run, fails(), id="x")
    assert isinstance(caught.value.__cause__, ValueError)


def test_context_variables_cross() -> None:
    """What the calling thread has set is seen, and each thread's own."""
    with outlast.Portal() as portal:

        def one(text: str) -> str:
            SEEN.set(text)
            return portal.call(seen)

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(one, ["a", "b"])) == ["a", "b"]
        assert portal.call(seen) == "nothing"


def test_async_code_is_told_to_await() -> None:
    """A call that would stop the caller's own loop is refused."""
    with outlast.Portal() as portal:

        async def inside() -> None:
            with pytest.raises(DefinitionError, match="await"):
                portal.call(seen)

        asyncio.run(inside())
        portal.call(inside)  # its own loop too, where it would wait for itself for ever


def test_a_function_that_gives_nothing_to_await_is_to_be_called_directly() -> None:
    """Said with its name; without a portal it works."""
    with outlast.Portal() as portal:
        app = portal.enter(outlast.open("memory://"))
        with pytest.raises(
            DefinitionError, match=r"Client\.handle is no coroutine function"
        ) as caught:
            portal.call(app.handle, "one")  # type: ignore[arg-type]
        assert "call Client.handle directly" in caught.value.hint
        assert app.handle("one").id == "one"


def test_a_wait_may_have_an_end() -> None:
    """The caller's own; what was waited for goes on."""

    async def never() -> None:
        await asyncio.Event().wait()

    with outlast.Portal() as portal, pytest.raises(TimeoutError):
        portal.call(asyncio.wait_for, never(), 0.001)


def test_closed_for_good_and_closed_twice() -> None:
    """Managers are left last first; afterwards a call says what to do."""
    left: list[str] = []

    class Manager:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __aenter__(self) -> str:
            return self.name

        async def __aexit__(self, *error: object) -> None:
            left.append(self.name)

    portal = outlast.Portal()
    assert [portal.enter(Manager(name)) for name in "ab"] == ["a", "b"]
    portal.close()
    portal.close()
    assert left == ["b", "a"]
    assert not [one for one in threading.enumerate() if one.name == "outlast-portal"]
    with pytest.raises(DefinitionError, match="closed"):
        portal.call(seen)
    outlast.Portal().close()  # one that was never used


def test_a_call_under_way_is_cancelled_by_close() -> None:
    """Nobody waits for ever for a loop that has ended, and who waited is told why."""
    portal = outlast.Portal()
    begun = threading.Event()
    ended: list[BaseException] = []

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            portal.call(hang)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait(10)
    portal.close()
    thread.join(10)
    (error,) = ended
    assert isinstance(error, CancelledError)
    assert str(error).startswith("the portal was closed before ")
    assert "hang had ended" in str(error)


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where the suite was started in the background, by a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    "interrupt",
    [
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGINT), id="a signal"),
        pytest.param(_thread.interrupt_main, id="the mark of one that wakes nobody"),
    ],
)
def test_ctrl_c_cancels_what_was_called(interrupt: Callable[[], None]) -> None:
    """The call does not go on behind the caller's back; a signal whose handler ran just before the thread fell asleep is seen too."""
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            interrupt()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with outlast.Portal() as portal:
        with pytest.raises(KeyboardInterrupt):
            portal.call(hang)
        assert cancelled.wait(10)


def test_a_timeout_of_the_call_is_the_callers() -> None:
    """It is not taken for the end of a slice."""

    async def late() -> None:
        raise TimeoutError("too late")

    with outlast.Portal() as portal, pytest.raises(TimeoutError, match="too late") as caught:
        portal.call(late)
    assert caught.value.__context__ is None


def test_a_call_that_the_loop_never_began_is_cancelled() -> None:
    """It was queued, and the loop stopped before its first step."""
    portal = outlast.Portal()
    portal.call(seen)
    assert portal._runner is not None
    loop = portal._runner.get_loop()
    hold, queued = threading.Event(), threading.Event()
    queue = loop.call_soon_threadsafe
    queue(hold.wait, 10)

    def noted(callback: Any, *arguments: Any, **options: Any) -> Any:
        assert portal._lock.locked()  # so that `close` cannot come in between
        handle = queue(callback, *arguments, **options)
        queued.set()
        return handle

    loop.call_soon_threadsafe = noted  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(portal.call, asyncio.sleep, 3600)
        assert queued.wait(10)
        queue(loop.stop)  # in the same turn of the loop
        hold.set()
        assert isinstance(call.exception(10), CancelledError)


def test_refused_after_a_fork() -> None:
    """A child process is told to make its own; the parent's portal is left alone."""
    with outlast.Portal() as portal:
        assert portal.call(seen) == "nothing"
        if (pid := os.fork()) == 0:
            status = 1
            try:
                portal.close()
                portal.call(seen)
            except DefinitionError as error:
                status = 0 if "fork" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert portal.call(seen) == "nothing"
