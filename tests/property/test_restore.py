"""Laws of restores: from a backup at any commit, released with care, effects happen as often as they may, whatever was forgotten."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.app import back_up_store, restore_store
from outlast.effects.intent import Applied, NotApplied
from outlast.store.sqlite.store import SQLiteStore
from outlast.testing import Receiver

receiver = Receiver()
attempts: Counter[str] = Counter()
SHORT = timedelta(milliseconds=50)
NONE = timedelta(0)


@outlast.step
async def double(number: int) -> int:
    return number * 2


@outlast.effect(idempotent=True)
async def idempotent(name: str) -> str:
    attempts[name] += 1
    return receiver.apply_once(outlast.idempotency_key(), name)


def find(name: str) -> Applied[str] | NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=SHORT, settle=NONE)
async def probed(name: str) -> str:
    attempts[name] += 1
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.effect(start_to_close_timeout=SHORT, settle=NONE)
async def neither(name: str) -> str:
    attempts[name] += 1
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.workflow
async def child_of(name: str) -> str:
    return f"{await idempotent(f'{name} i')} {await neither(f'{name} n')}"


@outlast.workflow
async def flow(generation: int = 1) -> str:
    """Effects of each kind, between steps, in a child, and in the next generation."""
    await double(1)
    said = [await idempotent(f"i{generation}"), await probed(f"p{generation}")]
    said.append(await neither(f"n{generation}"))
    await double(2)
    if generation == 1:
        said.append(await outlast.run_child(child_of("child"), id="child"))
        outlast.continue_as_new(flow(2))
    return " ".join(said)


WORKFLOWS = [flow, child_of]
RESULT = "i2 p2 n2"
EFFECTS = {"i1", "p1", "n1", "child i", "child n", "i2", "p2", "n2"}


def happened() -> Counter[str]:
    """Return how often each effect reached the world."""
    return Counter(value for _, value in receiver.log)


async def settle_doubts(app: outlast.App) -> set[str]:
    """Say of each doubt what the world says; return of which effects."""
    said: set[str] = set()
    for doubt in await app.runs.doubts():
        name = doubt.arguments["name"]
        word: dict[str, Any] = {"applied": name} if happened()[name] else {"not_applied": True}
        # It may have been taken in since, and the run have ended.
        with contextlib.suppress(outlast.RunConflictError):
            await app.handle(doubt.run_id).resolve(
                doubt.operation, **word, reason="looked up", doubt=doubt.position
            )
        said.add(name)
    return said


async def finished(app: outlast.App) -> tuple[str, set[str]]:
    """Return the result of the run, and of which effects somebody had to say what had happened."""
    said: set[str] = set()
    waiting = asyncio.ensure_future(app.handle("r", flow).result())
    while not waiting.done():
        said |= await settle_doubts(app)
        await asyncio.wait([waiting], timeout=0.02)
    return waiting.result(), said


async def play(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Bring the run to its end, with a backup after each commit."""
    url, backups = f"sqlite:///{folder}/s.db", list[Path]()
    commit = SQLiteStore.commit

    async def backed_up(store: SQLiteStore, changes: Any) -> Any:
        verdicts = await commit(store, changes)
        backups.append(folder / f"backup-{len(backups):03}.db")
        back_up_store(backups[-1], url)
        return verdicts

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteStore, "commit", backed_up)
        async with outlast.open(url, workflows=WORKFLOWS, idle=SHORT) as app:
            assert await app.run(flow(), id="r") == RESULT
    assert happened() == Counter(EFFECTS)
    return backups


async def go_on(folder: Path, backup: Path, *, trust: bool) -> tuple[str, set[str]] | None:
    """Restore a backup, and bring the run to its end; None where it was not there yet."""
    url = f"sqlite:///{folder}/{backup.stem}-restored.db"
    told = restore_store(backup, url)
    async with outlast.open(url, workflows=WORKFLOWS, idle=SHORT) as app:
        assert app.worker.paused
        if not told.runs:
            return None
        await app.release(everything=True, trust=trust, reason="restored")
        return await finished(app)


def test_a_restore_from_any_commit_repeats_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idempotent and probed effects happen once by themselves, those with neither once with somebody's word; the result is the same."""

    async def test() -> None:
        backups = await play(tmp_path, monkeypatch)
        said = set[str]()
        for backup in backups:
            found = await go_on(tmp_path, backup, trust=False)
            assert happened() == Counter(EFFECTS), backup
            if found is not None:
                assert found[0] == RESULT
                said |= found[1]
        assert len(backups) > 20
        assert said == {"n1", "child n", "n2"}

    receiver.forget()
    asyncio.run(test())


def test_who_vouches_wrongly_has_it_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With trust an effect that was forgotten is made again: the law above can fail, and only care keeps it."""

    async def test() -> None:
        backups = await play(tmp_path, monkeypatch)
        for backup in backups:
            if (found := await go_on(tmp_path, backup, trust=True)) is not None:
                break
        assert found == (RESULT, set())
        assert happened()["n1"] == 2
        assert happened()["i1"] == 1

    receiver.forget()
    asyncio.run(test())
