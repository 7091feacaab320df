"""Postings in whole cents. Invariant: the postings of one transfer add up to zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class UnbalancedError(ValueError):
    """Postings that do not add up to zero."""


@dataclass(frozen=True)
class Posting:
    """One movement on one account."""

    account: str
    cents: int


def transfer(source: str, target: str, cents: int) -> tuple[Posting, Posting]:
    """Return the two postings that move money from one account to another."""
    if cents <= 0:
        raise ValueError("a transfer moves at least one cent")
    return Posting(source, -cents), Posting(target, cents)


def balance(postings: Iterable[Posting]) -> dict[str, int]:
    """Return the cents on each account, after checking that nothing was made or lost."""
    totals: dict[str, int] = {}
    for posting in postings:
        totals[posting.account] = totals.get(posting.account, 0) + posting.cents
    if sum(totals.values()):
        raise UnbalancedError(f"the postings are off by {sum(totals.values())} cents")
    return totals
