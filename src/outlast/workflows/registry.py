"""What code there is: every decorated function, by kind and name, and what an app takes of it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar, cast
from weakref import WeakSet

from outlast.errors import DecodeError, DefinitionError
from outlast.workflows.definition import Definition, Effect, Step, Workflow

D = TypeVar("D", bound=Definition[..., Any])

_declared: list[Definition[..., Any]] = []
_taken: WeakSet[Definition[..., Any]] = WeakSet()
"""What an app has taken before: the same code may declare it anew for the next app, as the next case of a test does."""


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

        Raises:
            DefinitionError: One of `workflows` is neither; two have the same name, or one cannot be resolved.
        """
        chosen: list[Definition[..., Any]] = []
        declared = list(_declared)
        if workflows is not None:
            wanted = _checked(workflows)
            modules = {one.__name__ for one in wanted if isinstance(one, ModuleType)}
            chosen = [one for one in wanted if not isinstance(one, ModuleType)]
            declared = [
                one
                for one in declared
                if not isinstance(one, Workflow) or one.__module__ in modules
            ]
        _refuse_twins(declared)
        found = cls([*chosen, *_latest(declared)])
        _taken.update(declared)
        return found

    def check(self, definition: object) -> None:
        """Return unless something else would be run in its place: what the same code has declared again under the same name.

        Raises:
            DefinitionError: Something else would.
        """
        if not isinstance(definition, Definition):
            return
        given = cast("Definition[..., Any]", definition)
        taken = self._table_of(given).get(given.name)
        if taken is None or taken is given:
            return
        if inspect.unwrap(taken.function) is inspect.unwrap(given.function):
            return
        if _are_twins(taken, given):
            raise _twins(given)

    def _table_of(self, definition: Definition[..., Any]) -> Mapping[str, Definition[..., Any]]:
        if isinstance(definition, Workflow):
            return self.workflows
        return self.effects if isinstance(definition, Effect) else self.steps

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
    _refuse_twins(one for one in _declared if isinstance(one, Workflow) and one.name == name)
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
    steps = [one for one in _declared_as(name) if isinstance(one, Step)]
    return _misfit([one.result.decode for one in steps], value)


def misfit_of_effect(name: str, arguments: bytes) -> str:
    """Return why no effect that is declared under this name can be called with arguments; empty when one can, or there is none.

    Args:
        arguments: A JSON object, by parameter name.
    """
    effects = [one for one in _declared_as(name) if isinstance(one, Effect)]
    return _misfit([one.arguments.decode for one in effects], arguments)


def _declared_as(name: str) -> list[Definition[..., Any]]:
    return [one for one in _latest(_declared) if one.name == name]


def _misfit(decoders: Iterable[Callable[[bytes], object]], value: bytes) -> str:
    """Return what each decoder says against a value; empty when one takes it, or there is none."""
    problems: list[str] = []
    for decode in decoders:
        try:
            decode(value)
        except (DecodeError, DefinitionError) as error:
            problems.append(error.message)
        else:
            return ""
    return "; or ".join(sorted(set(problems)))


def _latest(declared: Iterable[Definition[..., Any]]) -> list[Definition[..., Any]]:
    """Return the declarations without those that a reload of the same place in the code replaced."""
    return list({_place(one): one for one in declared}.values())


def _refuse_twins(declared: Iterable[Definition[..., Any]]) -> None:
    """Refuse what a factory has made twice: the last one would be run in the place of each."""
    places: dict[tuple[object, ...], Definition[..., Any]] = {}
    for one in declared:
        former = places.get(_place(one))
        if former is not None and former not in _taken and _are_twins(former, one):
            raise _twins(one)
        places[_place(one)] = one


def _place(one: Definition[..., Any]) -> tuple[object, ...]:
    return type(one), one.__module__, one.__qualname__, one.name


def _are_twins(one: Definition[..., Any], other: Definition[..., Any]) -> bool:
    """Whether two definitions come of one piece of code that ran twice. A reload compiles it anew."""
    code: object = getattr(inspect.unwrap(one.function), "__code__", None)
    return (
        one is not other
        and code is not None
        and code is getattr(inspect.unwrap(other.function), "__code__", None)
    )


def _twins(one: Definition[..., Any]) -> DefinitionError:
    return DefinitionError(
        f"the same code has declared {one.kind} {one.name!r} more than once: {one.__module__}.{one.__qualname__}; what is "
        "called by one of them would be done by another",
        step=one.name,
        hint=f"give each that a factory makes a name of its own: @{one.kind}(name=…); where they are all the same, declare it once, "
        "at module level",
    )


def _checked(
    workflows: Iterable[Workflow[..., Any] | ModuleType],
) -> list[Workflow[..., Any] | ModuleType]:
    """Return what narrows the workflows; refuse names, steps and undecorated functions, which would narrow them to nothing."""
    if isinstance(workflows, str | ModuleType | Definition):
        raise DefinitionError(
            f"workflows={workflows!r} is one thing and not several",
            hint="write workflows=[…], with decorated functions or modules in it",
        )
    wanted = list(workflows)
    given: list[Any] = list(wanted)
    for one in given:
        if not isinstance(one, Workflow | ModuleType):
            raise DefinitionError(
                f"workflows= was given {one!r}, which is neither a workflow nor a module",
                hint="give what @workflow decorates, as workflows=[fix], or the module that declares it; steps and effects are "
                "always taken along",
            )
    return wanted


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
