"""When the outcomes of a run are written: which words there are for it, refused where they are declared."""

from __future__ import annotations

from typing import Any, get_args

from outlast.errors import DefinitionError
from outlast.journal.entry import Durability


def check_durability(durability: Any, *, what: str) -> Durability:
    """Return the mode.

    Args:
        what: Says where it was given, for the error: `workflow fix`, `the start of fix`.

    Raises:
        DefinitionError: There is no such mode.
    """
    modes = get_args(Durability)
    if durability not in modes:
        raise DefinitionError(
            f"{what} has the durability {durability!r}",
            hint=f"write {', '.join(repr(one) for one in modes[:-1])} or {modes[-1]!r}",
        )
    return durability
