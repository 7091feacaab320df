"""What the running effect gives to a subprocess, and to whoever sends its key."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

import outlast
from outlast.journal.entry import EffectIntended
from outlast.store.change import Status
from outlast.testing import Simulation, attempt
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.carry import KEY_VARIABLE, Errand, current_errand, key_for
from outlast.workflows.heartbeat import Beats

SHOW = f"import os; print(os.environ[{KEY_VARIABLE!r}])"


def test_a_subprocess_finds_the_key_of_the_intent() -> None:
    """In the environment, beside all that this process has; not in its arguments, which everybody on the machine can read."""

    @outlast.effect(idempotent=True)
    def send(letter: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SHOW],
            env=outlast.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    @outlast.workflow
    async def write(letter: str) -> str:
        return await send(letter)

    async def main() -> tuple[str, list[str]]:
        async with outlast.open("memory://") as app:
            shown = await app.run(write("hello"), id="w")
            journal = await app.handle("w").journal()
            return shown, [x.entry.key for x in journal if isinstance(x.entry, EffectIntended)]

    shown, keys = asyncio.run(main())
    assert [shown] == keys


def test_the_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process's, or of the given one; neither is changed, and a key that a parent has left there is replaced."""
    monkeypatch.setenv("OWN", "1")
    monkeypatch.setenv(KEY_VARIABLE, "of the parent")
    base = {"GIVEN": "1"}
    with attempt(key="k"):
        assert outlast.environment()["OWN"] == "1"
        assert outlast.environment()[KEY_VARIABLE] == "k"
        assert outlast.environment(base) == {"GIVEN": "1", KEY_VARIABLE: "k"}
        assert outlast.environment({}) == {KEY_VARIABLE: "k"}
    assert base == {"GIVEN": "1"}


def test_outside_an_effect_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where nothing runs nor in a step; and what the environment holds is nobody's key by itself."""
    monkeypatch.setenv(KEY_VARIABLE, "of the parent")
    for ask in (outlast.environment, outlast.idempotency_key):
        with pytest.raises(outlast.DefinitionError, match="outside an effect"):
            ask()
        with attempt(key=""), pytest.raises(outlast.DefinitionError, match="outside an effect"):
            ask()
    assert key_for("request", "a request") == ""


def test_each_attempt_says_what_its_effect_declares() -> None:
    """Whether the receiver knows keys, and whether a probe runs: a sender of the key goes by it."""
    seen: dict[str, Attempt] = {}
    left: dict[str, float | None] = {}

    def note(name: str) -> None:
        seen[name] = outlast.attempt()
        left[name] = current_errand.get().left()

    async def look(number: int) -> outlast.Applied[int]:
        note("probe")
        assert key_for("request", "a request") == ""
        return outlast.Applied(number)

    @outlast.effect(idempotent=True)
    async def known(number: int) -> None:
        note("known")

    @outlast.effect(probe=look, start_to_close_timeout=timedelta(seconds=0.3), settle=timedelta(0))
    def probed(number: int) -> int:
        note("probed")
        raise OSError("the answer was lost")

    @outlast.step
    async def read() -> None:
        note("step")

    @outlast.workflow
    async def work() -> None:
        await read()
        await known(1)
        await probed(1)

    async def main() -> None:
        async with outlast.open("memory://") as app:
            await app.run(work(), id="w")

    asyncio.run(main())
    assert (seen["step"].idempotent, seen["step"].probing) == (False, False)
    assert (seen["known"].idempotent, seen["known"].probing) == (True, False)
    assert (seen["probed"].idempotent, seen["probed"].probing) == (False, False)
    assert (seen["probe"].idempotent, seen["probe"].probing) == (False, True)
    assert left["step"] is left["known"] is None
    assert left["probed"] is not None and left["probed"] <= 0.3 + 1e-9


def test_of_many_threads_one_claims_a_key() -> None:
    """Whichever is first; equal requests do not disturb each other."""
    errand = Errand(lambda: None, Beats(lambda: 0.0))
    barrier = threading.Barrier(8)
    told: list[str] = []

    def claim(number: int) -> None:
        barrier.wait()
        told.append(errand.claim("", number % 2, f"request {number % 2}"))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(told) - {""}) == 1 and told.count("") == 4


def test_an_attempt_that_has_no_time_left_is_over() -> None:
    """So is one whose body was told to stop, however much time it has."""
    beats = Beats(lambda: 0.0)
    assert not Errand(lambda: None, beats).is_over
    assert not Errand(lambda: 0.1, beats).is_over
    assert Errand(lambda: 0.0, beats).is_over
    beats.stop("cancelled")
    assert Errand(lambda: None, beats).is_over


def test_the_errand_of_an_attempt_ends_with_it() -> None:
    """Another attempt may send its own key with another request."""
    for request in ("one", "another"):
        with attempt(key="k"):
            assert key_for(request, request) == "k"
    assert current_errand.get(None) is None
    assert current_attempt.get(None) is None


def test_no_workflow_sees_the_key_in_an_error() -> None:
    """Receivers repeat it in what they refuse with; a workflow hands errors on to a model, and a journal is shown to people."""
    keys: list[str] = []

    def refused() -> OSError:
        keys.append(outlast.idempotency_key())
        error = OSError(f"the key {keys[-1]} is in use")
        error.add_note(f"{keys[-1]}-receipt")
        error.__cause__ = ValueError(f"'{keys[-1]}'")
        return error

    async def look() -> outlast.NotApplied:
        raise refused()

    @outlast.effect(idempotent=True, retry=outlast.RetryPolicy(maximum_attempts=1))
    async def known() -> None:
        raise refused()

    @outlast.effect(
        probe=look,
        start_to_close_timeout=timedelta(seconds=9),
        probe_retry=outlast.RetryPolicy(maximum_attempts=1),
    )
    async def probed() -> None:
        raise refused()

    @outlast.workflow
    async def work(is_probed: bool) -> str:
        try:
            await (probed() if is_probed else known())
        except OSError as error:
            return f"{error} {error.__notes__} {error.__cause__}"
        return ""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        known_one = await sim.client.start(work(False), id="known")
        told = await known_one.result()
        assert "the key <key> is in use" in told and "<key>-receipt" in told and "'<key>'" in told
        handle = await sim.client.start(work(True), id="probed")
        await sim.until("probed", lambda head: head.status is Status.BLOCKED)
        journal = [*await known_one.journal(), *await handle.journal()]
        others = [one.entry for one in journal if not isinstance(one.entry, EffectIntended)]
        assert "<key> is in use" in repr(others)
        for key in keys:
            assert key not in f"{told} {await handle.status()} {others}"

    Simulation([known, probed, work]).run(scenario)
    assert len(keys) == 3


def test_what_an_effect_leaves_running_sends_nothing_under_its_key() -> None:
    """Its attempt has ended; whoever asks it anew, or believes that it failed, would meet a request from before."""
    left: list[asyncio.Task[str]] = []
    may_go_on = asyncio.Event()

    async def later() -> str:
        errand = current_errand.get()
        assert not errand.is_over
        await may_go_on.wait()
        assert errand.is_over
        return key_for("request", "a request")

    @outlast.effect(idempotent=True)
    async def hasty() -> None:
        left.append(asyncio.create_task(later()))
        await asyncio.sleep(0)

    @outlast.workflow
    async def work() -> None:
        await hasty()

    async def main() -> None:
        async with outlast.open("memory://") as app:
            await app.run(work(), id="w")
            may_go_on.set()
            with pytest.raises(outlast.DefinitionError, match="after its attempt had ended"):
                await left[0]

    asyncio.run(main())
