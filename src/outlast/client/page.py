"""How long a page of a list may be."""

from __future__ import annotations

from outlast.errors import DefinitionError

_LARGEST_PAGE = 1_000_000


def check_limit(limit: int, *, what: str, onward: str = "before=") -> int:
    """Return how many rows a page may have.

    Args:
        what: They are, for the error: `runs`.
        onward: What is given for the page that follows.

    Raises:
        DefinitionError: It is no number from 0 to 1,000,000.
    """
    if not 0 <= limit <= _LARGEST_PAGE:
        raise DefinitionError(
            f"a page of {limit} {what} is none that can be read",
            hint=f"give a limit from 0 to {_LARGEST_PAGE:,}, and {onward} for the page that follows",
        )
    return limit
