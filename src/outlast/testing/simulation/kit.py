"""The one workflow that carries any shape out, its steps and its effects.

Nothing here is declared by decorators: importing it must not add workflows to anybody's app.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

import msgspec

import outlast
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.effects.retry import ONCE, RetryPolicy
from outlast.testing.simulation.shape import (
    LATE,
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
    often,
)
from outlast.testing.simulation.world import (
    SETTLE,
    TIMEOUT,
    Declared,
    DeclinedError,
    Handed,
    World,
)
from outlast.workflows.definition import (
    AttemptOptions,
    Definition,
    Effect,
    EffectOptions,
    Step,
    Workflow,
)
from outlast.workflows.placement import Placement

QUICK = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=4))
LIMIT = timedelta(seconds=6)
"""For all attempts, where they have a limit: so long that some come to their end within it and some do not."""
SILENCE = timedelta(seconds=1.5)
_PARTS = 4
TWICE = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_attempts=2)
MESSAGES = tuple(outlast.Signal(f"simulated-{number}", int) for number in range(SIGNALS))
UPDATES = tuple(outlast.Update(f"simulated-{number}", int, int) for number in range(SIGNALS))

_decoder: msgspec.json.Decoder[Shape] = msgspec.json.Decoder(Shape)


# The workflow


class Stage:
    """Where the bodies below find the world that they act on. One simulation runs at a time."""

    world: World


stage = Stage()


TOLD = outlast.Query("simulated-told", None, list[list[str]])
STAGE = "stage"
_told: ContextVar[list[list[str]]] = ContextVar("simulated_told")


async def shaped(shape: str, purpose: str, done: str = "[]") -> str:
    """Carry out a shape; `purpose` names what its effects are for, anew for each start.

    Args:
        done: What the parts before gave, where each has a generation of its own.
    """
    return await _shaped(SHAPED, shape, purpose, done)


async def shaped_by_one_build(shape: str, purpose: str, done: str = "[]") -> str:
    """Do the same where the run is pinned to the build that has begun it."""
    return await _shaped(PINNED, shape, purpose, done)


async def _shaped(workflow: Workflow[..., str], shape: str, purpose: str, done: str) -> str:
    told: list[list[str]] = []
    _told.set(told)
    outlast.on_query(TOLD, lambda _: told)
    whole = _decoder.decode(shape)
    if not (isinstance(whole, Several) and whole.how == "rolls"):
        return msgspec.json.encode(await carry_out(whole, f"{purpose}/0")).decode()
    values: list[Any] = msgspec.json.decode(done)
    number = len(values)
    values.append(await carry_out(whole.parts[number], f"{purpose}/0.{number}"))
    text = msgspec.json.encode(values).decode()
    if len(values) < len(whole.parts):
        outlast.continue_as_new(workflow(shape, purpose, text))
    return text


async def carry_out(shape: Shape, path: str) -> Any:
    """Carry out a part, and return what `fits` understands."""
    match shape:
        case Work() | Hand() | Broken() | Nap() | Draw():
            return await _simple(shape)
        case Hear() | Serve() | Bear() | Talk():
            return await _with_others(shape, path)
        case Act():
            return await _act(shape, path)
        case Twin() | Often() | Stray():
            return await _again(shape, path)
        case Ask():
            return await _ask(shape, path)
        case Several():
            return await _several(shape, path)
        case Tidy() | Tell():
            return await _around(shape, path)
        case Limit(seconds, part):
            since = outlast.now()
            try:
                async with asyncio.timeout(seconds):
                    return ["in time", await carry_out(part, f"{path}.0")]
            except TimeoutError:
                return ["cut", _since(since)]


async def _with_others(shape: Hear | Serve | Bear | Talk, path: str) -> Any:
    match shape:
        case Hear():
            return await _hear(shape)
        case Serve():
            return await _serve(shape)
        case Bear() | Talk():
            return await _with_child(shape, path)


async def _with_child(shape: Bear | Talk, path: str) -> Any:
    if isinstance(shape, Bear):
        call = SHAPED(_encoded(shape.part), path)
        return msgspec.json.decode(await outlast.run_child(call, parent_close=shape.close))
    child = await outlast.start_child(SHAPED(_encoded(Hear(0, shape.count)), path))
    other = outlast.run_handle(child.id, SHAPED) if shape.outside else child
    for number in range(shape.count):
        await other.send(MESSAGES[0], number)
    return msgspec.json.decode(await other.result())


def _encoded(shape: Shape) -> str:
    return msgspec.json.encode(shape).decode()


async def _around(shape: Tidy | Tell, path: str) -> Any:
    if isinstance(shape, Tell):
        _tell(path, "begun")
        value = await carry_out(shape.part, f"{path}.0")
        _tell(path, "done")
        return value
    try:
        return await carry_out(shape.part, f"{path}.0")
    finally:
        await WORK(0, 0, 0.0)


def _tell(path: str, what: str) -> None:
    """Publish it, and note it for whoever asks."""
    said = [path.rpartition("/")[2], what]
    outlast.publish(STAGE, said)
    _told.get().append(said)


def _since(moment: datetime) -> float:
    """Return the seconds since then, by the run's own time."""
    return (outlast.now() - moment).total_seconds()


async def _simple(shape: Work | Hand | Broken | Nap | Draw) -> Any:
    match shape:
        case Work() | Hand():
            return await _step_of(shape)
        case Broken(n):
            try:
                return await BROKEN(n)
            except ValueError:
                return "broken"
        case Nap(seconds):
            since = outlast.now()
            await outlast.sleep(seconds)
            return ["slept", _since(since)]
        case Draw():
            return [outlast.random().random(), outlast.now().isoformat(), str(outlast.uuid4())]


async def _step_of(shape: Work | Hand) -> Any:
    try:
        if isinstance(shape, Hand):
            return await HANDS[shape.thread, shape.limit, shape.beats](shape.n)
        if shape.far:
            return await FAR(shape.n, shape.fails, shape.seconds)
        works = WORKS[shape.thread, shape.beats, shape.limit]
        return await works(shape.n, shape.fails, shape.seconds)
    except TimeoutError:
        return LATE


async def _several(shape: Several, path: str) -> list[Any]:
    paths = [(part, f"{path}.{at}") for at, part in enumerate(shape.parts)]
    if shape.how == "seq":
        return [await carry_out(*one) for one in paths]
    if shape.how == "gather":
        return await asyncio.gather(*(carry_out(*one) for one in paths))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(carry_out(*one)) for one in paths]
    return [task.result() for task in tasks]


async def _hear(shape: Hear) -> Any:
    signal = MESSAGES[shape.signal]
    if shape.seconds is None:
        return [await outlast.receive(signal) for _ in range(shape.count)]
    since = outlast.now()
    try:
        return [await outlast.receive(signal, timeout=timedelta(seconds=shape.seconds))]
    except TimeoutError:
        return ["nothing", _since(since)]


async def _serve(shape: Serve) -> list[int]:
    heard: list[int] = []

    async def serve(value: int) -> int:
        heard.append(value)
        return await WORK(value, 0, 0.0)

    outlast.on_update(UPDATES[shape.signal], serve)
    await outlast.wait_condition(lambda: len(heard) >= shape.count)
    return heard[: shape.count]


async def _act(
    shape: Act, purpose: str, extra: int = 0, effects: Mapping[Any, Effect[..., Any]] | None = None
) -> Any:
    try:
        known = effects or EFFECTS
        return await known[shape.declared, shape.thread, shape.limit](purpose, extra)
    except DeclinedError:
        return "declined"
    except TimeoutError:
        return LATE


async def _again(shape: Twin | Often | Stray, path: str) -> Any:
    if isinstance(shape, Stray):
        # The loop of a workflow holds its tasks.
        asyncio.create_task(_act(shape.act, path))  # noqa: RUF006
        return "left"
    if isinstance(shape, Often):
        return [await _act(shape.act, often(path), 0, REPEATING) for _ in range(2)]
    if not shape.in_row:
        return list(await asyncio.gather(_act(shape.act, path), _act(shape.act, path)))
    first = await _act(shape.act, path)
    try:
        return [first, await _act(shape.act, path)]
    except outlast.RepeatedEffectError as error:
        return [first, type(error).__name__]


async def _ask(shape: Ask, path: str) -> Any:
    effect = GUARDED[shape.act.declared, shape.act.thread, shape.act.limit]
    cover = effect.where(purpose=path) if shape.pattern else effect(path, 0)
    try:
        await outlast.approval(
            {"path": path},
            covers=[cover],
            role="boss",
            expires_in=timedelta(seconds=shape.seconds),
            use_within=timedelta(seconds=shape.seconds + 2 * shape.pause),
        )
    except outlast.ApprovalDeniedError:
        return ["denied", await _defy(shape.act, path)]
    except outlast.ApprovalExpiredError:
        return ["expired", await _defy(shape.act, path)]
    if shape.pause:
        await outlast.sleep(shape.pause)
    refused = await _defy(shape.act, f"{path}/else")
    try:
        done = await _act(shape.act, path, 0, GUARDED)
    except outlast.ApprovalExpiredError:
        return ["too late", refused]
    if not shape.again:
        return ["granted", refused, done]
    return ["granted", refused, done, await _defy(shape.act, path, 1)]


async def _defy(shape: Act, path: str, extra: int = 0) -> str:
    """Do what no grant covers, and return the name of the error that says so."""
    try:
        await _act(shape, path, extra, GUARDED)
    except outlast.ApprovalError as error:
        return type(error).__name__
    return "done"


async def work(n: int, fails: int, seconds: float) -> int:
    """Fail, then return twice `n`."""
    if seconds:
        await asyncio.sleep(seconds)
    return _double(n, fails)


def work_in_thread(n: int, fails: int, seconds: float) -> int:
    """Fail, then return twice `n`, in a thread; which takes no time of the simulation."""
    return _double(n, fails)


async def beat(n: int, fails: int, seconds: float) -> int:
    """Go on from where the last attempt was heard of, say so as it goes, fail, then return twice `n`."""
    done = _heard()
    while done < _PARTS:
        await asyncio.sleep(seconds / _PARTS)
        done += 1
        outlast.heartbeat(Heard(n, done))
    return _double(n, fails)


def beat_in_thread(n: int, fails: int, seconds: float) -> int:
    """Do the same in a thread."""
    for done in range(_heard(), _PARTS):
        outlast.heartbeat(Heard(n, done + 1))
    return _double(n, fails)


class Heard(msgspec.Struct):
    """How far a body has come."""

    n: int
    done: int


def _heard() -> int:
    found = outlast.heartbeat_details(Heard)
    return 0 if found is None else found.done


def _double(n: int, fails: int) -> int:
    if outlast.attempt().number <= fails:
        raise OSError("not yet")
    return n * 2


async def hand(n: int) -> int:
    """Hand a token out, and let somebody say twice `n`."""
    stage.world.tokens.append(Handed(outlast.completion_token(), n * 2))
    outlast.complete_later()


def hand_in_thread(n: int) -> int:
    """Do the same in a thread."""
    stage.world.tokens.append(Handed(outlast.completion_token(), n * 2))
    outlast.complete_later()


async def hand_and_listen(n: int) -> int:
    """Hand a token out to somebody who says how far he is, from where the last one was."""
    stage.world.tokens.append(Handed(outlast.completion_token(), n * 2, _heard()))
    outlast.complete_later()


def hand_and_listen_in_thread(n: int) -> int:
    """Do the same in a thread."""
    stage.world.tokens.append(Handed(outlast.completion_token(), n * 2, _heard()))
    outlast.complete_later()


async def broken(n: int) -> int:
    """Fail for good."""
    raise ValueError(f"{n} is never right")


async def act_idempotent(purpose: str, extra: int) -> str:
    """Ask a receiver that knows its keys."""
    return await stage.world.request("idempotent", _named(purpose, extra))


async def act_probed(purpose: str, extra: int) -> str:
    """Ask a receiver that can be asked."""
    return await stage.world.request("probed", _named(purpose, extra))


async def act_never(purpose: str, extra: int) -> str:
    """Ask a receiver that nothing is known of."""
    return await stage.world.request("never", _named(purpose, extra))


def act_idempotent_in_thread(purpose: str, extra: int) -> str:
    """Ask a receiver that knows its keys, in a thread."""
    return stage.world.request_blocking("idempotent", _named(purpose, extra))


def act_probed_in_thread(purpose: str, extra: int) -> str:
    """Ask a receiver that can be asked, in a thread."""
    return stage.world.request_blocking("probed", _named(purpose, extra))


def act_never_in_thread(purpose: str, extra: int) -> str:
    """Ask a receiver that nothing is known of, in a thread."""
    return stage.world.request_blocking("never", _named(purpose, extra))


def find(purpose: str, extra: int) -> Applied[str] | NotApplied | Unknown:
    """Ask what became of it."""
    return stage.world.find(_named(purpose, extra))


def _named(purpose: str, extra: int) -> str:
    return f"{purpose}+{extra}" if extra else purpose


def _step(
    function: Any, retry: RetryPolicy, *raises: type[Exception], **times: Any
) -> Step[..., Any]:
    late = "_in_time" if times.get("schedule_to_close_timeout") else ""
    options = AttemptOptions(retry, raises=raises, **times)
    made: Step[..., Any] = Step(function, f"simulated_{function.__name__}{late}", options)
    return made


def _effect(function: Any, declared: Declared, prefix: str, *, limit: bool) -> Effect[..., Any]:
    rules = EffectOptions(
        idempotent=declared == "idempotent",
        probe=find if declared == "probed" else None,
        settle=SETTLE,
        not_applied=(DeclinedError,),
        repeats=prefix == "repeating",
    )
    retry = ONCE if declared == "never" else QUICK
    options = AttemptOptions(retry, TIMEOUT, (DeclinedError,), LIMIT if limit else None)
    late = "_in_time" if limit else ""
    return Effect(function, f"{prefix}_{function.__name__}{late}", options, rules)


def _effects(prefix: str) -> dict[tuple[str, bool, bool], Effect[..., Any]]:
    bodies: dict[tuple[Declared, bool], Any] = {
        ("idempotent", False): act_idempotent,
        ("probed", False): act_probed,
        ("never", False): act_never,
        ("idempotent", True): act_idempotent_in_thread,
        ("probed", True): act_probed_in_thread,
        ("never", True): act_never_in_thread,
    }
    return {
        (declared, thread, limit): _effect(body, declared, prefix, limit=limit)
        for limit in (False, True)
        for (declared, thread), body in bodies.items()
    }


def _works() -> dict[tuple[bool, bool, bool], Step[..., Any]]:
    bodies: dict[tuple[bool, bool], tuple[Any, dict[str, Any]]] = {
        (False, False): (work, {}),
        (True, False): (work_in_thread, {}),
        (False, True): (beat, {"heartbeat_timeout": SILENCE}),
        (True, True): (beat_in_thread, {"heartbeat_timeout": SILENCE}),
    }
    return {
        (*how, limit): _step(
            body, QUICK, **times, **({"schedule_to_close_timeout": LIMIT} if limit else {})
        )
        for limit in (False, True)
        for how, (body, times) in bodies.items()
    }


def _hands() -> dict[tuple[bool, bool, bool], Step[..., Any]]:
    bodies: dict[tuple[bool, bool], tuple[Any, dict[str, Any]]] = {
        (False, False): (hand, {}),
        (True, False): (hand_in_thread, {}),
        (False, True): (hand_and_listen, {"heartbeat_timeout": SILENCE}),
        (True, True): (hand_and_listen_in_thread, {"heartbeat_timeout": SILENCE}),
    }
    return {
        (thread, limit, beats): _step(
            body,
            QUICK,
            start_to_close_timeout=4 * TIMEOUT,
            **times,
            **({"schedule_to_close_timeout": 2 * LIMIT} if limit else {}),
        )
        for limit in (False, True)
        for (thread, beats), (body, times) in bodies.items()
    }


EFFECTS = _effects("simulated")
GUARDED = _effects("guarded")
"""Those that only happen covered by an approval; one that speaks of an effect speaks of it in the whole run."""
REPEATING = _effects("repeating")
WORKS = _works()
HANDS = _hands()
WORK = WORKS[False, False, False]
QUEUE = "simulated"
FAR: Step[..., Any] = Step(
    work, "simulated_far_work", AttemptOptions(QUICK), placement=Placement(QUEUE)
)
BROKEN = _step(broken, TWICE, ValueError)
SHAPED: Workflow[..., str] = Workflow(shaped, "simulated_shape")
PINNED: Workflow[..., str] = Workflow(shaped_by_one_build, "simulated_pinned_shape", pin=True)
KIT: tuple[Definition[..., Any], ...] = (
    *(SHAPED, PINNED, BROKEN, FAR),
    *WORKS.values(),
    *HANDS.values(),
    *EFFECTS.values(),
    *GUARDED.values(),
    *REPEATING.values(),
)
"""What every worker registers."""


def kit_of(build: int) -> tuple[Definition[..., Any], ...]:
    """Return what a worker of one of several builds registers: the same code, from other sources."""
    workflow = copy.copy(PINNED)
    workflow.__module__ = f"simulated_build_{build}"
    return tuple(workflow if one is PINNED else one for one in KIT)


def workflow_of(*, pinned: bool) -> Workflow[..., str]:
    """Return the workflow of a run."""
    return PINNED if pinned else SHAPED
