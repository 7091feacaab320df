"""What the decorators refuse where the function is defined, and what they make of one that they accept."""

# ruff: noqa: D103

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.intent import Repeat
from outlast.effects.retry import ONCE, RetryPolicy
from outlast.errors import DefinitionError, ForbiddenInWorkflowError
from outlast.workflows.definition import AttemptOptions

MINUTE = timedelta(minutes=1)
DECORATORS = {
    "workflow": outlast.workflow,
    "step": outlast.step,
    "effect": outlast.effect(idempotent=True),
}


async def plain(n: int) -> int:
    """Return the number."""
    return n


class OwnError(Exception):
    """A type that steps declare."""


@pytest.mark.parametrize("kind", DECORATORS)
def test_missing_annotations_are_refused(kind):
    """Every parameter and the result need an annotation; the error names those without."""

    async def bare(a, b: int, *, c):
        return a

    with pytest.raises(
        DefinitionError, match=rf"{kind} bare has no annotation for a, c, the result"
    ) as caught:
        DECORATORS[kind](bare)
    assert caught.value.step == "bare"


@pytest.mark.parametrize("kind", DECORATORS)
def test_generators_are_refused(kind):
    """A generator has no one result."""

    async def several() -> int:
        yield 1

    def some() -> int:
        yield 1

    with pytest.raises(DefinitionError, match="is a generator"):
        DECORATORS[kind](several)
    with pytest.raises(DefinitionError, match="is a generator"):
        DECORATORS[kind](some)


@pytest.mark.parametrize("kind", DECORATORS)
@pytest.mark.parametrize("name", ["a:b", "a#2", "a\nb", "\x1f", "a\ud800"])
def test_names_that_would_make_keys_ambiguous_are_refused(kind, name):
    """A name holds no ':', no '#', no control character, and can be encoded."""
    decorator = {"workflow": outlast.workflow, "step": outlast.step, "effect": outlast.effect}[kind]
    more = {"idempotent": True} if kind == "effect" else {}
    with pytest.raises(DefinitionError):
        decorator(name=name, **more)(plain)


@pytest.mark.parametrize("kind", DECORATORS)
def test_what_is_no_function_is_refused(kind):
    """A class, a partial, an instance and a second decoration are refused."""

    class Thing:
        def __call__(self, n: int) -> int:
            return n

    for wrong in (Thing, Thing(), functools.partial(plain, 1), outlast.step(plain), 7):
        with pytest.raises(DefinitionError, match="no function"):
            DECORATORS[kind](wrong)


def test_methods_are_refused():
    """A method's `self` has no annotation, and could not be stored."""
    with pytest.raises(DefinitionError, match="no annotation for self"):

        class _Holder:
            @outlast.step
            async def work(self, n: int) -> int:
                return n


def test_workflow_must_be_async():
    """A plain function cannot wait."""
    with pytest.raises(DefinitionError, match="not an async function"):

        @outlast.workflow
        def flow(n: int) -> int:
            return n


def test_clock_in_the_source_of_a_workflow_is_refused():
    """A clock in the source is found at import, with its line and what to write instead."""
    with pytest.raises(
        ForbiddenInWorkflowError, match=r"(?s)datetime\.now.*outlast\.now"
    ) as caught:

        @outlast.workflow
        async def flow() -> str:
            return dt.datetime.now().isoformat()

    assert caught.value.step == "flow"


def test_early_binding_of_wait_for_is_refused(monkeypatch):
    """A name bound to asyncio's own `wait_for` is refused: it is not the one that replay knows."""
    from outlast.replay.wait import install, originals

    install()

    async def flow() -> int:
        return await wait_for(asyncio.sleep(0, 1), 1)  # noqa: F821

    monkeypatch.setitem(globals(), "wait_for", originals()["wait_for"])
    with pytest.raises(ForbiddenInWorkflowError, match="wait_for as imported before outlast"):
        outlast.workflow(flow)


def test_effect_without_timeout_is_refused_unless_idempotent():
    """Nothing may be done about an unknown outcome before the attempt can no longer act: that needs a time."""
    with pytest.raises(DefinitionError, match="no start_to_close_timeout"):
        outlast.effect(plain)
    with pytest.raises(DefinitionError, match="no start_to_close_timeout"):
        outlast.effect(probe=plain)(plain)
    assert outlast.effect(start_to_close_timeout=MINUTE)(plain).repeat is Repeat.NEVER
    assert outlast.effect(probe=plain, start_to_close_timeout=MINUTE)(plain).repeat is Repeat.PROBED
    assert outlast.effect(idempotent=True)(plain).repeat is Repeat.IDEMPOTENT


def test_retry_on_an_effect_that_cannot_bear_it_is_refused():
    """Without a key that the receiver honours, and without a probe, an attempt is never repeated."""
    for retry in (RetryPolicy(), RetryPolicy(maximum_attempts=2)):
        with pytest.raises(DefinitionError, match="although nothing makes that safe"):
            outlast.effect(start_to_close_timeout=MINUTE, retry=retry)(plain)
    once = outlast.effect(start_to_close_timeout=MINUTE)(plain)
    assert once.options.retry == ONCE
    assert outlast.effect(start_to_close_timeout=MINUTE, retry=ONCE)(plain).options.retry == ONCE
    assert outlast.effect(idempotent=True)(plain).options.retry == RetryPolicy()


def test_probe_takes_the_effects_parameters():
    """A probe with other parameters could not be asked; a step may be one."""

    async def find(m: int) -> Any:
        return outlast.NotApplied()

    with pytest.raises(DefinitionError, match=r"takes \(m\)") as caught:
        outlast.effect(probe=find, start_to_close_timeout=MINUTE)(plain)
    assert "(n)" in caught.value.hint
    outlast.effect(probe=outlast.step(plain), start_to_close_timeout=MINUTE)(plain)


def test_idempotent_and_probed_is_refused():
    """One promise is enough, and two would contradict each other."""
    with pytest.raises(DefinitionError, match="both idempotent and probed"):
        outlast.effect(idempotent=True, probe=plain, start_to_close_timeout=MINUTE)(plain)


@pytest.mark.parametrize(
    "given",
    [{"probe_retry": outlast.RetryPolicy()}, {"probe_timeout": MINUTE}],
    ids=["probe_retry", "probe_timeout"],
)
def test_what_is_said_of_a_probe_needs_one(given):
    """A policy or a time of a probe means nothing without it."""
    with pytest.raises(DefinitionError, match=f"has {next(iter(given))} and no probe"):
        outlast.effect(idempotent=True, **given)(plain)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"probe_retry": 3}, "no RetryPolicy"),
        ({"probe_timeout": 3}, "no timedelta"),
        ({"probe_timeout": timedelta(0)}, "probe_timeout of 0:00:00"),
        ({"probe_timeout": timedelta(days=400)}, "probe_timeout of 400 days"),
    ],
)
def test_a_probe_has_a_policy_and_a_time_that_can_be_meant(given, why):
    """What cannot be meant is refused where it is declared."""
    with pytest.raises(DefinitionError, match=why):
        outlast.effect(probe=plain, start_to_close_timeout=MINUTE, **given)(plain)


def test_key_on_names_parameters():
    """A key over a parameter that does not exist is refused."""
    with pytest.raises(DefinitionError, match="has no parameter m"):
        outlast.effect(idempotent=True, key_on=("n", "m"))(plain)


@pytest.mark.parametrize(
    "name", ["start_to_close_timeout", "schedule_to_close_timeout", "heartbeat_timeout"]
)
@pytest.mark.parametrize(
    "timeout", [timedelta(0), timedelta(seconds=-1), timedelta(days=36_500)], ids=str
)
def test_timeout_of_nothing_or_of_centuries_is_refused(name, timeout):
    """An attempt needs some time, and nobody waits for a hundred years."""
    with pytest.raises(DefinitionError, match=f"has a {name} of"):
        outlast.step(**{name: timeout})(plain)
    with pytest.raises(DefinitionError, match=f"has a {name} of"):
        outlast.effect(idempotent=True, **{name: timeout})(plain)


def test_silence_that_could_never_be_over_is_refused():
    """A heartbeat_timeout as long as the whole attempt would guard nothing."""
    for longer in (timedelta(0), timedelta(seconds=1)):
        with pytest.raises(DefinitionError, match="has a heartbeat_timeout of .* over after"):
            outlast.step(start_to_close_timeout=MINUTE, heartbeat_timeout=MINUTE + longer)(plain)
    shorter = outlast.step(start_to_close_timeout=MINUTE, heartbeat_timeout=MINUTE / 2)(plain)
    assert shorter.options.heartbeat_timeout == MINUTE / 2
    decade = timedelta(days=3650)
    assert outlast.step(schedule_to_close_timeout=decade)(plain).options == AttemptOptions(
        schedule_to_close_timeout=decade
    )


def test_time_for_all_attempts_is_none_for_one():
    """What may be done about an unknown outcome is counted from the time of one attempt."""
    with pytest.raises(DefinitionError, match="no start_to_close_timeout"):
        outlast.effect(schedule_to_close_timeout=MINUTE, heartbeat_timeout=MINUTE)(plain)


@pytest.mark.parametrize(
    "raises", [StopIteration, StopAsyncIteration, KeyboardInterrupt, BaseException, "ValueError"]
)
def test_types_that_cannot_arrive_are_refused(raises):
    """What would end the process, or a generator, is no outcome."""
    with pytest.raises(DefinitionError, match="cannot arrive"):
        outlast.step(raises=(OwnError, raises))(plain)
    outlast.step(raises=(OwnError,))(plain)


def test_annotation_that_cannot_be_resolved_is_refused_when_the_app_opens():
    """A name that only a type checker sees is found by `resolve`, with what to do."""

    @outlast.step
    async def odd(n: Nowhere) -> int:  # noqa: F821
        return 1

    with pytest.raises(
        DefinitionError, match="annotation of step odd cannot be resolved"
    ) as caught:
        odd.resolve()
    assert "TYPE_CHECKING" in caught.value.hint


def test_type_that_cannot_be_stored_is_refused_when_the_app_opens():
    """A parameter of a type that no data stands for is refused by its place."""

    @outlast.step
    async def odd(lock: asyncio.Lock) -> int:
        return 1

    with pytest.raises(DefinitionError, match="the arguments of step odd"):
        odd.resolve()


def test_decorated_function_keeps_its_face(declared):
    """Name, documentation, signature and the function itself stay; `name=` renames what is journaled."""
    work = outlast.step(name="work-1")(plain)
    assert (work.name, work.__name__, work.__doc__) == ("work-1", "plain", "Return the number.")
    assert inspect.signature(work) == inspect.signature(plain)
    assert work.function is plain
    assert repr(work) == "<step work-1>"
    assert outlast.step(plain).name == "plain"
    assert declared[0] is work


def test_wrong_arguments_raise_at_the_call():
    """A call that Python itself would refuse raises where it is written."""
    work = outlast.step(plain)
    with pytest.raises(TypeError):
        work()
    with pytest.raises(TypeError):
        work(1, m=2)


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        (
            {"start_to_close_timeout": 5},
            "start_to_close_timeout=5, which is no timedelta",
            "timedelta(seconds=30)",
        ),
        ({"heartbeat_timeout": 5}, "heartbeat_timeout=5, which is no timedelta", "timedelta"),
        (
            {"schedule_to_close_timeout": "1h"},
            "schedule_to_close_timeout='1h', which is no timedelta",
            "schedule_to_close_timeout=timedelta(seconds=30)",
        ),
        ({"settle": 2.0}, "settle=2.0, which is no timedelta", "timedelta"),
        ({"retry": 3}, "retry=3, which is no RetryPolicy", "RetryPolicy(maximum_attempts=3)"),
        ({"retry": 0}, "retry=0, which is no RetryPolicy", "RetryPolicy"),
        (
            {"raises": ValueError},
            "raises=<class 'ValueError'>, which is no tuple",
            "raises=(ValueError,)",
        ),
        (
            {"not_applied": ValueError},
            "not_applied=<class 'ValueError'>, which is no tuple",
            "a tuple",
        ),
        ({"key_on": "n"}, "key_on='n', which is no tuple", "a tuple"),
    ],
)
def test_option_of_a_wrong_type_is_refused_in_words(options, words, hint):
    """What a type checker would have seen is refused where it is written, never as a bare TypeError."""
    with pytest.raises(DefinitionError) as caught:
        outlast.effect(idempotent=True, **options)(plain)
    assert words in str(caught.value)
    assert hint in caught.value.hint
    if not set(options) <= {"settle", "not_applied", "key_on"}:
        with pytest.raises(DefinitionError):
            outlast.step(**options)(plain)


@pytest.mark.parametrize("name", ["initial_interval", "maximum_interval"])
def test_retry_interval_of_a_wrong_type_is_refused_in_words(name):
    """Seconds as a number are no length of time."""
    with pytest.raises(DefinitionError, match=f"{name} must be a timedelta"):
        RetryPolicy(**{name: 1})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": 5}, "queue=5, which is no name"),
        ({"queue": " "}, "' ' cannot be the name of a queue"),
        ({"queue": "a:b"}, "'a:b' cannot be the name of a queue"),
        ({"queue": "a\nb"}, "cannot be the name of a queue"),
        (
            {"schedule_to_start_timeout": timedelta(seconds=1)},
            "a schedule_to_start_timeout and no queue",
        ),
        ({"queue": "gpu", "schedule_to_start_timeout": 5}, "a schedule_to_start_timeout of 5"),
        (
            {"queue": "gpu", "schedule_to_start_timeout": timedelta(0)},
            "a schedule_to_start_timeout of",
        ),
        (
            {"queue": "gpu", "schedule_to_start_timeout": timedelta.max},
            "a schedule_to_start_timeout of",
        ),
    ],
)
def test_placement_that_cannot_be_kept_is_refused(options, words):
    """A queue is a name, and the time to be started is a time and speaks of a queue."""
    with pytest.raises(DefinitionError, match=words):

        @outlast.step(**options)
        def one() -> None: ...


def test_effects_have_no_queue():
    """Only steps run elsewhere."""
    with pytest.raises(TypeError, match="queue"):
        outlast.effect(idempotent=True, queue="gpu")
