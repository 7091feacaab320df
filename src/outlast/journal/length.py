"""How long names and ids may be, in bytes of UTF-8: the same for every store.

An index of PostgreSQL takes rows of at most 2,704 bytes, several of these in one. The longest holds the tenants and ids of two runs and an
operation. The conformance suite of stores uses the longest of each kind together.
"""

from __future__ import annotations

RUN_ID_CHARACTERS = 255
RUN_ID_BYTES = 765
"""255 characters of any script in use; of emoji there may be fewer."""
NAME_BYTES = 255
"""Tenants, workflows, steps, effects, signals, queues, roles and whatever else has a name in code."""
OPERATION_BYTES = 512
"""An operation's id is the path of its task: tasks within tasks, some two hundred deep."""
MESSAGE_ID_BYTES = 1500
"""One that Outlast makes names the sender's run and operation."""
APPROVAL_ID_BYTES = 600
"""It names the operation that asks."""


def size_in_bytes(text: str) -> int:
    """Return how long a text is in UTF-8; a lone surrogate, which has no bytes, counts as its escape would."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
