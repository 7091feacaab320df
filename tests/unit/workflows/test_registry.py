"""What code an app takes: names are unique, workflows can be narrowed, reloads replace."""

# ruff: noqa: D103

from __future__ import annotations

import functools
import importlib
import sys
import types

import pytest

import outlast
from outlast.errors import DefinitionError
from outlast.workflows.definition import AttemptOptions, Step
from outlast.workflows.placement import Placement
from outlast.workflows.registry import Registry


def make(suffix: str):
    """Return a function at a place of its own, of code of its own, as a module that is loaded anew has it."""

    async def work(n: int) -> int:
        return n

    work.__code__ = work.__code__.replace(co_name=f"work_{suffix}")
    work.__qualname__ = f"work_{suffix}"
    return work


def test_everything_declared_is_found_by_kind_and_name():
    """Workflows, steps and effects have tables of their own: one name may stand in each."""
    flow, work, pay = (
        outlast.workflow(make("a")),
        outlast.step(make("b")),
        outlast.effect(idempotent=True)(make("c")),
    )
    found = Registry.of_everything()
    assert (found.workflows, found.steps, found.effects) == (
        {"work": flow},
        {"work": work},
        {"work": pay},
    )


@pytest.mark.parametrize(
    "decorator", [outlast.workflow, outlast.step, outlast.effect(idempotent=True)]
)
def test_two_of_one_name_are_refused(decorator):
    """The error names both places, and what to write."""
    decorator(make("a"))
    decorator(make("b"))
    with pytest.raises(DefinitionError, match=r"are named 'work'.*work_a and .*work_b") as caught:
        Registry.of_everything()
    assert "name=" in caught.value.hint


def test_a_reload_replaces(declared):
    """A second declaration at the same place in the code takes the place of the first."""
    outlast.step(make("a"))
    second = outlast.step(make("a"))
    assert Registry.of_everything().steps == {"work": second}
    assert Registry(declared[1:]).steps == {"work": second}


PLACES = [outlast.workflow, outlast.step, outlast.effect(idempotent=True)]


def twins(decorator, *, names=("", "")):
    """Return what a factory makes when it is called twice."""

    def factory(kind: str):
        async def pay(n: int) -> str:
            return f"{kind} {n}"

        return pay

    functions = [factory("card"), factory("bank")]
    if names[0]:
        decorators = [decorator(name=name) for name in names]
        return [one(function) for one, function in zip(decorators, functions, strict=True)]
    return [decorator(function) for function in functions]


@pytest.mark.parametrize("decorator", PLACES)
def test_what_a_factory_makes_twice_is_refused(decorator):
    """The second would silently be run in the place of the first; nothing compiled the code anew."""
    twins(decorator)
    with pytest.raises(DefinitionError, match=r"more than once.*factory.<locals>.pay") as caught:
        Registry.of_everything()
    assert "name=" in caught.value.hint


def test_what_a_factory_makes_under_names_of_their_own_is_taken():
    """Each is found by its name."""
    card, bank = twins(outlast.step, names=("card", "bank"))
    assert Registry.of_everything().steps == {"card": card, "bank": bank}


def test_a_step_decorated_twice_is_refused():
    """The options of one of the two would be lost."""
    function = make("a")
    outlast.step(function)
    outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))(function)
    with pytest.raises(DefinitionError, match="more than once"):
        Registry.of_everything()


def test_a_reload_behind_a_decorator_of_another_module_replaces():
    """What counts is the code of the author's function, and not that of what wraps it."""

    def logged(function):
        @functools.wraps(function)
        async def wrapper(n: int) -> int:
            return await function(n)

        return wrapper

    outlast.step(logged(make("a")))
    second = outlast.step(logged(make("a")))
    assert Registry.of_everything().steps == {"work": second}


@pytest.mark.parametrize("again", [False, True])
def test_a_module_that_is_loaded_again_replaces(tmp_path, monkeypatch, again):
    """Imported once, or reloaded from the same source: one definition, the last."""
    (tmp_path / "loaded_again.py").write_text(
        "import outlast\n@outlast.step\nasync def work(n: int) -> int:\n    return n\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("loaded_again")
    try:
        if again:
            module = importlib.reload(module)
        assert Registry.of_everything().steps == {"work": module.work}
    finally:
        del sys.modules["loaded_again"]


def test_what_an_app_has_taken_may_be_declared_anew():
    """So each case of a test may declare its own, in one function of its module."""

    def case():
        @outlast.step
        async def work(n: int) -> int:
            return n

        return work

    case()
    Registry.of_everything()
    second = case()
    assert Registry.of_everything().steps == {"work": second}


@pytest.mark.parametrize("decorator", PLACES)
def test_an_app_knows_what_it_would_not_run(decorator):
    """One that shares the code and the name of what is registered is not that."""
    card, bank = twins(decorator)
    found = Registry([bank])
    found.check(bank)
    with pytest.raises(DefinitionError, match=r"more than once"):
        found.check(card)
    Registry([]).check(card)


def test_a_workflow_that_is_chosen_is_the_one():
    """`workflows=` names one of the two itself."""
    card, _ = twins(outlast.workflow)
    assert Registry.of_everything([card]).workflows == {"pay": card}


@pytest.mark.parametrize("odd", ["film", "step", "function"])
def test_what_is_no_workflow_does_not_narrow(odd):
    """A name, a step or an undecorated function would leave no workflow, and nobody would know."""
    given = {"film": "film", "step": outlast.step(make("a")), "function": make("b")}[odd]
    with pytest.raises(DefinitionError, match="neither a workflow nor a module") as caught:
        Registry.of_everything([given])
    assert "workflows=[fix]" in caught.value.hint


@pytest.mark.parametrize("odd", ["film", types])
def test_one_thing_does_not_narrow(odd):
    """It is not taken apart into letters, and a module is not passed over."""
    with pytest.raises(DefinitionError, match=r"one thing and not several"):
        Registry.of_everything(odd)


def test_workflows_narrow_and_steps_stay():
    """`workflows=` takes functions or modules; steps and effects come along."""
    one, two = outlast.workflow(name="one")(make("a")), outlast.workflow(name="two")(make("b"))
    work = outlast.step(make("c"))
    assert set(Registry.of_everything([one]).workflows) == {"one"}
    assert Registry.of_everything([]).steps == {"work": work}
    two.__module__ = "elsewhere"
    assert set(Registry.of_everything([types.ModuleType("elsewhere")]).workflows) == {"two"}


def test_unresolvable_is_refused_when_taken():
    """An annotation that cannot be resolved is found when the app opens, not when the run does."""

    @outlast.step
    async def odd(n: Nowhere) -> int:  # noqa: F821
        return 1

    with pytest.raises(DefinitionError, match="cannot be resolved"):
        Registry.of_everything()


def test_build_follows_the_code(monkeypatch):
    """The build is the same for the same sources, and another for other ones."""
    outlast.step(make("a"))
    found = Registry.of_everything()
    before = found.build()
    assert found.build() == before
    monkeypatch.setattr("outlast.workflows.registry._source", lambda module: "changed")
    assert found.build() != before


def test_queues_of_its_steps():
    """A registry knows in which queues its steps run."""

    def one() -> None: ...

    steps = [
        Step(one, name, AttemptOptions(), Placement(queue))
        for name, queue in (("a", "gpu"), ("b", "gpu"), ("c", "cpu"), ("d", ""))
    ]
    assert Registry(steps).queues() == {"cpu", "gpu"}
    assert Registry([]).queues() == set()
