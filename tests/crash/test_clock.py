"""The wall clock is set while worker processes run: by an hour or a year, forth and back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import chaos_flow
import pytest
from chaos_bench import Fleet, soon
from chaos_file import another, client_on
from chaos_load import Load
from chaos_scene import SEED, play
from crash_bench import check_journal

import outlast
from outlast.client import Client
from outlast.store.change import RunKey, Status
from outlast.store.protocol import RunImage

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
YEAR = timedelta(days=365)
RIGHT = timedelta(0)
STEPS = [HOUR, -HOUR, YEAR, -YEAR]
LEASES = "SELECT worker, renewed FROM worker"


def each(*steps: timedelta) -> list[Any]:
    """Return the steps as parameters; those of an hour are for the long search."""
    return [
        pytest.param(one, id=str(one), marks=[pytest.mark.soak] if abs(one) == HOUR else [])
        for one in steps
    ]


def played(
    directory: Path, act: Callable[[Fleet, Client], Awaitable[Any]], *options: str
) -> RunImage:
    """Let `act` play with the clock and bring the run `x` to its end; return what is stored of it."""

    async def main(fleet: Fleet) -> RunImage:
        async with client_on(fleet) as client:
            await act(fleet, client)
            await asyncio.wait_for(client.handle("x").result(), 30)
            image = await image_of(client)
            await fleet.end()
            return image

    with Fleet.opened(directory, "--lease", "15", *options) as fleet:
        image = asyncio.run(main(fleet))
        assert "is over" not in fleet.log.read_text()
        check_journal(image.rows)
        return image


async def image_of(client: Client) -> RunImage:
    """Return what is stored of the run `x`."""
    image = await client.store.load(RunKey("default", "x"))
    assert image is not None
    return image


async def until_image(client: Client, fits: Callable[[RunImage], Any]) -> None:
    """Wait until what is stored of the run `x` fits."""
    async with asyncio.timeout(30):
        while not fits(await image_of(client)):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("step", each(*STEPS))
def test_a_step_of_the_clock_costs_no_lease(tmp_path: Path, step: timedelta) -> None:
    """In the middle of a step and before effects, with a second worker beside: the same life goes on, and nothing is doubled."""

    async def act(fleet: Fleet, client: Client) -> None:
        await fleet.start(2)
        await client.start(chaos_flow.chaos_busy("x"), id="x")
        await soon(lambda: chaos_flow.acts("held", "x"), "the step begins")
        with another(fleet.file) as reader:
            before = dict(reader.execute(LEASES))
            fleet.clock.set_off(step)

            def renewed() -> bool:
                now = dict(reader.execute(LEASES))
                assert set(now) == set(before)
                return all(now[worker] > before[worker] for worker in before)

            await soon(renewed, "both workers renew their leases")
        (fleet.directory / "go").touch()

    image = played(tmp_path, act, "--lease", "4")
    assert image.head.epoch == 1
    assert len(chaos_flow_acts(tmp_path, "order")) == 1


def chaos_flow_acts(directory: Path, body: str) -> list[str]:
    """Return the receiver's lines for the run `x`."""
    return (directory / "acts" / f"{body} x").read_text().splitlines()


@pytest.mark.parametrize("ahead", each(HOUR, YEAR))
def test_a_run_that_was_started_while_the_clock_was_ahead_is_taken(
    tmp_path: Path, ahead: timedelta
) -> None:
    """When the clock is right again nobody waits until it has come so far."""

    async def act(fleet: Fleet, client: Client) -> None:
        fleet.clock.set_off(ahead)
        await client.start(chaos_flow.chaos_collect(1), id="x")
        await client.handle("x").send(chaos_flow.ChaosGo, 1)
        fleet.clock.set_off(RIGHT)
        await fleet.start(1)

    played(tmp_path, act)


@pytest.mark.parametrize("ahead", each(HOUR, YEAR))
@pytest.mark.parametrize("idle", ["0.1", "30"], ids=["parked", "in memory"])
def test_a_timer_that_was_armed_while_the_clock_was_ahead_fires(
    tmp_path: Path, ahead: timedelta, idle: str
) -> None:
    """When the clock is right again it waits as long as asked, parked or not; no shorter."""

    def fired(image: RunImage) -> bool:
        return "timer_fired" in {one.row.kind for one in image.rows}

    async def act(fleet: Fleet, client: Client) -> None:
        await fleet.start(1)
        fleet.clock.set_off(ahead)
        began = time.monotonic()
        await client.start(chaos_flow.chaos_nap(2.0), id="x")
        await until_image(client, lambda image: len(image.rows) >= 2)
        if idle == "0.1":
            await until_image(client, lambda image: image.head.owner is None)
        fleet.clock.set_off(RIGHT)
        await until_image(client, fired)
        # The journal's times stand still until the clock has come so far, and say nothing. A slow machine only makes this longer.
        assert time.monotonic() - began >= 2.0

    played(tmp_path, act, "--idle", idle)


@pytest.mark.parametrize("ahead", each(HOUR, YEAR))
@pytest.mark.parametrize("idle", ["0.1", "30"], ids=["parked", "in memory"])
@pytest.mark.parametrize("kind", ["chaos_second_time", "chaos_pay_again"])
def test_a_retry_that_was_set_while_the_clock_was_ahead_is_made(
    tmp_path: Path, ahead: timedelta, idle: str, kind: str
) -> None:
    """When the clock is right again the next attempt waits for its gap, and not for the clock."""

    async def act(fleet: Fleet, client: Client) -> None:
        def resting(image: RunImage) -> bool:
            names = [one.name for one in image.operations if one.due_at is not None]
            return names == [kind] and (idle == "30" or image.head.owner is None)

        await fleet.start(1)
        fleet.clock.set_off(ahead)
        await client.start(chaos_flow.chaos_stubborn("x"), id="x")
        await until_image(client, resting)
        fleet.clock.set_off(RIGHT)

    played(tmp_path, act, "--idle", idle)
    assert len(chaos_flow_acts(tmp_path, "pay_again")) == 2


def test_a_request_whose_time_is_over_by_the_clock_is_closed(tmp_path: Path) -> None:
    """A decision that comes when the clock says that it is too late is refused; the run learns that nobody decided."""

    async def act(fleet: Fleet, client: Client) -> None:
        await fleet.start(1)
        await client.start(chaos_flow.chaos_asking("x"), id="x")
        await until_image(client, lambda image: image.approvals)
        (view,) = await client.approvals.list()
        fleet.clock.set_off(YEAR)
        with pytest.raises(outlast.DecisionRefusedError):
            await client.approvals.approve("x", view.approval_id, seen_sha256=view.subject_sha256)

    image = played(tmp_path, act)
    kinds = [one.row.kind for one in image.rows]
    assert "approval_expired" in kinds
    assert "effect_intended" not in kinds


@pytest.mark.parametrize("step", each(-HOUR, -YEAR))
def test_a_request_is_decided_although_the_clock_was_set_back(
    tmp_path: Path, step: timedelta
) -> None:
    """Less of its time has passed by the clock: it can still be decided, and what it covers begin."""

    async def act(fleet: Fleet, client: Client) -> None:
        await fleet.start(1)
        await client.start(chaos_flow.chaos_asking("x"), id="x")
        await until_image(client, lambda image: image.approvals)
        fleet.clock.set_off(step)
        (view,) = await client.approvals.list()
        await client.approvals.approve("x", view.approval_id, seen_sha256=view.subject_sha256)

    image = played(tmp_path, act)
    assert image.head.status is Status.COMPLETED
    times = [one.at for one in image.rows]
    assert times == sorted(times)


def test_two_workers_while_the_clock_is_set_again_and_again(tmp_path: Path) -> None:
    """Under load, an hour and a year forth and back: no lease is lost to it, and all invariants hold."""
    chance = random.Random(f"clock {SEED}")
    steps = [chance.choice([*STEPS, RIGHT]) for _ in range(8)] + [YEAR, RIGHT]
    print(f"OUTLAST_CHAOS_SEED={SEED}", *steps)

    async def trouble(fleet: Fleet, load: Load) -> None:
        for step in steps:
            fleet.clock.set_off(step)
            await asyncio.sleep(chance.uniform(0.3, 0.8))
        # Their deadlines are where the clock was when they asked.
        load.approves.add("lapse")

    with Fleet.opened(tmp_path, "--births", "3") as fleet:
        asyncio.run(play(fleet, lambda load: trouble(fleet, load)))
