"""The law of the guard, for any interleaving of clients, keys, payloads, failures and crashes.

A key's effect happens at most once; equal requests get equal answers; nobody gets the answer to another request; what no crash has touched is
never in doubt, and in the end nothing is in progress.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from asgi_bench import answer, connection, policy, post, process, simulate
from hypothesis import given, settings, target
from hypothesis import strategies as st
from requests_double import RequestsDouble

from outlast import Applied, NotApplied
from outlast.client import Client
from outlast.http import Answer, IdempotencyMiddleware, guarded
from outlast.store.memory import MemoryStore
from outlast.testing import Faults, FaultyStore, SeededRandom

HOLD = timedelta(seconds=10)
SERVERS = 2
PAYLOADS = [b"a", b"b"]
ALL = {"begin", "hold", "end", "get"}


@dataclass(frozen=True)
class Ask:
    """A request. `does` is what its handler does, should it be carried out; `leaves` when its client goes, and how."""

    at: float
    server: int
    key: str
    payload: bytes
    does: str
    takes: float
    leaves: float | None
    cancels: bool


@dataclass(frozen=True)
class Trouble:
    """Something that happens to a server, or to the way to the store, after a `share` of what a request takes."""

    of: int
    share: float
    what: str
    lasts: float
    verbs: frozenset[str]


@dataclass(frozen=True)
class Story:
    asks: tuple[Ask, ...]
    troubles: tuple[Trouble, ...]
    probed: bool
    wait: float
    seed: int


EARLY = st.integers(0, 10).map(lambda number: number / 2)
LATER = st.integers(0, 50).map(lambda number: number / 2)
ASKS = st.builds(
    Ask,
    at=EARLY | LATER,
    server=st.sampled_from([0, 0, 1]),
    key=st.sampled_from(["k1", "k1", "k1", "k2"]),
    payload=st.sampled_from([b"a", b"a", b"a", b"b"]),
    does=st.sampled_from(["answer", "answer", "stream", "raise", "break off", "refuse"]),
    takes=st.sampled_from([0, 8, 8, 40]),
    leaves=st.none() | LATER,
    cancels=st.booleans(),
)
TROUBLES = st.builds(
    Trouble,
    of=st.integers(0, 7),
    share=st.sampled_from([0, 0.25, 0.75, 1]),
    what=st.sampled_from(["kill", "kill", "freeze", "down", "deaf"]),
    lasts=st.sampled_from([0.5, 3, 30]),
    verbs=st.just(frozenset(ALL))
    | st.sampled_from(sorted(ALL)).map(lambda verb: frozenset({verb})),
)
STORIES = st.builds(
    Story,
    st.lists(ASKS, min_size=1, max_size=8).map(tuple),
    st.lists(TROUBLES, max_size=3).map(tuple),
    st.booleans(),
    st.sampled_from([0, 5, 40]),
    st.integers(0, 1000),
)


class DoubleWay:
    """To a double of the store, each verb of which can be out of reach for itself."""

    def __init__(self, clock: Any, _: int) -> None:
        self.client: Any = RequestsDouble(clock)

    def disturb(self, what: str, verbs: frozenset[str]) -> None:
        """Let requests, or answers, of these verbs be lost."""
        setattr(self.client, what, set(verbs))

    def mend(self) -> None:
        """Let all pass."""
        self.client.down, self.client.deaf = set(), set()


class MemoryWay:
    """To a store in memory, over a bad network."""

    def __init__(self, clock: Any, seed: int) -> None:
        self.store = FaultyStore(MemoryStore(clock), Random(seed), faults=Faults(latency=0.02))
        self.client: Any = Client(self.store, random=SeededRandom(str(seed)))

    def disturb(self, what: str, verbs: frozenset[str]) -> None:
        """Let nothing pass, or lose every other answer."""
        worse = Faults(down=True) if what == "down" else Faults(lost_answer=0.5, lost_request=0.2)
        self.store.faults = worse

    def mend(self) -> None:
        """Let all pass."""
        self.store.faults = Faults(latency=0.02)


class World:
    """Two servers, one store, and what happened outside."""

    def __init__(self, story: Story, way: DoubleWay | MemoryWay) -> None:
        self.story = story
        self.way = way
        self.client = way.client
        self.servers = [process() for _ in range(SERVERS)]
        self.effects: dict[str, list[tuple[bytes, str]]] = defaultdict(list)
        """By key: the payload and the answer of each."""
        self.plans: dict[int, Ask] = {}
        made = policy(
            hold=HOLD,
            wait=timedelta(seconds=story.wait),
            on_doubt=self.probe if story.probed else "refuse",
        )
        self.apps = [IdempotencyMiddleware(self.handle, self.client, made) for _ in self.servers]
        self.asked: list[tuple[Ask, Any]] = []

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Act in the middle of what the request takes, and say which effect it was."""
        plan: Ask = scope["plan"]
        request = guarded(scope)
        assert request is not None
        assert (await receive())["body"] == plan.payload == request.body
        await asyncio.sleep(plan.takes / 2)
        if plan.does == "refuse":
            await answer(send, 422, b"refused")
            return
        said = f"{request.key}/{plan.payload.decode()}/{len(self.effects[request.key])}"
        self.effects[request.key].append((plan.payload, said))
        await asyncio.sleep(plan.takes / 2)
        if plan.does == "raise":
            raise LookupError
        if plan.does == "answer":
            await answer(send, 201, said.encode())
            return
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": said[:2].encode(), "more_body": True})
        if plan.does == "break off":
            raise LookupError
        await send({"type": "http.response.body", "body": said[2:].encode()})

    async def probe(self, request: Any) -> Applied[Answer] | NotApplied:
        """Tell the truth."""
        effects = self.effects[request.key]
        return Applied(Answer(201, (), effects[0][1].encode())) if effects else NotApplied()

    async def ask(self, ask: Ask) -> None:
        """Be one client, and the server that has accepted it."""
        await asyncio.sleep(ask.at)
        one = connection(self.apps[ask.server], key=f'"{ask.key}"', body=ask.payload, plan=ask)
        self.asked.append((ask, one.reply))
        context = self.servers[ask.server].context()
        running = asyncio.get_running_loop().create_task(one.run(), context=context)
        running.add_done_callback(lambda task: task.cancelled() or task.exception())
        if ask.leaves is not None:
            await asyncio.sleep(ask.leaves)
            one.gone.set()
            if ask.cancels:
                running.cancel()

    async def trouble(self, trouble: Trouble) -> None:
        """Let it happen, and mostly pass."""
        ask = self.story.asks[trouble.of % len(self.story.asks)]
        # A hair before the moment, or after it: what is due then has happened, or not.
        await asyncio.sleep(max(0, ask.at + trouble.share * ask.takes - 0.01 * (trouble.of % 2)))
        server = self.servers[ask.server]
        # A probe may be asked only once nobody acts any more: no stall and no outage is as long as a hold.
        lasts = min(trouble.lasts, 3) if self.story.probed else trouble.lasts
        match trouble.what:
            case "kill":
                server.kill()
            case "freeze":
                server.freeze()
                await asyncio.sleep(lasts)
                server.thaw()
            case verb:
                self.way.disturb(verb, trouble.verbs)
                await asyncio.sleep(lasts)
                self.way.mend()


GUARD_S = {"in_progress", "in_doubt", "key_reused", "store_unavailable", "answer_not_kept"}


@pytest.mark.parametrize("way", [DoubleWay, MemoryWay])
@settings(max_examples=max(150, settings().max_examples))
@given(STORIES)
def test_the_guard_keeps_its_law(way: type[DoubleWay | MemoryWay], story: Story) -> None:
    """Whatever happens to clients, servers and the way to the store."""

    async def main(clock: Any) -> None:
        world = World(story, way(clock, story.seed))
        happen = [*map(world.ask, story.asks), *map(world.trouble, story.troubles)]
        await asyncio.gather(*happen)
        await asyncio.sleep(200)
        last = IdempotencyMiddleware(world.handle, world.client, policy(hold=HOLD))
        keys = sorted({ask.key for ask in story.asks})
        for key in keys:
            for payload in PAYLOADS:
                ask = Ask(0, 0, key, payload, "answer", 0, None, False)
                reply = await post(last, key=f'"{key}"', body=payload, plan=ask)
                world.asked.append((ask, reply))
        _check(world, story)

    simulate(main, seed=story.seed)


def _check(world: World, story: Story) -> None:
    target(float(sum(reply.is_replayed for _, reply in world.asked)))
    for key, effects in world.effects.items():
        assert len(effects) <= 1, f"{key} happened {len(effects)} times"
    answers: dict[str, set[tuple[int, bytes]]] = defaultdict(set)
    for ask, reply in world.asked:
        if not reply.is_whole or reply.code in GUARD_S or reply.body == b"refused":
            continue
        ((payload, said),) = world.effects[ask.key]
        assert payload == ask.payload, "an answer to another request"
        assert reply.code == "handler_failed" or reply.body == said.encode()
        answers[ask.key].add((reply.status, reply.body))
    for key, given_ in answers.items():
        assert len(given_) == 1, f"{key} was answered in {len(given_)} ways"
    if not story.troubles:
        assert not {"in_doubt", "store_unavailable"} & {reply.code for _, reply in world.asked}
    killed = any(one.what == "kill" for one in story.troubles)
    for _, reply in world.asked[len(story.asks) :]:
        assert reply.code != "in_progress"
        assert reply.code != "in_doubt" or killed
