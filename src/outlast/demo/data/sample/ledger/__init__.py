"""A small double-entry ledger: postings that balance, and what they add up to."""

from ledger.posting import Posting, UnbalancedError, balance, transfer

__all__ = ["Posting", "UnbalancedError", "balance", "transfer"]
