"""Which messages come in: in order, as many as the workflow comes to, and always the one that is waited for."""

# ruff: noqa: D102, D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast.journal.entry import MessageReceived
from outlast.store.change import Message, MessageKind, StampedMessage, Status
from outlast.testing import Simulation
from outlast.worker.growth import Growth, HistoryLimits
from outlast.worker.intake import MOST_UNHANDLED, Intake
from outlast.worker.worker import WorkerOptions

noise = outlast.Signal("noise", int)
stop = outlast.Signal("stop it", int)
AT = datetime(2030, 1, 1, tzinfo=UTC)
PARKING = WorkerOptions(library="simulated", idle=timedelta(seconds=1))


class Waiting:
    """A machine that waits for messages of these names, and holds so many that nobody took."""

    def __init__(self, awaited: list[str], unhandled: int) -> None:
        self.mailbox = SimpleNamespace(awaited=awaited)
        self.handled: tuple[list[str], list[str]] = ([], [])
        self._unhandled = unhandled

    def unhandled(self) -> list[int]:
        return [0] * self._unhandled


def mail(*names: str) -> list[StampedMessage]:
    kinds = {"cancel": MessageKind.CANCEL, "decision": MessageKind.DECISION}
    return [
        StampedMessage(Message(f"m{n}", kinds.get(name, MessageKind.SIGNAL), name, "", b"1"), AT, n)
        for n, name in enumerate(names)
    ]


def taken(intake: Intake, messages: list[StampedMessage], machine: Any, **how: Any) -> list[int]:
    return [one.number for one in intake.take(messages, machine, **{"closing": False, **how})]


@given(
    st.lists(st.sampled_from(["a", "b", "c", "cancel", "decision"]), max_size=30),
    st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
    st.integers(0, 2 * MOST_UNHANDLED),
    st.integers(1, 40),
)
def test_what_comes_in(names: list[str], awaited: list[str], unhandled: int, room: int) -> None:
    """Signals are taken in from the front, without a gap; what is no signal always; what is awaited as far as the journal has room."""
    growth = Growth(HistoryLimits(warn_entries=1, most_entries=room))
    intake, messages = Intake(growth), mail(*names)
    machine: Any = Waiting(awaited, unhandled)
    numbers = taken(intake, messages, machine)
    signals = [one.number for one in messages if one.message.kind is MessageKind.SIGNAL]
    others = [one.number for one in messages if one.message.kind is not MessageKind.SIGNAL]
    came = [number for number in numbers if number in signals]
    assert numbers == sorted(numbers)
    assert [number for number in numbers if number in others] == others
    assert came == signals[: len(came)]
    assert intake.holds_back == (len(came) < len(signals))
    for name in awaited:
        first = next((one.number for one in messages if one.message.name == name), None)
        assert first is None or first in numbers or len(numbers) >= room - 1
    if len(came) < len(signals):
        left = messages[signals[len(came)]]
        assert unhandled + len(came) >= MOST_UNHANDLED or len(numbers) >= room - 1
        assert (
            left.message.name not in awaited
            or left.message.name in {messages[number].message.name for number in came}
            or len(numbers) >= room - 1
        )
    assert taken(intake, messages, machine, closing=True) == [one.number for one in messages]
    assert not intake.holds_back


def test_when_it_looks_again() -> None:
    """Once half of what was taken in is handled, or somebody waits for a name that was left behind."""
    growth = Growth(HistoryLimits())
    intake = Intake(growth)
    full: Any = Waiting([], MOST_UNHANDLED)
    assert taken(intake, mail("a", "b"), full) == []
    for machine, wants in (
        (Waiting([], MOST_UNHANDLED), False),
        (Waiting(["c"], MOST_UNHANDLED - 1), False),
        (Waiting(["b"], MOST_UNHANDLED), True),
        (Waiting([], MOST_UNHANDLED // 2), True),
    ):
        looking: Any = machine
        assert intake.wants_more(looking) == wants
    assert taken(intake, [], full) == []
    assert not intake.wants_more(full)


@outlast.step
async def slow() -> int:
    await asyncio.sleep(3600)
    return 1


@outlast.workflow
async def works_until_stopped() -> str:
    working = asyncio.ensure_future(slow())
    value = await outlast.receive(stop)
    working.cancel()
    return f"stopped by {value}"


@outlast.workflow
async def hears_all(count: int) -> list[int]:
    return [await outlast.receive(noise) for _ in range(count)]


CODE = [slow, works_until_stopped, hears_all]


def test_a_message_that_is_waited_for_does_not_wait_behind_a_flood() -> None:
    """A thousand that nobody takes lie before it: it comes in at once, and the step beside it is stopped."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(works_until_stopped(), id="r")
        for n in range(1000):
            await handle.send(noise, n)
        await asyncio.sleep(5)
        began = sim.clock.monotonic()
        entries = (await handle.status()).entries
        await handle.send(stop, 7)
        result = await handle.result()
        return result, entries, sim.clock.monotonic() - began

    result, entries, seconds = Simulation(CODE).run(scenario)
    assert (result, entries) == ("stopped by 7", 2 + MOST_UNHANDLED)
    assert seconds < 2


def test_a_run_with_a_full_inbox_leaves_memory_and_is_not_taken_up_for_it() -> None:
    """What it does not wait for offers it to nobody; what it waits for does; and its end takes everything in."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(works_until_stopped(), id="other")
        await handle.terminate()
        handle = await sim.client.start(hears_all(1), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        for n in range(300):
            await handle.send(stop, n)
        parked = await sim.until(
            "r", lambda head: head.status is Status.WAITING and head.next_seq > 100
        )
        before = len(sim.trace)
        await asyncio.sleep(300)
        claims = [one for one in sim.trace[before:] if "claimed" in one]
        await handle.send(noise, 5)
        result = await handle.result()
        received = [one for one in await handle.journal() if isinstance(one.entry, MessageReceived)]
        return claims, parked.next_seq, result, [one.entry.name for one in received]

    claims, entries, result, names = Simulation(CODE, options=PARKING).run(scenario)
    assert (claims, result) == ([], [5])
    assert entries == 2 + MOST_UNHANDLED
    assert names == ["stop it"] * 300 + ["noise"]


def test_a_flood_is_heard_in_order() -> None:
    """However it is let in."""

    async def scenario(sim: Simulation) -> list[int]:
        handle = await sim.client.start(hears_all(1000), id="r")
        for n in range(500):
            await handle.send(noise, n)
        await sim.start_worker()
        for n in range(500, 1000):
            await handle.send(noise, n)
        return await handle.result()

    assert Simulation(CODE).run(scenario) == list(range(1000))
