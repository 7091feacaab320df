"""Random values that replay repeats: fixed vectors, fair ranges, honest errors."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from outlast.replay.entropy import RunRandom


def fresh(label: str = "r/1") -> RunRandom:
    """Return the generator of the vectors."""
    return RunRandom(bytes(range(16)), label)


def test_vectors():
    """The values are part of every journal: they are those of the first release."""
    assert fresh().random() == 0.7584648654571382
    assert fresh().uuid4() == UUID("c22ac0e0-4dae-470d-b735-75ebc3f92e8c")
    assert fresh().randbytes(5) == b"\xc2*\xc0\xe0M"
    assert fresh().getrandbits(300) == int(
        "1545020217721886351908698225084328225034"
        "232749283677533532190636048594110162039933549687718"
    )
    assert fresh().sample("abcdef", 3) == ["b", "f", "d"]
    generator = fresh()
    assert [generator.randrange(10) for _ in range(10)] == [2, 2, 0, 0, 4, 7, 0, 7, 3, 5]
    items = list(range(8))
    fresh().shuffle(items)
    assert items == [5, 3, 6, 0, 4, 7, 1, 2]


def test_bits_are_one_stream():
    """However the bits are taken, they are the same, over the ends of blocks too."""
    whole = fresh().getrandbits(1024)
    generator = fresh()
    parts = 0
    for count in (1, 7, 0, 200, 300, 516):
        parts = (parts << count) | generator.getrandbits(count)
    assert parts == whole


def test_labels_are_independent():
    """Another label, or another seed, is another stream."""
    values = {fresh("r/1").random(), fresh("r/2").random(), fresh("r.1/1").random()}
    assert len({*values, RunRandom(bytes(16), "r/1").random()}) == 4


def test_ranges_are_fair():
    """Every value of a range comes, about equally often, and nothing beside it."""
    generator = fresh()
    counts = Counter(generator.randint(1, 6) for _ in range(6000))
    assert set(counts) == {1, 2, 3, 4, 5, 6}
    assert 850 < min(counts.values()) <= max(counts.values()) < 1150
    assert all(2 <= generator.uniform(2, 3) < 3 for _ in range(100))
    assert generator.randrange(1) == 0
    assert generator.choice(["one"]) == "one"
    assert sorted(generator.sample(range(5), 5)) == [0, 1, 2, 3, 4]
    assert generator.uuid4().version == 4


@pytest.mark.parametrize(
    "ask",
    [
        lambda generator: generator.getrandbits(-1),
        lambda generator: generator.randrange(0),
        lambda generator: generator.randint(2, 1),
        lambda generator: generator.choice([]),
        lambda generator: generator.sample([1], 2),
        lambda generator: generator.sample([1], -1),
    ],
)
def test_nothing_to_choose_from(ask):
    """An empty range is an error, not an endless search."""
    with pytest.raises(ValueError, match=r".+"):
        ask(fresh())
