"""What code an app takes: names are unique, workflows can be narrowed, reloads replace."""

# ruff: noqa: D103

from __future__ import annotations

import types

import pytest

import outlast
from outlast.errors import DefinitionError
from outlast.workflows.definition import AttemptOptions, Step
from outlast.workflows.placement import Placement
from outlast.workflows.registry import Registry


def make(suffix: str):
    async def work(n: int) -> int:
        return n

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
