"""Whole systems from seeds in which people are asked: they approve, deny, edit, vote twice, decide late, and lose and lend their roles.

A seed draws a workflow, when workers die or stand still, what people say, and when roles are changed and effects are stopped. The judge of
the simulation (`Consent`) looks at every commit; played to its end, the receiver's books are compared with the journal.
"""

# ruff: noqa: S311 - a seed must repeat

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

import outlast
from outlast.client import Client, RunHandle
from outlast.client.view import ApprovalView
from outlast.effects.retry import RetryPolicy
from outlast.errors import OutlastError
from outlast.journal.entry import EffectCompleted, EffectIntended, from_row
from outlast.policy import Policy, Predicate, Rule
from outlast.policy.authority import StoreAuthority
from outlast.policy.binding import Bindings, RoleBinding, first_bindings
from outlast.store.change import PutControl, RunKey, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.testing.fault import FaultyStore
from outlast.testing.simulation.consent import Want
from outlast.testing.thread import SeededRandom
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step, Workflow
from outlast.workflows.registry import Registry

Shape = list[Any]
RUN, FORK = RunKey("default", "r"), RunKey("default", "f")
QUICK = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=4))
TIMEOUT, SETTLE = timedelta(seconds=2), timedelta(seconds=1)
LEASE, WITHIN = timedelta(seconds=5), timedelta(seconds=3)
LONGEST_SECONDS = 2000.0
BAD = Faults(
    latency=0.2, lost_answer=0.05, lost_request=0.03, unavailable=0.02, lost_hint=0.2, echoes=0.1
)
SLOW = Faults(latency=0.5, lost_answer=0.1, lost_request=0.05)
LARGE, FORBIDDEN = 50, 80
FEW = Predicate("amount", "at_most", 20)
PEOPLE = ("ann", "bob", "cid", "dan", "eve", "tester")
STAFF = (("ann", "boss"), ("bob", "boss"), ("cid", "boss"), ("dan", "chief"), ("cid", "chief"))


def seconds(number: float) -> timedelta:
    """Return so many."""
    return timedelta(seconds=number)


class World:
    """The receivers of one system, and the fact that approvals rest on."""

    def __init__(self, seed: int, sim: Simulation) -> None:
        self.receiver = Receiver()
        self.level = 0
        self._fates = random.Random(f"{seed}/fates")
        self._sim = sim

    def lose(self) -> str:
        """Return what becomes of a request."""
        return self._fates.choices(["", "lost", "dropped"], [3, 1, 1])[0]

    def began(self, name: str) -> None:
        """An attempt begins: nothing that forbids it is older than what was found out about it may be."""
        sim = self._sim
        late = sim.invariants.consent.stopped_for(RUN, name, sim.store.now())
        sim.invariants.check(late <= WITHIN + LEASE, 6, f"{name} is attempted, stopped for {late}")


class Stage:
    """Where the bodies below find the world that they act on. One system is played at a time."""

    world: World


stage = Stage()


# What workflows call. Built without decorators, so that no app of another test finds them.


async def level(name: str) -> int:
    """Return the fact."""
    return stage.world.level


LEVEL: Any = Step(level, "level", AttemptOptions(QUICK))


def find(name: str, amount: int) -> outlast.Applied[str] | outlast.NotApplied:
    """Ask what became of it."""
    return stage.world.receiver.find(outlast.idempotency_key())


def _effect(name: str, approval: outlast.Approval | None, *, probed: bool = False) -> Any:
    async def act(name: str, amount: int) -> str:
        stage.world.began(what)
        receiver, fate = stage.world.receiver, stage.world.lose()
        if fate == "lost":
            raise ConnectionError("the request was lost")
        apply = receiver.apply if probed else receiver.apply_once
        said: str = apply(outlast.idempotency_key(), f"{name} {amount}")
        if fate == "dropped":
            raise ConnectionError("the answer was lost")
        return said

    what = name
    rules = EffectOptions(
        idempotent=not probed, probe=find if probed else None, settle=SETTLE, approval=approval
    )
    return Effect(act, name, AttemptOptions(QUICK, TIMEOUT), rules)


DECLARED: dict[str, outlast.Approval] = {
    "plain": outlast.Approval("boss", expires_in=seconds(15), use_within=seconds(25), edits="yes"),
    "two": outlast.Approval(
        "boss",
        expires_in=seconds(20),
        use_within=seconds(30),
        quorum=2,
        four_eyes=True,
        edits="second",
    ),
    "rungs": outlast.Approval(
        "boss",
        expires_in=seconds(4),
        use_within=seconds(22),
        escalate=(outlast.Rung("chief", seconds(6)), outlast.Rung("boss", seconds(8))),
        quorum=2,
        edits="yes",
    ),
    "fact": outlast.Approval(
        "boss",
        expires_in=seconds(15),
        use_within=seconds(25),
        edits="yes",
        preconditions={"level": LEVEL},
    ),
    "often": outlast.Approval(
        "boss", expires_in=seconds(15), use_within=seconds(25), edits="yes", sticky="workflow"
    ),
}
ACTS: dict[str, Any] = {
    **{name: _effect(name, one, probed=name == "two") for name, one in DECLARED.items()},
    "free": _effect("free", None),
}
DRAWN = sorted({*ACTS} - {"often"})
"""What is called in workflows of any shape."""
POLICY = Policy(
    rules=(
        Rule("deny", "*", (Predicate("amount", "greater", FORBIDDEN),)),
        Rule(
            "ask",
            "free",
            (Predicate("amount", "at_least", LARGE),),
            role="chief",
            expires_in=seconds(15),
        ),
        Rule("allow", "*"),
    )
)


def wants(name: str, arguments: dict[str, Any]) -> Iterator[Want]:
    """Return whose yes an effect needs: what is said above, in other words."""
    if name == "two":
        yield Want("boss", 2, four_eyes=True)
    elif name == "rungs":
        yield Want("boss", 2)
    elif name in ("plain", "fact", "often"):
        yield Want("boss")
    elif arguments["amount"] >= LARGE:
        yield Want("chief")


async def carry_out(shape: Shape, path: str) -> None:
    """Carry out a part; what is refused is refused, and the next part goes on."""
    kind, *parts = shape
    if kind == "gather":
        made = (carry_out(part, f"{path}.{number}") for number, part in enumerate(parts))
        await asyncio.gather(*made)
        return
    if kind == "seq":
        for number, part in enumerate(parts):
            await carry_out(part, f"{path}.{number}")
        return
    with contextlib.suppress(OutlastError, TimeoutError):
        await _carry_out(kind, parts, path)


async def _carry_out(kind: str, parts: list[Any], path: str) -> None:
    match kind:
        case "act":
            await ACTS[parts[0]](path, parts[1])
        case "nap":
            await outlast.sleep(parts[0])
        case "limit":
            async with asyncio.timeout(parts[0]):
                await carry_out(parts[1], f"{path}.0")
        case "ask":
            await _act_when_asked(path, *parts)
        case "where":
            name, amount, times, other = parts
            covers = [ACTS[name].where(name=path)]
            await outlast.approval(
                path, covers=covers, role="boss", expires_in=seconds(15), use_within=seconds(25)
            )
            for number in range(times):
                await ACTS[name](path + other, amount + number)
        case _:
            amount = await outlast.ask(path, int, role="boss", expires_in=seconds(12))
            await ACTS[parts[0]](path, amount)


async def _act_when_asked(path: str, name: str, amount: int, quorum: int, other: int) -> None:
    """Ask for a call, and make it, or another one."""
    call = ACTS[name](path, amount)
    grant = await outlast.approval(
        path,
        covers=[call],
        role="boss",
        expires_in=seconds(15),
        use_within=seconds(25),
        quorum=quorum,
        four_eyes=quorum == 2,
        edits="yes",
    )
    arguments = {"name": path, "amount": amount + other}
    if grant.edits:
        arguments = json.loads(grant.edits[0].arguments)
    await ACTS[name](**arguments)


async def asked(shape: str) -> None:
    """Carry out a shape."""
    await carry_out(json.loads(shape), "0")


ASKED: Any = Workflow(asked, "asked")
CODE = [ASKED, LEVEL, *ACTS.values()]


# What a seed draws


def draw(chance: random.Random, depth: int = 2) -> Shape:
    """Return a part of a workflow."""
    kinds = ["act"] * 6 + ["ask", "ask", "where", "question", "nap"]
    kinds += ["seq", "gather", "gather", "limit"] if depth else []
    name, amount = chance.choice(DRAWN), chance.choice([5, 20, 45, 60])
    match chance.choice(kinds):
        case "act":
            return ["act", name, amount]
        case "ask":
            return ["ask", name, amount, chance.randint(1, 2), chance.choice([0, 0, 0, 1])]
        case "where":
            return ["where", "free", amount, chance.randint(1, 2), chance.choice(["", "", "x"])]
        case "question":
            return ["question", name]
        case "nap":
            return ["nap", chance.randint(1, 9)]
        case "limit":
            return ["limit", chance.randint(3, 12), draw(chance, depth - 1)]
        case kind:
            return [kind, *(draw(chance, depth - 1) for _ in range(chance.randint(2, 3)))]


def draw_often(seed: int) -> Shape:
    """Return a workflow that asks again and again what a decision which sticks may answer."""
    chance = random.Random(f"{seed}/often")
    amounts = [chance.choice([5, 20, 45]) for _ in range(7)]
    acts = [["act", "often", one] for one in amounts]
    return ["gather", ["seq", *acts[:3], ["nap", 6], acts[3]], ["seq", *acts[4:]]]


# A system, played


class BrokenPromiseError(AssertionError):
    """A seed shows what must not be."""


class System:
    """One run, its workers, the people who are asked, an admin, an operator who tells the truth, and somebody who disturbs."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(f"{seed}/system")
        parts = [draw(self.chance) for _ in range(self.chance.randint(1, 3))]
        self.shape: Shape = shape or [self.chance.choice(["seq", "gather"]), *parts]
        self.sim = Simulation(CODE, seed=seed)
        self.world = stage.world = World(seed, self.sim)
        self.options = WorkerOptions(
            library="simulated",
            lease=LEASE,
            poll=timedelta(seconds=1),
            idle=timedelta(seconds=self.chance.choice([0.2, 30])),
            policy=POLICY,
            authority=StoreAuthority(self.sim.store, "tester"),
            recheck_within=WITHIN,
        )
        consent = self.sim.invariants.consent
        consent.wants, consent.within = wants, WITHIN
        consent.denies = lambda _name, arguments: arguments["amount"] > FORBIDDEN
        # A call may be let through only when something else has been asked meanwhile.
        self.sim.invariants.written.knows_order = False
        consent.by_roles, consent.local, consent.steady = True, "tester", True
        self.people = {who: self._client(who) for who in (*PEOPLE, "root")}
        self.seen: list[ApprovalView] = []
        """What people have been shown at some time."""

    def play(self) -> None:
        """Play it to its end, and look at the books."""
        self.sim.run(self._play)

    def _client(self, who: str) -> Client:
        """Return the client of a person, whose way to the store is long."""
        store = FaultyStore(self.sim.store, self.sim.source(who), faults=SLOW)
        return Client(
            store,
            random=SeededRandom(f"{self.seed}/{who}"),
            principal=who,
            authority=StoreAuthority(store, "tester"),
            registry=Registry(CODE),
        )

    async def _play(self, sim: Simulation) -> None:
        if self.chance.random() < 0.9:
            bindings = [RoleBinding(subject=who, role=role, by="root") for who, role in STAFF]
            bindings += [RoleBinding(subject="tester", role="boss", by="root")]
            bindings += [RoleBinding(subject="root", role="outlast:stop", by="root")]
            first = first_bindings("root")
            body = Bindings((*first.bindings, *bindings), (*first.guarded, "outlast:stop"))
            await sim.store.commit([PutControl("default", "roles", 0, body.encode())])
        for _ in range(2):
            await self._start_worker()
        handle = await sim.client.start(ASKED(json.dumps(self.shape)), id="r")
        sim.outside.faults = BAD
        beside = [
            *(sim.spawn(self._decide(who)) for who in PEOPLE),
            *(sim.spawn(one(handle)) for one in (self._disturb, self._operate)),
            *(sim.spawn(one()) for one in (self._administer, self._change)),
        ]
        if "often" in json.dumps(self.shape):
            beside.append(sim.spawn(self._take_back()))
        forking = sim.spawn(self._fork(handle)) if self.chance.random() < 0.2 else None
        await sim.until("r", self._is_over)
        if forking is not None:
            await forking
            if await sim.store.head(FORK) is not None:
                await sim.until("f", self._is_over)
        for task in beside:
            task.cancel()
        for task in beside:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._check()

    def _is_over(self, head: Any) -> bool:
        return head.status.closed or self.sim.clock.monotonic() > LONGEST_SECONDS

    async def _start_worker(self) -> None:
        """Start a worker, whose network goes bad once it has announced itself."""
        worker = await self.sim.start_worker(
            options=self.options, faults=Faults(latency=BAD.latency)
        )
        worker.store.faults = BAD

    # People

    async def _decide(self, who: str) -> None:
        """Look at what is asked, now and then, and say something; sometimes to what was shown long ago."""
        chance, client = random.Random(f"{self.seed}/{who}"), self.people[who]
        while True:
            await asyncio.sleep(chance.uniform(0.3, 3.5))
            with contextlib.suppress(OutlastError):
                views = await client.approvals.list()
                self.seen += [one for one in views if one not in self.seen]
                is_late = chance.random() < 0.15
                choices = self.seen if is_late else views
                if choices:
                    await self._say(chance, client, chance.choice(choices))

    async def _say(self, chance: random.Random, client: Client, view: ApprovalView) -> None:
        approvals, place = client.approvals, (view.run_id, view.approval_id)
        sha256 = view.subject_sha256
        if chance.random() < 0.05:
            sha256 = chance.choice(self.seen).subject_sha256
        word = chance.choices(["yes", "no", "edit", "twice", "lend"], [11, 1, 4, 2, 2])[0]
        if word == "edit" and view.kind == "approval":
            amount = chance.choice([7, 30, 30, 55, 95, "much"])
            change = {0: {"amount": amount}}
            await approvals.edit(*place, seen_sha256=sha256, arguments=change)
        elif word == "no":
            sticky = self._sticky(chance, view)
            sticky = sticky and replace(sticky, uses=None)
            await approvals.deny(*place, seen_sha256=sha256, reason="no", sticky=sticky)
        elif word == "lend":
            until = self.sim.store.now() + seconds(chance.uniform(2, 20))
            to = chance.choice(PEOPLE)
            await client.roles.delegate(view.role, to, until=until)
        elif view.kind == "question":
            answer = chance.choice([3, 40, 70, "many"])
            await approvals.answer(*place, answer, seen_sha256=sha256)
        else:
            sticky = self._sticky(chance, view)
            times = 2 if word == "twice" else 1
            both = [
                approvals.approve(*place, seen_sha256=sha256, sticky=sticky) for _ in range(times)
            ]
            await asyncio.gather(*both, return_exceptions=True)

    def _sticky(self, chance: random.Random, view: ApprovalView) -> outlast.Sticky | None:
        """Return what of a decision is to stick; now and then more than may."""
        if view.sticky == "no" or chance.random() < 0.3:
            return None
        reach: Any = chance.choice(["call", "turn", "run", "run", "workflow"])
        same, when = chance.choice([(), (), ("amount",)]), chance.choice([(), (), (FEW,)])
        if reach == "call":
            same, when = None, ()
        uses = chance.choice([None, 1, 2])
        lasts = chance.choice([None, seconds(4), seconds(60)])
        lasts = seconds(60) if reach == "workflow" and lasts is None else lasts
        return outlast.Sticky(reach, same, when, uses, lasts)

    async def _take_back(self) -> None:
        """Take decisions back that stick, whoever has made them."""
        chance = random.Random(f"{self.seed}/back")
        while True:
            await asyncio.sleep(chance.uniform(1, 5))
            who = self.people[chance.choice(PEOPLE)].approvals
            with contextlib.suppress(OutlastError):
                if found := await who.sticky():
                    await who.revoke(chance.choice(found).sticky_id, "a mistake")

    async def _administer(self) -> None:
        """Give and take roles, and stop effects and let them go on."""
        chance, root = random.Random(f"{self.seed}/root"), self.people["root"]
        while True:
            await asyncio.sleep(chance.uniform(0.5, 6))
            who, role = chance.choice([*STAFF, ("tester", "boss"), ("eve", "boss")])
            with contextlib.suppress(OutlastError):
                match chance.choice(["revoke", "grant", "grant", "brief", "brief", "stop", "lift"]):
                    case "revoke":
                        await root.roles.revoke(who, role, reason="left")
                    case "grant":
                        await root.roles.grant(who, role, reason="is back")
                    case "brief":
                        until = self.sim.store.now() + seconds(chance.uniform(1, 9))
                        await root.roles.grant(who, role, until=until, reason="for a while")
                    case "stop":
                        tool = chance.choice(["*", "two", "p*", "free"])
                        await root.stops.stop("wait", tool=tool)
                    case _:
                        for one in await root.stops.list():
                            await root.stops.lift(one.id, "go on")

    async def _change(self) -> None:
        """Let the fact be another one, seldom."""
        chance = random.Random(f"{self.seed}/fact")
        while True:
            await asyncio.sleep(chance.uniform(5, 30))
            self.world.level += 1

    async def _disturb(self, handle: RunHandle[Any]) -> None:
        """Kill workers, and start others; let some stand still for a while; cancel perhaps."""
        for _ in range(self.chance.randint(0, 5)):
            await asyncio.sleep(self.chance.uniform(0, 9))
            living = [one for one in self.sim.workers if not one.process.stopped]
            if not living:
                continue
            victim = self.chance.choice(living)
            if self.chance.random() < 0.4:
                victim.freeze()
                await asyncio.sleep(self.chance.uniform(0.5, 9))
                victim.thaw()
            else:
                victim.kill()
                await self._start_worker()
        if self.chance.random() < 0.1:
            with contextlib.suppress(OutlastError):
                await handle.cancel()

    async def _fork(self, handle: RunHandle[Any]) -> None:
        """Fork the run, somewhere: nothing that was granted to it is granted to the fork."""
        await asyncio.sleep(self.chance.uniform(2, 15))
        effects: Any = self.chance.choice(["same_key", "new_key"])
        if effects == "same_key":
            # What the run has not told yet it could still do, under the keys of the fork.
            await self.sim.until("r", self._is_over)
        with contextlib.suppress(OutlastError):
            await handle.fork(id="f", reason="to see", effects=effects)

    async def _operate(self, handle: RunHandle[Any]) -> None:
        """Say of each doubt what is true."""
        while True:
            await asyncio.sleep(3)
            for one in (handle, self.sim.client.handle("f")):
                with contextlib.suppress(OutlastError):
                    await self._settle(one)

    async def _settle(self, handle: RunHandle[Any]) -> None:
        if (await handle.status()).status is not Status.BLOCKED:
            return
        for one in (await handle.detail()).operations:
            if one.state != "in doubt":
                continue
            found = self.world.receiver.find(one.key)
            if isinstance(found, outlast.Applied):
                await handle.resolve(one.operation, applied=found.value)
            else:
                await handle.resolve(one.operation, not_applied=True)

    # The books

    async def _check(self) -> None:
        """Each key changed the world once at most, with what was intended, and where it is recorded as done it did."""
        intended: dict[str, set[str]] = {}
        changes = self.world.receiver.changes
        for run in (RUN, FORK):
            head = await self.sim.store.head(run)
            if head is None:
                continue
            _holds(head.status.closed, f"{run} does not end: {head.status} {head.reason}")
            keys: dict[str, str] = {}
            for entry in [from_row(one.row) for one in await self.sim.store.journal(run)]:
                if isinstance(entry, EffectIntended):
                    call = json.loads(bytes(entry.effective))
                    keys[entry.operation] = entry.key
                    value = f"{call['name']} {call['amount']}"
                    intended.setdefault(entry.key, set()).add(value)
                elif isinstance(entry, EffectCompleted) and entry.source != "fork":
                    done = changes[keys[entry.operation]]
                    _holds(done == 1, f"{entry.operation} is recorded, and happened {done} times")
        _holds(max(changes.values(), default=1) == 1, "something happened twice under one key")
        for key, value in self.world.receiver.log:
            meant = intended.get(key, set())
            _holds(value in meant, f"{value} happened, and {meant} was intended")


def _holds(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def look_at(seeds: range, shape: Shape | Callable[[int], Shape] | None = None) -> Counter[str]:
    """Play seeds, and return how often what happened; the error of the first that breaks a promise names it.

    Args:
        shape: Of each run, or of the one of a seed; by default each seed draws one of all there is.

    Raises:
        BrokenPromiseError: With seed and shape.
    """
    happened: Counter[str] = Counter()
    for seed in seeds:
        system = System(seed, shape(seed) if callable(shape) else shape)
        try:
            system.play()
        except Exception as error:
            raise BrokenPromiseError(
                f"seed {seed}: {type(error).__name__}: {error}; {system.shape}"
            ) from error
        consent = system.sim.invariants.consent
        happened.update({**consent.counts, **consent.sticky.counts})
    return happened
