"""What code there is: every decorated function, by kind and name, and what an app takes of it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, TypeVar

from outlast.errors import DecodeError, DefinitionError
from outlast.workflows.definition import Definition, Effect, Step, Workflow

D = TypeVar("D", bound=Definition[..., Any])

_declared: list[Definition[..., Any]] = []


def declare(definition: D) -> D:
    """Remember a decorated function for `Registry.of_everything`."""
    _declared.append(definition)
    return definition


class Registry:
    """The workflows, steps and effects of an app. Names are unique in it.

    Args:
        definitions: In any order; a workflow's steps are found with it, since they are declared too.

    Raises:
        DefinitionError: Two have the same name, or one cannot be resolved.
    """

    def __init__(self, definitions: Iterable[Definition[..., Any]]) -> None:
        self.workflows: dict[str, Workflow[..., Any]] = {}
        self.steps: dict[str, Step[..., Any]] = {}
        self.effects: dict[str, Effect[..., Any]] = {}
        for definition in definitions:
            definition.resolve()
            match definition:
                case Workflow():
                    _add(self.workflows, definition)
                case Step():
                    _add(self.steps, definition)
                case Effect():
                    _add(self.effects, definition)
                case _:
                    raise DefinitionError(f"{definition!r} is not a workflow, step or effect")

    @classmethod
    def of_everything(
        cls, workflows: Iterable[Workflow[..., Any] | ModuleType] | None = None
    ) -> Registry:
        """Return a registry of what was declared so far.

        Args:
            workflows: Narrows the workflows to these, or to those of these modules; steps and effects stay.
        """
        latest = _latest(_declared)
        if workflows is None:
            return cls(latest)
        wanted = list(workflows)
        modules = {one.__name__ for one in wanted if isinstance(one, ModuleType)}
        chosen = {id(one) for one in wanted}
        return cls(
            one
            for one in latest
            if not isinstance(one, Workflow) or id(one) in chosen or one.__module__ in modules
        )

    def workflow(self, name: str) -> Workflow[..., Any]:
        """Return the workflow of that name.

        Raises:
            DefinitionError: There is none.
        """
        found = self.workflows.get(name)
        if found is None:
            raise _missing(name, self.workflows)
        return found

    def queues(self) -> frozenset[str]:
        """Return the queues in which its steps run."""
        return frozenset(one.placement.queue for one in self.steps.values()) - {""}

    def definitions(self) -> list[Definition[..., Any]]:
        """Return all of them: workflows, steps, effects."""
        return [*self.workflows.values(), *self.steps.values(), *self.effects.values()]

    def build(self) -> str:
        """Return a hash of the code that the app runs: the sources of the modules that declare it, and Outlast's version."""
        digest = hashlib.sha256(library_version().encode())
        for module in sorted({one.__module__ for one in self.definitions()}):
            digest.update(module.encode() + b"\0" + _source(module).encode())
        return digest.hexdigest()[:16]


@functools.cache
def library_version() -> str:
    """Return Outlast's version."""
    import importlib.metadata  # costs more than the rest of this module, and only who opens an app or asks needs it

    return importlib.metadata.version("outlast")


def find_declared(name: str) -> Workflow[..., Any]:
    """Return the workflow of that name among everything declared so far; what else is declared need not make an app.

    Raises:
        DefinitionError: There is none, or there are two.
    """
    workflows = [one for one in _latest(_declared) if isinstance(one, Workflow)]
    found = [one for one in workflows if one.name == name]
    if not found:
        raise _missing(name, {one.name for one in workflows})
    return Registry(found).workflow(name)


def _missing(name: str, known: Iterable[str]) -> DefinitionError:
    told = ", ".join(map(repr, sorted(known))) or "no workflow at all"
    return DefinitionError(
        f"the code has no workflow {name!r}; it has {told}",
        hint="import the module that declares it, or declare it under its old name: @workflow(name=…)",
    )


def misfit_of_step(name: str, value: bytes) -> str:
    """Return why a value fits the result of no step that is declared under this name; empty when one fits, or there is none.

    Args:
        value: As JSON.
    """
    problems: list[str] = []
    for step in _latest(_declared):
        if not isinstance(step, Step) or step.name != name:
            continue
        try:
            step.result.decode(value)
        except (DecodeError, DefinitionError) as error:
            problems.append(error.message)
        else:
            return ""
    return "; or ".join(sorted(set(problems)))


def _latest(declared: Iterable[Definition[..., Any]]) -> list[Definition[..., Any]]:
    """Return the declarations without those that a reload of the same place in the code replaced."""
    places = {(type(one), one.__module__, one.__qualname__, one.name): one for one in declared}
    return list(places.values())


def _add(table: dict[str, D], definition: D) -> None:
    other = table.get(definition.name)
    if other is not None and other is not definition:
        raise DefinitionError(
            f"two {definition.kind}s are named {definition.name!r}: "
            f"{other.__module__}.{other.__qualname__} and {definition.__module__}.{definition.__qualname__}",
            step=definition.name,
            hint=f"give one of them a name of its own: @{definition.kind}(name=…)",
        )
    table[definition.name] = definition


def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return ""
