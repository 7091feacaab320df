"""Random values that replay repeats: every bit is SHA-256 of the run's seed, a label and a counter.

The standard library's sampling methods may change between Python versions, so the few that agents use are here.
Not for secrets: who can read the journal can repeat them.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableSequence, Sequence
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")

_DOUBLE_BITS = 53


class RunRandom:
    """A generator that gives the same values in every replay.

    Args:
        seed: The run's 16 random bytes.
        label: Which generator of the run this is: task path and count.
    """

    def __init__(self, seed: bytes, label: str) -> None:
        self._key = hashlib.sha256(seed + label.encode()).digest()
        self._block = 0
        self._pool = 0
        self._pool_bits = 0

    def getrandbits(self, count: int) -> int:
        """Return an integer of `count` random bits."""
        if count < 0:
            raise ValueError("the number of bits cannot be negative")
        while self._pool_bits < count:
            block = hashlib.sha256(self._key + self._block.to_bytes(8, "big")).digest()
            self._block += 1
            self._pool = (self._pool << 256) | int.from_bytes(block, "big")
            self._pool_bits += 256
        self._pool_bits -= count
        value = self._pool >> self._pool_bits
        self._pool &= (1 << self._pool_bits) - 1
        return value

    def randbytes(self, count: int) -> bytes:
        """Return `count` random bytes."""
        return self.getrandbits(count * 8).to_bytes(count, "big")

    def random(self) -> float:
        """Return a float, 0 <= x < 1, on the grid of 2**-53."""
        return self.getrandbits(_DOUBLE_BITS) / (1 << _DOUBLE_BITS)

    def uniform(self, low: float, high: float) -> float:
        """Return a float between `low` and `high`."""
        return low + (high - low) * self.random()

    def randrange(self, stop: int) -> int:
        """Return an integer, 0 <= x < stop, every one equally likely."""
        if stop <= 0:
            raise ValueError("there is no integer to choose from")
        bits = stop.bit_length()
        while (value := self.getrandbits(bits)) >= stop:
            pass
        return value

    def randint(self, low: int, high: int) -> int:
        """Return an integer, low <= x <= high, every one equally likely."""
        return low + self.randrange(high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        """Return one of `items`."""
        return items[self.randrange(len(items))]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Put `items` into a random order, in place."""
        for last in range(len(items) - 1, 0, -1):
            other = self.randrange(last + 1)
            items[last], items[other] = items[other], items[last]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` different items in random order."""
        if not 0 <= count <= len(items):
            raise ValueError("the sample is larger than what it is taken from")
        pool = list(items)
        self.shuffle(pool)
        return pool[:count]

    def uuid4(self) -> UUID:
        """Return a random UUID."""
        return UUID(bytes=self.randbytes(16), version=4)
