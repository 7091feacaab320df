"""Makes a failing scenario small: leaves out and simplifies whatever the failure does not need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.testing.fault import Faults
from outlast.testing.simulation.scenario import Disturbance, Plan, Scenario
from outlast.testing.simulation.shape import (
    Act,
    Ask,
    Bear,
    Hand,
    Hear,
    Limit,
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
)
from outlast.testing.simulation.world import Fates

MOST_TRIES = 400


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return a scenario that fails as well, and of which no single part can be left out.

    Args:
        fails: Plays a scenario, and says whether it fails in the same way.
    """
    tries = MOST_TRIES
    smaller = True
    while smaller and tries > 0:
        smaller = False
        for candidate in _smaller(scenario):
            tries -= 1
            if fails(candidate):
                scenario, smaller = candidate, True
                break
            if tries <= 0:
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Return scenarios with one thing less, the biggest things first."""
    if len(scenario.plans) > 1:
        for plans in _without_one(scenario.plans):
            yield replace(scenario, plans=plans)
    for disturbances in _without_one(scenario.disturbances):
        yield replace(scenario, disturbances=disturbances)
    if scenario.workers > 1:
        yield replace(scenario, workers=scenario.workers - 1)
    yield from _calmer(scenario, replace(scenario, thread_delay=0.0, crowded=0.0))
    yield from _with_simpler(scenario, "faults", _calmer(scenario.faults, Faults()))
    yield from _with_simpler(scenario, "fates", _calmer(scenario.fates, Fates()))
    for at, plan in enumerate(scenario.plans):
        plans = (_with(scenario.plans, at, one) for one in _simpler_plans(plan))
        yield from _with_simpler(scenario, "plans", plans)
    for at, harm in enumerate(scenario.disturbances):
        calm = _calmer(harm, Disturbance(harm.harm, harm.at))
        harms = (_with(scenario.disturbances, at, one) for one in calm)
        yield from _with_simpler(scenario, "disturbances", harms)


def _with_simpler(scenario: Scenario, name: str, values: Iterable[Any]) -> Iterator[Scenario]:
    return (replace(scenario, **{name: value}) for value in values)


def _simpler_plans(plan: Plan) -> Iterator[Plan]:
    yield from _calmer(plan, Plan(plan.shape, sendings=plan.sendings))
    for sendings in _without_one(plan.sendings):
        yield replace(plan, sendings=sendings)
    for shape in _simpler(plan.shape):
        yield replace(plan, shape=shape)


def _simpler(shape: Shape) -> Iterator[Shape]:
    match shape:
        case Several(how, parts):
            if how == "rolls":
                yield Several("seq", parts)
            yield from parts
            if len(parts) > 1:
                for fewer in _without_one(parts):
                    yield Several(how, fewer)
            for at, part in enumerate(parts):
                for simpler in _simpler(part):
                    yield Several(how, _with(parts, at, simpler))
        case Limit(_, part) | Tidy(part) | Tell(part) | Bear(part):
            yield part
            for simpler in _simpler(part):
                yield replace(shape, part=simpler)
        case Ask(act) | Twin(act) | Often(act) | Stray(act):
            yield act
            yield from filter(_is_covered, _calmer(shape, type(shape)(act)))
        case Hand(n):
            yield Work(n)
            yield from _calmer(shape, Hand(n))
        case Act() | Work() | Hear() | Serve() | Talk():
            yield from _calmer(shape, _plain(shape))
        case _:
            return


def _is_covered(shape: Shape) -> bool:
    """Whether a second act is refused for what its cover lets happen once: without a pattern there is no cover for it at all."""
    return not (isinstance(shape, Ask) and shape.again and not shape.pattern)


def _plain(shape: Act | Work | Hear | Serve | Talk) -> Shape:
    """Return a part of the same kind without anything that may be left out."""
    match shape:
        case Act(declared, thread):
            return Act(declared, thread)
        case Work(n):
            return Work(n)
        case Hear(signal):
            return Hear(signal)
        case Serve(signal):
            return Serve(signal)
        case Talk():
            return Talk(1)


def _calmer(one: Any, calm: Any) -> Iterator[Any]:
    """Return `one` with one field after another as it is in `calm`."""
    names = (
        one.__struct_fields__
        if isinstance(one, msgspec.Struct)
        else tuple(one.__dataclass_fields__)
    )
    for name in names:
        if getattr(one, name) != getattr(calm, name):
            yield _changed(one, name, getattr(calm, name))


def _changed(one: Any, name: str, value: Any) -> Any:
    if isinstance(one, msgspec.Struct):
        return replace(one, **{name: value})
    return dataclasses.replace(one, **{name: value})


def _without_one(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for at in range(len(items)):
        yield items[:at] + items[at + 1 :]


def _with(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])
