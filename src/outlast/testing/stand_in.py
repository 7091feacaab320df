"""What a test registers: the code that is tested, with doubles in the places of what reaches the world."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outlast.errors import DefinitionError
from outlast.workflows.definition import Definition
from outlast.workflows.registry import Registry


def with_doubles(
    definitions: Iterable[Definition[..., Any]] | None, doubles: Iterable[Definition[..., Any]]
) -> list[Definition[..., Any]]:
    """Return definitions, everything decorated so far by default, with each double in the place of what it stands for.

    Raises:
        DefinitionError: There is nothing of the kind and name of a double.
    """
    given = Registry.of_everything().definitions() if definitions is None else definitions
    table = {(one.kind, one.name): one for one in given}
    for one in doubles:
        if (one.kind, one.name) not in table:
            raise DefinitionError(
                f"there is a double for {one.kind} {one.name}, and no {one.kind} of that name",
                step=one.name,
                hint="make it of the definition itself: testing.double(charge, fake_charge)",
            )
        table[one.kind, one.name] = one
    return list(table.values())
