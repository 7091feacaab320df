"""Laws of the numbers of equal calls: a number stands for one purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import RepeatedEffectError
from outlast.journal.entry import OperationId
from outlast.replay.context import EffectRequest
from outlast.replay.ledger import EffectLedger
from outlast.replay.operation import EffectOperation

NO_FIELDS: Mapping[str, str] = {}


def request(*, repeats: bool, compensates: str = "") -> EffectRequest:
    """Return a call of the one effect, with the one payload."""
    return EffectRequest(
        name="pay",
        arguments=b"{}",
        payload_sha256="00",
        action_sha256="00",
        fields=NO_FIELDS,
        repeats=repeats,
        same_arguments=lambda _: True,
        decode=lambda _: None,
        raises=(),
        compensates=OperationId(compensates),
    )


class Played:
    """A ledger and its model: the numbers that were used, those that are open, and what succeeded."""

    def __init__(self, *, repeats: bool) -> None:
        self.ledger = EffectLedger("run")
        self.repeats = repeats
        self.open: list[EffectOperation] = []
        self.plain: EffectOperation | None = None
        self.successes: dict[OperationId, int] = {}
        self.unknown: dict[OperationId, int] = {}
        self.burnt: set[int] = set()
        self.begun = 0

    def least(self) -> int:
        """Return the number that the rule gives: the least that is neither used nor open."""
        used = {*self.successes.values(), *self.burnt, *[one.number for one in self.open]}
        return next(number for number in range(1, len(used) + 2) if number not in used)

    def begin(self, *, compensates: bool) -> None:
        """Make a call; a plain one joins the plain one that is open."""
        self.begun += 1
        operation = OperationId(f"r:{self.begun}")
        asked = request(repeats=self.repeats, compensates="r:0" if compensates else "")
        assert self.ledger.open_twin(asked) is (None if compensates else self.plain)
        if self.plain and not compensates:
            return
        if self.successes and not self.repeats and not compensates:
            with pytest.raises(RepeatedEffectError, match=f"as {list(self.successes)[-1]},"):
                self.ledger.number(asked, operation)
            return
        number = self.ledger.number(asked, operation)
        assert number == self.ledger.number(asked, operation) == self.least()
        future: Any = None
        effect = EffectOperation(operation, asked, future, number, None, "")
        self.ledger.opened(effect)
        self.open.append(effect)
        if not compensates:
            self.plain = effect

    def settle(self, which: int, end: str) -> None:
        """End an open call."""
        effect = self.open.pop(which % len(self.open))
        self.ledger.settled(effect, succeeded=end == "succeeded", unknown=end == "unknown")
        if effect is self.plain:
            self.plain = None
        elif end != "succeeded":
            self.burnt.add(effect.number)
        if end == "succeeded":
            self.successes[effect.operation] = effect.number
        elif end == "unknown":
            self.unknown[effect.operation] = effect.number

    def undo(self, which: int) -> None:
        """Undo what happened, or may have."""
        ended = {**self.successes, **self.unknown}
        operation = list(ended)[which % len(ended)]
        self.ledger.undone(operation)
        self.burnt.add(ended[operation])
        self.successes.pop(operation, None)
        self.unknown.pop(operation, None)


moves = st.one_of(
    st.tuples(st.just("begin"), st.booleans()),
    st.tuples(
        st.just("settle"), st.integers(0, 9), st.sampled_from(["succeeded", "failed", "unknown"])
    ),
    st.tuples(st.just("undo"), st.integers(0, 9)),
)


@given(st.booleans(), st.lists(moves, max_size=30))
def test_a_number_is_the_least_that_none_has_used_or_has(repeats: bool, played: list[Any]) -> None:
    """Calls, compensations, ends of each kind and what was undone, in any order: numbers, twins and refusals are those of the rule."""
    game = Played(repeats=repeats)
    for move in played:
        match move:
            case ("begin", compensates):
                game.begin(compensates=compensates)
            case ("settle", which, end) if game.open:
                game.settle(which, end)
            case ("undo", which) if game.successes or game.unknown:
                game.undo(which)
            case _:
                pass
