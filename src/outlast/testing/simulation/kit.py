"""The one workflow that carries any shape out, its steps and its effects.

Nothing here is declared by decorators: importing it must not add workflows to anybody's app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

import outlast
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.effects.retry import ONCE, RetryPolicy
from outlast.testing.simulation.shape import (
    SIGNALS,
    Act,
    Ask,
    Broken,
    Draw,
    Hear,
    Limit,
    Nap,
    Often,
    Several,
    Shape,
    Stray,
    Tidy,
    Twin,
    Work,
    often,
)
from outlast.testing.simulation.world import SETTLE, TIMEOUT, Declared, DeclinedError, World
from outlast.workflows.definition import (
    AttemptOptions,
    Definition,
    Effect,
    EffectOptions,
    Step,
    Workflow,
)

QUICK = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=4))
TWICE = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_attempts=2)
MESSAGES = tuple(outlast.Signal(f"simulated-{number}", int) for number in range(SIGNALS))

_decoder: msgspec.json.Decoder[Shape] = msgspec.json.Decoder(Shape)


# The workflow


class Stage:
    """Where the bodies below find the world that they act on. One simulation runs at a time."""

    world: World


stage = Stage()


async def shaped(shape: str, purpose: str, done: str = "[]") -> str:
    """Carry out a shape; `purpose` names what its effects are for, anew for each start.

    Args:
        done: What the parts before gave, where each has a generation of its own.
    """
    whole = _decoder.decode(shape)
    if not (isinstance(whole, Several) and whole.how == "rolls"):
        return msgspec.json.encode(await carry_out(whole, f"{purpose}/0")).decode()
    values: list[Any] = msgspec.json.decode(done)
    number = len(values)
    values.append(await carry_out(whole.parts[number], f"{purpose}/0.{number}"))
    text = msgspec.json.encode(values).decode()
    if len(values) < len(whole.parts):
        outlast.continue_as_new(SHAPED(shape, purpose, text))
    return text


async def carry_out(shape: Shape, path: str) -> Any:
    """Carry out a part, and return what `fits` understands."""
    match shape:
        case Work() | Broken() | Nap() | Draw():
            return await _simple(shape)
        case Hear():
            return await _hear(shape)
        case Act():
            return await _act(shape, path)
        case Twin() | Often() | Stray():
            return await _again(shape, path)
        case Ask():
            return await _ask(shape, path)
        case Several():
            return await _several(shape, path)
        case Tidy(part):
            try:
                return await carry_out(part, f"{path}.0")
            finally:
                await WORK(0, 0, 0.0)
        case Limit(seconds, part):
            since = outlast.now()
            try:
                async with asyncio.timeout(seconds):
                    return ["in time", await carry_out(part, f"{path}.0")]
            except TimeoutError:
                return ["cut", _since(since)]


def _since(moment: datetime) -> float:
    """Return the seconds since then, by the run's own time."""
    return (outlast.now() - moment).total_seconds()


async def _simple(shape: Work | Broken | Nap | Draw) -> Any:
    match shape:
        case Work(n, fails, seconds, thread):
            return await (WORK_IN_THREAD(n, fails) if thread else WORK(n, fails, seconds))
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


async def _act(
    shape: Act, purpose: str, extra: int = 0, effects: Mapping[Any, Effect[..., Any]] | None = None
) -> Any:
    try:
        return await (effects or EFFECTS)[shape.declared, shape.thread](purpose, extra)
    except DeclinedError:
        return "declined"


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
    effect = GUARDED[shape.act.declared, shape.act.thread]
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


def work_in_thread(n: int, fails: int) -> int:
    """Fail, then return twice `n`, in a thread."""
    return _double(n, fails)


def _double(n: int, fails: int) -> int:
    if outlast.attempt().number <= fails:
        raise OSError("not yet")
    return n * 2


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


def _step(function: Any, retry: RetryPolicy, *raises: type[Exception]) -> Step[..., Any]:
    return Step(function, f"simulated_{function.__name__}", AttemptOptions(retry, None, raises))


def _effect(function: Any, declared: Declared, prefix: str) -> Effect[..., Any]:
    rules = EffectOptions(
        idempotent=declared == "idempotent",
        probe=find if declared == "probed" else None,
        settle=SETTLE,
        not_applied=(DeclinedError,),
        repeats=prefix == "repeating",
    )
    retry = ONCE if declared == "never" else QUICK
    options = AttemptOptions(retry, TIMEOUT, (DeclinedError,))
    return Effect(function, f"{prefix}_{function.__name__}", options, rules)


def _effects(prefix: str) -> dict[tuple[str, bool], Effect[..., Any]]:
    return {
        ("idempotent", False): _effect(act_idempotent, "idempotent", prefix),
        ("probed", False): _effect(act_probed, "probed", prefix),
        ("never", False): _effect(act_never, "never", prefix),
        ("idempotent", True): _effect(act_idempotent_in_thread, "idempotent", prefix),
        ("probed", True): _effect(act_probed_in_thread, "probed", prefix),
        ("never", True): _effect(act_never_in_thread, "never", prefix),
    }


EFFECTS = _effects("simulated")
GUARDED = _effects("guarded")
"""Those that only happen covered by an approval; one that speaks of an effect speaks of it in the whole run."""
REPEATING = _effects("repeating")
WORK = _step(work, QUICK)
WORK_IN_THREAD = _step(work_in_thread, QUICK)
BROKEN = _step(broken, TWICE, ValueError)
SHAPED: Workflow[..., str] = Workflow(shaped, "simulated_shape")
KIT: tuple[Definition[..., Any], ...] = (
    *(SHAPED, WORK, WORK_IN_THREAD, BROKEN),
    *EFFECTS.values(),
    *GUARDED.values(),
    *REPEATING.values(),
)
"""What every worker registers."""
