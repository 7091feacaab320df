"""Times as stores keep them, and when a lease is over."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from outlast.store.moment import (
    NO_BOOT,
    Instant,
    LeaseClock,
    elapsed,
    from_micros,
    lapsed,
    lease_end,
    to_micros,
)
from outlast.testing.conformance import ManualClock

SECOND = 1_000_000_000


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_round_trip(time):
    """Every time that Python can hold comes back exactly."""
    assert from_micros(to_micros(time)) == time


def test_lease_lapses_at_its_end():
    """A lease is over at its end, not before."""
    renewed, lease = Instant("b", SECOND), timedelta(seconds=15)
    assert not lapsed(renewed, lease, Instant("b", 16 * SECOND - 1))
    assert lapsed(renewed, lease, Instant("b", 16 * SECOND))
    assert lease_end(renewed, lease) == Instant("b", 16 * SECOND)


def test_other_boot_means_lapsed():
    """Whoever held a lease in another boot died with the machine, at the latest when this boot began."""
    renewed = Instant("before", 900 * SECOND)
    assert lapsed(renewed, timedelta(days=1), Instant("after", 5 * SECOND))
    assert elapsed(renewed, Instant("after", 5 * SECOND)) == timedelta(seconds=5)


def test_elapsed_is_never_negative():
    """A moment to come is no time ago."""
    assert elapsed(Instant("b", 9 * SECOND), Instant("b", SECOND)) == timedelta(0)


def test_without_boot_id_leases_count_wall_time():
    """Where there is no boot id, the wall clock must do."""
    clock = ManualClock()
    leases = LeaseClock(clock, NO_BOOT)
    clock.set_wall(datetime(2026, 1, 1, tzinfo=UTC))
    assert leases.instant() == Instant(NO_BOOT, to_micros(clock.now()) * 1000)
    assert LeaseClock(clock, "b").instant() == Instant("b", 5000 * SECOND)
