"""A client that starts runs all the time, sends, approves, cancels, and acts as the operator; it notes what was accepted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import chaos_flow
from crash_bench import PATIENCE_SECONDS, lines_of

import outlast
from outlast.app import local_principal
from outlast.journal.entry import EffectInDoubt
from outlast.store.change import Status

T = TypeVar("T")

MESSAGES = 6
PRINCIPAL = local_principal()


@dataclass
class Kind:
    """A kind of run.

    Args:
        call: Makes it.
        result: What it must return; None for one that is cancelled.
        acts: What the receiver does for it.
    """

    call: Callable[[str], outlast.Call[Any]]
    result: Callable[[str], Any]
    acts: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "mixed": Kind(
        chaos_flow.chaos_mixed,
        lambda x: [0, 1, 2, 3, 4, f"pay {x}", f"order {x}", f"post {x}"],
        ("pay", "order", "post"),
    ),
    "talk": Kind(
        chaos_flow.chaos_talk,
        lambda x: [7, PRINCIPAL, f"pay {x}", f"order {x}"],
        ("pay", "order"),
    ),
    "lone": Kind(chaos_flow.chaos_lone, lambda x: [1, f"transfer {x}"], ("transfer",)),
    "collect": Kind(lambda _: chaos_flow.chaos_collect(MESSAGES), lambda _: list(range(MESSAGES))),
    "lapse": Kind(chaos_flow.chaos_lapse, lambda _: "expired"),
    "family": Kind(
        chaos_flow.chaos_family,
        lambda x: [
            *(1, f"transfer lone-of-{x}", 0, 1, 2, 3, 4),
            *(f"{act} mixed-of-{x}" for act in ("pay", "order", "post")),
            5,
        ],
    ),
    "struck": Kind(
        chaos_flow.chaos_mixed,
        lambda x: [0, 1, 2, 3, 4, f"pay {x}", f"order {x}", f"post {x}"],
        ("pay", "order", "post"),
    ),
    "endless": Kind(chaos_flow.chaos_endless, lambda _: None, ("pay",)),
}
ROUND = (
    *("mixed", "talk", "lone", "mixed", "collect", "lapse"),
    *("talk", "struck", "lone", "endless", "struck", "mixed"),
    "family",
)


def kind_of(label: str) -> str:
    """Return the kind of a run; those born in a worker are mixed."""
    word = label.partition("-")[0]
    return "mixed" if word == "born" else word


@dataclass
class Accepted:
    """What the store has accepted, by run: each of it must be found again, once."""

    starts: set[str] = field(default_factory=set)
    messages: dict[str, list[str]] = field(default_factory=dict)
    decisions: dict[str, str] = field(default_factory=dict)
    cancels: dict[str, int] = field(default_factory=dict)
    """How often each was asked for, until one was answered."""
    resolutions: dict[str, int] = field(default_factory=dict)
    terminations: dict[str, int] = field(default_factory=dict)
    """How many entries the journal had when it was closed for good."""


class Load:
    """The client's work.

    Args:
        seed: Chooses how long it waits before it sends and cancels.
        insists: Ask again when the store cannot be reached, as a client does that must not lose what it has to say.
    """

    def __init__(
        self, client: outlast.Client, directory: Path, seed: int, *, insists: bool = False
    ) -> None:
        self._client = client
        self._insists = insists
        self._directory = directory
        self._chance = random.Random(f"load {seed}")
        self._tending: list[asyncio.Task[None]] = []
        self.accepted = Accepted()
        self.approves = {"talk"}
        """Kinds of runs to whose requests it says yes."""

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store answers."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await ask()
                except outlast.StoreUnavailableError:
                    if not self._insists:
                        raise
                await asyncio.sleep(0.05)

    async def start_for(self, over: asyncio.Event, pause: float, at_once: int = 0) -> None:
        """Start a run of each kind in turn, with a pause between, until it is over.

        Args:
            at_once: So many are started first, without a pause.
        """
        labels = (f"{ROUND[number % len(ROUND)]}-{number}" for number in itertools.count())
        await asyncio.gather(*map(self.start, itertools.islice(labels, at_once)))
        while not over.is_set():
            await self.start(next(labels))
            await asyncio.sleep(pause)

    async def start(self, label: str) -> None:
        """Start a run, and see to what it waits for."""
        kind = kind_of(label)
        handle = await self.insist(lambda: self._client.start(KINDS[kind].call(label), id=label))
        self.accepted.starts.add(label)
        if kind in {"talk", "collect", "endless", "struck"}:
            wait = self._chance.uniform(0.0, 1.5)
            self._tending.append(asyncio.create_task(self._tend(kind, handle, wait)))

    async def _tend(self, kind: str, handle: outlast.RunHandle[Any], wait: float) -> None:
        sent = self.accepted.messages.setdefault(handle.id, [])
        if kind == "collect":
            for number in range(MESSAGES):
                await self._send(handle, number, f"m{number}")
                sent.append(f"signal/m{number}")
                await asyncio.sleep(wait / MESSAGES)
            return
        await asyncio.sleep(wait)
        if kind == "struck":
            with contextlib.suppress(outlast.RunConflictError):  # it has ended, perhaps by this
                await self.insist(lambda: handle.terminate("enough"))
            status = await self.insist(handle.status)
            if status.status is Status.TERMINATED:
                entries = await self.insist(handle.journal)
                self.accepted.terminations[handle.id] = len(entries)
            return
        if kind == "endless":
            await self.insist(lambda: self._cancel(handle))
            return
        for _ in range(2):  # the same message twice is one message
            await self._send(handle, 7, "go")
        sent.append("signal/go")

    async def _send(self, handle: outlast.RunHandle[Any], value: int, name: str) -> None:
        await self.insist(lambda: handle.send(chaos_flow.ChaosGo, value, id=name))

    async def _cancel(self, handle: outlast.RunHandle[Any]) -> None:
        tries = self.accepted.cancels.get(handle.id, 0)
        self.accepted.cancels[handle.id] = tries + 1
        with contextlib.suppress(*([outlast.RunConflictError] if tries else [])):
            await handle.cancel("enough")

    async def tended(self) -> None:
        """Wait until everything was sent."""
        await asyncio.gather(*self._tending)

    async def stop(self) -> None:
        """Do nothing more."""
        for task in self._tending:
            task.cancel()
        await asyncio.gather(*self._tending, return_exceptions=True)

    async def look_after(self) -> None:
        """Approve and resolve, for ever."""
        while True:
            await self.insist(self.approve_all)
            await self.insist(self.resolve_all)
            await asyncio.sleep(0.1)

    async def approve_all(self) -> None:
        """Say yes to what runs of the kinds in `approves` ask."""
        for view in await self._client.approvals.list():
            known = view.run_id in self.accepted.decisions
            if known or kind_of(view.run_id) not in self.approves or view.state != "pending":
                continue
            try:
                await self._approve(view)
            except outlast.DecisionRefusedError as error:
                # Its time may be over meanwhile.
                assert (kind_of(view.run_id), error.reason) == ("lapse", "expired")
            else:
                self.accepted.decisions[view.run_id] = view.approval_id

    async def _approve(self, view: Any) -> None:
        approve = self._client.approvals.approve
        given = (view.run_id, view.approval_id)
        await self.insist(lambda: approve(*given, seen_sha256=view.subject_sha256))

    async def resolve_all(self) -> None:
        """Look up at the receiver what became of each effect in doubt, and say so: once for each time it came into doubt."""
        blocked = await self._client.runs.list(statuses=frozenset({Status.BLOCKED}), limit=1000)
        for status in blocked:
            assert status.reason == "in doubt", f"{status.run_id} is blocked: {status.reason}"
            handle = self._client.handle(status.run_id)
            doubts = [one.entry for one in await handle.journal() if _is_doubt(one.entry)]
            if len(doubts) == self.accepted.resolutions.get(status.run_id, 0):
                continue
            body = doubts[-1].name.removeprefix("chaos_")
            if chaos_flow.acts(body, status.run_id):
                await handle.resolve(doubts[-1].operation, applied=f"{body} {status.run_id}")
            else:
                await handle.resolve(doubts[-1].operation, not_applied=True)
            self.accepted.resolutions[status.run_id] = len(doubts)

    async def all_ended(self, seconds: float) -> None:
        """Wait until every run that there is has ended, and note all of them."""
        self.accepted.starts |= {
            one["label"] for one in lines_of(self._directory / "accepted.jsonl")
        }
        open_runs = set(self.accepted.starts)
        end = time.monotonic() + seconds
        while open_runs:
            assert time.monotonic() < end, f"in {seconds:g} s have not ended: {open_runs}"
            runs = await self.insist(lambda: self._client.runs.list(limit=10_000))
            # Among them those whose start was not answered, because the process that asked was killed.
            self.accepted.starts |= {one.run_id for one in runs}
            closed = {one.run_id for one in runs if one.status.closed}
            open_runs = self.accepted.starts - closed
            await asyncio.sleep(0.05)


def _is_doubt(entry: Any) -> bool:
    return isinstance(entry, EffectInDoubt)
