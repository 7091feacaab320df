"""Who may not say yes to a request: one rule for decisions, and for what sticks of earlier ones."""

from __future__ import annotations

from collections.abc import Iterable


def is_kept_out(
    persons: Iterable[str], *, four_eyes: bool, requesters: Iterable[str], barred: Iterable[str]
) -> bool:
    """Whether one of those who say yes may not, or nobody knows that they are not the same as who started the run.

    Args:
        persons: Who says it; an empty name for somebody whom nobody knows.
        requesters: Who started the run.
        barred: Who may not, whatever the terms.
    """
    kept_out = set(barred)
    if four_eyes:
        # Where it is not known who started the run, nobody can be told to be another one.
        kept_out |= set(requesters) or {""}
    if not kept_out:
        return False
    said_by = set(persons)
    return "" in kept_out or "" in said_by or bool(said_by & kept_out)
