"""Scenarios: what a simulation does, as plain data drawn from one seed.

Equal scenarios play equally, on every machine with the same minor version of Python. A scenario is JSON text and back, so that one that failed can be kept as a test.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from outlast.errors import DecodeError
from outlast.journal.entry import Durability, EffectPolicy
from outlast.testing.fault import Faults
from outlast.testing.simulation.shape import (
    SIGNALS,
    Act,
    Ask,
    Bear,
    Broken,
    Draw,
    Hand,
    Hear,
    Limit,
    Nap,
    Often,
    Serve,
    Several,
    Shape,
    Stray,
    Talk,
    Tell,
    Tidy,
    Twin,
    Work,
    nodes,
)
from outlast.testing.simulation.world import Declared, Fates

Answer: TypeAlias = Literal["approve", "deny", "ignore"]

_AGAIN = "a scenario is the JSON text that `Scenario.to_json` gives and a failed search prints"


class Sending(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A message.

    Args:
        pause: Seconds after the one before it.
        times: How often it is sent, under one id.
        asks: It is an update, and its sender waits for the answer.
    """

    signal: int
    value: int
    pause: float = 0.0
    times: int = 1
    asks: bool = False


class Deciding(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a person does about each request of a run.

    Args:
        after: Seconds after it was seen.
        wrong_first: Decide on another hash before, which must be refused.
        times: How often it is decided.
        contrary: Somebody else says the opposite afterwards, which must be refused.
    """

    answer: Answer = "approve"
    after: float = 0.0
    wrong_first: bool = False
    times: int = 1
    contrary: bool = False


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One run, and what people do to it. Times are seconds after the beginning.

    Args:
        starters: How many start it at the same moment.
        inside: Start, and send, through a worker's own client.
        stranger: Somebody starts other work under the same id, which must be refused.
        meddler: Somebody says what became of effects that are not in doubt, which must change nothing.
        pause: Somebody pauses it then, and resumes it after `resume` seconds.
        timeout: How long it may take.
        fork: Somebody forks it then; a fork is cancelled when it waits for what only its origin was sent.
        effects: What becomes of effects in the fork that the run has not settled.
        anew: Which part of the journal the fork does not keep, from 0 to 1.
        curious: Somebody asks it again and again what it has said.
        durability: When its outcomes are written.
        pinned: Only workers of the build that has begun it move it.
    """

    shape: Shape
    start: float = 0.0
    starters: int = 1
    inside: bool = False
    stranger: bool = False
    meddler: bool = False
    sendings: tuple[Sending, ...] = ()
    deciding: Deciding = Deciding()
    cancel: float | None = None
    terminate: float | None = None
    restart: float | None = None
    pause: float | None = None
    resume: float = 5.0
    timeout: float | None = None
    fork: float | None = None
    effects: EffectPolicy = "refuse"
    anew: float = 0.0
    curious: bool = False
    durability: Durability = "sync"
    pinned: bool = False


Harm: TypeAlias = Literal["kill", "freeze", "stall", "cut", "stop", "outage", "forth", "back"]


class Disturbance(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that happens to a worker, or to all.

    Args:
        at: Seconds after the beginning; or, with `verb`, from when on.
        victim: Which worker, by its number.
        seconds: How long it lasts, or how far the clock jumps.
        verb: Wait until the victim next asks the store for this; or begins an `attempt`, or has just written an `intent`, an
            `outcome` of an effect, a `request` to a person, or that it gives a run back (`park`).
        moment: `before` or `after` what is asked of the store.
    """

    harm: Harm
    at: float
    victim: int = 0
    seconds: float = 5.0
    verb: str = ""
    moment: str = "before"


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All that happens in one simulation.

    Args:
        lease: Of each worker, in seconds.
        idle: How long a run that waits stays in memory, in seconds.
        runs: How many runs a worker holds at once.
        thread_delay: Of synchronous bodies, in seconds.
        crowded: How long such a body waits for a free thread, in seconds.
        builds: How many builds the workers are of, one after the other.
        recalled: A worker of each build comes in the end; else one of the last build, and somebody lets it go on with what others began.
    """

    seed: int
    plans: tuple[Plan, ...]
    disturbances: tuple[Disturbance, ...] = ()
    faults: Faults = Faults()
    fates: Fates = Fates()
    workers: int = 2
    lease: float = 4.0
    idle: float = 1.0
    runs: int = 100
    thread_delay: float = 0.0
    crowded: float = 0.0
    builds: int = 1
    recalled: bool = False

    def to_json(self) -> str:
        """Return it as text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Scenario:
        """Return what `to_json` gave.

        Raises:
            DecodeError: It is no scenario, or has a field that no scenario has.
        """
        try:
            scenario = msgspec.json.decode(text, type=cls)
            named = msgspec.json.decode(text, type=_Named).faults
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise DecodeError(f"this is no scenario: {error}", hint=_AGAIN) from error
        unknown = named.keys() - {field.name for field in dataclasses.fields(Faults)}
        if unknown:
            name = min(unknown)
            raise DecodeError(
                f"this is no scenario: `faults` has no field `{name}`", path="$.faults", hint=_AGAIN
            )
        return scenario


class _Named(msgspec.Struct):
    """The names that a text uses for faults: of a dataclass, msgspec passes unknown ones over."""

    faults: dict[str, Any] = {}


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    chance = random.Random(f"scenario/{seed}")  # noqa: S311 - a seed must repeat
    plans = tuple(_plan(chance) for _ in range(chance.choice([1, 1, 2, 3])))
    # From a stream of their own: what came before them stays as it was drawn.
    asking = random.Random(f"updates/{seed}")  # noqa: S311 - a seed must repeat
    plans = tuple(_asking(asking, plan) for plan in plans)
    workers = chance.choice([1, 2, 2, 3])
    if chance.random() < 0.1:
        # At one moment and place, so that a worker writes for several runs at once.
        plans = tuple(_plan(chance, 1) for _ in range(6))
        plans = tuple(replace(one, start=0.0, inside=True) for one in plans)
        workers = 1
    told = random.Random(f"told/{seed}")  # noqa: S311 - apart from the others, so that these stay as they are
    later = random.Random(f"attempts/{seed}")  # noqa: S311 - a seed must repeat
    if later.random() < 0.4:
        plans = tuple(replace(one, shape=_with_limits(later, one.shape)) for one in plans)
    scenario = Scenario(
        seed=seed,
        plans=_grown_further(seed, tuple(_telling(one, told) for one in plans)),
        disturbances=_disturbances(chance),
        faults=_faults(chance),
        fates=_fates(chance),
        workers=workers,
        lease=chance.choice([1.5, 4.0, 10.0]),
        idle=chance.choice([0.2, 1.0, 5.0]),
        runs=chance.choice([1, 2, 100, 100]),
        thread_delay=chance.choice([0.0, 0.1, 1.0]),
        crowded=chance.choice([0.0, 0.0, 0.0, 3.0]),
    )
    return _built(scenario)


def _built(scenario: Scenario) -> Scenario:
    """Let workers be of two builds, and some runs pinned to the one that has begun them; drawn apart, as all that came later."""
    chance = random.Random(f"builds/{scenario.seed}")  # noqa: S311 - a seed must repeat
    if chance.random() > 0.15:
        return scenario
    plans = tuple(replace(one, pinned=chance.random() < 0.7) for one in scenario.plans)
    return replace(scenario, plans=plans, builds=2, recalled=chance.random() < 0.5)


def _plan(chance: random.Random, depth: int = 3) -> Plan:
    free = list(range(SIGNALS))
    shape = _several(chance, free, depth)
    used = [number for number in range(SIGNALS) if number not in free]
    sendings = [
        Sending(signal, 100 * signal + count, _seconds(chance, 3), chance.choice([1, 1, 2]))
        for signal in used
        for count in range(4)
    ]
    chance.shuffle(sendings)
    ending = chance.random()
    return Plan(
        shape=shape,
        start=_seconds(chance, 3),
        starters=chance.choice([1, 1, 1, 2]),
        inside=chance.random() < 0.5,
        sendings=tuple(sendings),
        deciding=Deciding(
            chance.choice(["approve", "approve", "approve", "deny", "ignore"]),
            _seconds(chance, 30),
            chance.random() < 0.2,
            chance.choice([1, 1, 2]),
            chance.random() < 0.2,
        ),
        stranger=chance.random() < 0.1,
        meddler=chance.random() < 0.1,
        cancel=_seconds(chance, 20) if ending < 0.15 else None,
        terminate=_seconds(chance, 20) if 0.15 <= ending < 0.3 else None,
        restart=20 + _seconds(chance, 10) if 0.2 <= ending < 0.4 else None,
    )


def _telling(plan: Plan, chance: random.Random) -> Plan:
    """Let some runs publish how far they are, as a whole and part by part."""
    if chance.random() > 0.25:
        return plan
    shape = plan.shape
    if isinstance(shape, Several):
        parts = tuple(Tell(one) if chance.random() < 0.5 else one for one in shape.parts)
        shape = replace(shape, parts=parts)
    return replace(plan, shape=Tell(shape))


def _grown_further(seed: int, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Return plans with what was thought of later, each of it drawn apart, so that the rest of a seed stays what it was."""
    for step in (_controlled, _grown, _durable, _forking, _listening):
        plans = step(seed, plans)
    return plans


def _controlled(seed: int, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Pause some runs, and give some of them a time in which to end; drawn apart, so that the rest of a seed stays what it was."""
    chance = random.Random(f"control/{seed}")  # noqa: S311 - a seed must repeat
    found: list[Plan] = []
    for plan in plans:
        kind = chance.random()
        if kind < 0.15:
            plan = replace(plan, pause=_seconds(chance, 10), resume=_seconds(chance, 20))
        if 0.1 <= kind < 0.2:
            plan = replace(plan, timeout=0.1 + _seconds(chance, 30))
        found.append(plan)
    return tuple(found)


def _grown(seed: int, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Let some runs have children, steps in a queue, forks and more than one generation; drawn apart, for the same reason."""
    chance = random.Random(f"growth/{seed}")  # noqa: S311 - a seed must repeat
    found: list[Plan] = []
    for plan in plans:
        kind = chance.random()
        if kind < 0.25:
            plan = replace(plan, shape=_spread(chance, plan.shape))
        if 0.15 <= kind < 0.3:
            plan = replace(plan, shape=_rolling(plan.shape))
        if 0.25 <= kind < 0.4:
            plan = replace(plan, fork=_seconds(chance, 15))
        if chance.random() < 0.1:
            plan = replace(
                plan, curious=True, shape=Tell(plan.shape) if kind >= 0.3 else plan.shape
            )
        found.append(plan)
    return tuple(found)


def _rolling(shape: Shape) -> Several:
    """Return a shape that rolls over after each part."""
    parts = shape.parts if isinstance(shape, Several) else (shape,)
    return Several("rolls", (*parts, Work(3)))


def _spread(chance: random.Random, shape: Shape) -> Shape:
    """Return a shape some of whose parts are carried out by children, or in a queue."""
    match shape:
        case Several(_, parts):
            spread = tuple(_spread(chance, one) for one in parts)
            if chance.random() < 0.2:
                spread = (*spread, Talk(chance.choice([1, 2, 5]), chance.random() < 0.5))
            return _borne(chance, replace(shape, parts=spread))
        case Limit(_, part) | Tidy(part) | Tell(part):
            return replace(shape, part=_spread(chance, part))
        case Work(beats=False, limit=False, thread=False) if chance.random() < 0.6:
            return _borne(chance, replace(shape, far=True))
        case _:
            return _borne(chance, shape)


def _borne(chance: random.Random, shape: Shape) -> Shape:
    """Return a part for a child, unless it needs people who know its run."""
    meets = Hear | Serve | Ask | Tell
    if chance.random() > 0.3 or any(isinstance(node, meets) for _, node in nodes(shape)):
        return shape
    if chance.random() < 0.3:
        shape = _rolling(shape)
    return Bear(shape, chance.choice(["terminate", "cancel", "abandon"]))


def _durable(seed: int, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Let some runs go on before their outcomes are written; drawn apart, so that the rest of a seed stays what it was."""
    chance = random.Random(f"durability/{seed}")  # noqa: S311 - a seed must repeat
    modes: list[Durability] = ["sync", "sync", "async", "exit"]
    return tuple(replace(one, durability=chance.choice(modes)) for one in plans)


def _forking(seed: int, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Let forks act, and keep less than they could."""
    chance = random.Random(f"forks/{seed}")  # noqa: S311 - a seed must repeat
    policies: list[EffectPolicy] = ["refuse", "same_key", "same_key", "new_key"]
    return tuple(
        one
        if one.fork is None
        else replace(
            one,
            effects=chance.choice(policies),
            anew=round(chance.choice([0.0, chance.random()]), 2),
        )
        for one in plans
    )


def _listening(seed: int, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Let whoever has got a step from some runs say meanwhile how far he is."""
    chance = random.Random(f"beats/{seed}")  # noqa: S311 - a seed must repeat
    return tuple(replace(one, shape=_heard_of(chance, one.shape)) for one in plans)


def _heard_of(chance: random.Random, shape: Shape) -> Shape:
    match shape:
        case Several(_, parts):
            return replace(shape, parts=tuple(_heard_of(chance, one) for one in parts))
        case Limit(_, part) | Tidy(part) | Tell(part) | Bear(part):
            return replace(shape, part=_heard_of(chance, part))
        case Hand():
            return replace(shape, beats=chance.random() < 0.6)
        case _:
            return shape


def _asking(chance: random.Random, plan: Plan) -> Plan:
    """Let some of what the run would receive be updates, for which it has handlers."""
    asked = {number for number in range(SIGNALS) if chance.random() < 0.3}
    shape, served = _serving(plan.shape, asked)
    sendings = tuple(replace(one, asks=one.signal in served) for one in plan.sendings)
    return replace(plan, shape=shape, sendings=sendings)


def _serving(shape: Shape, asked: set[int]) -> tuple[Shape, set[int]]:
    """Return a shape with handlers for these names where it would receive without a limit, and the names that have one."""
    match shape:
        case Hear(signal, count, None) if signal in asked:
            return Serve(signal, count), {signal}
        case Several(how, parts):
            served = [_serving(part, asked) for part in parts]
            names = {name for _, found in served for name in found}
            return Several(how, tuple(part for part, _ in served)), names
        case Limit(_, part) | Tidy(part):
            inner, names = _serving(part, asked)
            return replace(shape, part=inner), names
        case _:
            return shape, set()


def _seconds(chance: random.Random, longest: float) -> float:
    """Return a time, often none, rounded so that it reads well."""
    return round(chance.choice([0, chance.uniform(0, 1), chance.uniform(0, longest)]), 2)


def _several(chance: random.Random, free: list[int], depth: int) -> Several:
    how = chance.choice(["seq", "seq", "gather", "group"])
    parts = [_shape(chance, free, depth - 1) for _ in range(chance.choice([1, 2, 2, 3]))]
    return Several(how, tuple(parts))


def _shape(chance: random.Random, free: list[int], depth: int) -> Shape:
    if depth > 0:
        kind = chance.random()
        if kind < 0.2:
            return _several(chance, free, depth)
        if kind < 0.3:
            return Limit(round(chance.uniform(0.1, 10), 2), _shape(chance, free, depth - 1))
        if kind < 0.35:
            return Tidy(_shape(chance, free, depth - 1))
    return _leaf(chance, free)


def _leaf(chance: random.Random, free: list[int]) -> Shape:
    match chance.choice(
        ["work", "work", "broken", "nap", "draw", "hear", "act", "act", "ask", "twin", "stray"]
    ):
        case "work":
            return Work(
                chance.randrange(100),
                chance.choice([0, 0, 1, 3]),
                _seconds(chance, 3),
                chance.random() < 0.3,
            )
        case "broken":
            return Broken(chance.randrange(100))
        case "nap":
            return Nap(_seconds(chance, 30))
        case "hear" if free:
            signal = free.pop(chance.randrange(len(free)))
            if chance.random() < 0.4:
                return Hear(signal, 1, _seconds(chance, 10))
            return Hear(signal, chance.choice([1, 2, 4]))
        case "act" | "ask" | "twin" | "stray" as kind:
            return _effect(chance, kind)
        case _:
            return Draw()


def _effect(chance: random.Random, kind: str) -> Shape:
    match kind:
        case "act":
            return _act(chance)
        case "ask":
            pattern = chance.random() < 0.5
            return Ask(
                _act(chance),
                pattern=pattern,
                again=pattern and chance.random() < 0.7,
                seconds=chance.choice([5.0, 60.0]),
                pause=chance.choice([0.0, 0.0, 2.0]),
            )
        case "stray":
            return Stray(_act(chance))
        case _:
            if chance.random() < 0.4:
                return Often(_act(chance))
            return Twin(_act(chance), chance.random() < 0.3)


def _act(chance: random.Random) -> Act:
    declared: list[Declared] = ["idempotent", "probed", "never"]
    return Act(chance.choice(declared), chance.random() < 0.35)


def _with_limits(chance: random.Random, shape: Shape) -> Shape:
    """Return a shape some of whose attempts have limits, say how far they are, or are completed from outside.

    Drawn apart from the rest, so that the scenarios of all other seeds stay as they are.
    """
    match shape:
        case Several(_, parts):
            return replace(shape, parts=tuple(_with_limits(chance, one) for one in parts))
        case Limit(_, part) | Tidy(part):
            return replace(shape, part=_with_limits(chance, part))
        case Ask(act) | Twin(act) | Often(act) | Stray(act):
            return replace(shape, act=_with_limits(chance, act))
        case Act():
            return replace(shape, limit=chance.random() < 0.6)
        case Work(n, _, _, thread) if chance.random() < 0.3:
            return Hand(n, thread, chance.random() < 0.5)
        case Work():
            return replace(shape, beats=chance.random() < 0.6, limit=chance.random() < 0.5)
        case _:
            return shape


def _disturbances(chance: random.Random) -> tuple[Disturbance, ...]:
    harms: list[Harm] = [
        *("kill", "kill", "freeze", "freeze", "stall", "cut"),
        *("stop", "outage", "forth", "back"),
    ]
    verbs = [
        *("", "", "", "", "commit", "claim", "load", "mail", "renew", "attempt", "attempt"),
        *("intent", "intent", "intent", "outcome", "request", "park"),
    ]
    found = [
        Disturbance(
            chance.choice(harms),
            round(chance.uniform(0, chance.choice([2, 8, 25])), 2),
            chance.randrange(3),
            round(chance.choice([chance.uniform(0, 2), chance.uniform(0, 30)]), 2),
            chance.choice(verbs),
            chance.choice(["before", "after"]),
        )
        for _ in range(chance.choice([0, 1, 2, 3, 4]))
    ]
    return tuple(sorted(found, key=lambda one: one.at))


def _faults(chance: random.Random) -> Faults:
    if chance.random() < 0.3:
        return Faults(latency=chance.choice([0.0, 0.01]))
    return Faults(
        latency=chance.choice([0.0, 0.01, 0.3]),
        unavailable=chance.choice([0.0, 0.05, 0.3]),
        lost_request=chance.choice([0.0, 0.05, 0.3]),
        lost_answer=chance.choice([0.0, 0.05, 0.3]),
        lost_hint=chance.choice([0.0, 1.0]),
        outlives=chance.choice([0.0, 0.5, 1.0]),
        echoes=chance.choice([0.0, 0.2]),
    )


def _fates(chance: random.Random) -> Fates:
    if chance.random() < 0.2:
        return Fates()
    return Fates(
        declined=chance.choice([0.0, 0.1]),
        lost=chance.choice([0.0, 0.15, 0.2]),
        dropped=chance.choice([0.0, 0.15, 0.2]),
        slow=chance.choice([0.0, 0.3]),
        late=chance.choice([0.0, 0.15, 0.2]),
        unsure=chance.choice([0.0, 0.2, 0.5]),
    )
