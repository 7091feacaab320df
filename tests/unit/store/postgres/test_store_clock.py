"""What a process knows of the server's clock: sound bounds, whatever came between question and answer."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from outlast.store.moment import from_micros
from outlast.store.postgres.clock import StoreClock
from outlast.testing.conformance import ManualClock

SECOND = 1_000_000
LEASE = timedelta(seconds=15)
STARTS_AT = 1_700_000_000 * SECOND
spans = st.integers(0, 600 * SECOND)


class Server:
    """A server whose clock goes as fast as the process's, until somebody sets it."""

    def __init__(self) -> None:
        self.machine = ManualClock()
        self.known = StoreClock(self.machine)
        self.set_by = 0
        self.passed = 0

    def wait(self, micros: int) -> None:
        """Let time pass."""
        self.passed += micros
        self.machine.advance(timedelta(microseconds=micros))

    @property
    def micros(self) -> int:
        """The server's time."""
        return STARTS_AT + self.passed + self.set_by

    def ask(self, there: int = 0, back: int = 0) -> None:
        """Ask for the time, over a way that takes so long."""
        asked = self.known.asking()
        self.wait(there)
        micros = self.micros
        self.wait(back)
        self.known.saw(micros, asked)


@given(st.lists(st.tuples(spans, spans, spans), min_size=1, max_size=6))
def test_slow_answers_are_no_jump(sights: list[tuple[int, int, int]]) -> None:
    """However long a question or an answer is on its way, as in a process that stood still, no jump is seen, and no time is told too early."""
    server = Server()
    for pause, there, back in sights:
        server.wait(pause)
        server.ask(there, back)
        assert not server.known.is_unsure(LEASE)
        assert server.known.now() <= from_micros(server.micros)


@given(
    st.tuples(spans, spans),
    st.integers(1, 10_000 * SECOND),
    st.sampled_from([-1, 1]),
    st.tuples(spans, spans),
)
def test_every_jump_is_seen(
    before: tuple[int, int], excess: int, sign: int, after: tuple[int, int]
) -> None:
    """A clock that was set by more than the ways took is unsure for as long as a lease, and not longer."""
    server = Server()
    server.ask(*before)
    server.set_by = sign * (sum(before) + sum(after) + SECOND + excess + 1)
    server.ask(*after)
    assert server.known.is_unsure(LEASE)
    assert server.known.now() <= from_micros(server.micros)
    server.wait(LEASE // timedelta(microseconds=1) + 1)
    server.ask()
    assert not server.known.is_unsure(LEASE)


def test_slow_answer_makes_known_bounds_no_wider() -> None:
    """What a quick answer has told stays known when a slow one follows: a jump of seconds after both is seen."""
    server = Server()
    server.ask()
    server.ask(there=300 * SECOND, back=300 * SECOND)
    assert server.known.now() == from_micros(server.micros)
    server.set_by = 2 * SECOND
    server.ask()
    assert server.known.is_unsure(LEASE)
