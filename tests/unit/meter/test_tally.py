"""A tally: sums and summaries that any thread can read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.meter import instrument as of
from outlast.meter.gauge import gauges_of
from outlast.meter.meters import Beside
from outlast.meter.tally import Tally, TallyReport, bounds_of
from outlast.store.figures import OPEN, Backlog, Figures
from outlast.testing.conformance import ManualClock


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_summary_holds(values):
    """Count, mean and largest are exact; 99 of 100 values are no more than p99, which is no more than the largest."""
    tally = Tally()
    for value in values:
        tally.record(of.COMMIT_SECONDS, value)
    found = tally.report().measures[of.COMMIT_SECONDS.name]
    assert found.count == len(values)
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert found.largest == max(values)
    assert sum(value <= found.p99 for value in values) >= 0.99 * len(values)
    assert found.p99 <= found.largest


def test_p99_is_the_bound_of_a_class():
    """One slow commit in a hundred does not move it; two do."""
    tally = Tally()
    for value in [0.003] * 99 + [7.0]:
        tally.record(of.COMMIT_SECONDS, value)
    assert tally.report().measures[of.COMMIT_SECONDS.name].p99 == 0.005
    tally.record(of.COMMIT_SECONDS, 7.0)
    assert tally.report().measures[of.COMMIT_SECONDS.name].p99 == 7.0
    assert bounds_of(of.COMMIT_SIZE)[-1] == 500


def test_report_is_by_name_and_label():
    """A number for each instrument, or for each value of its label; as JSON, and back."""
    tally = Tally()
    tally.add(of.CLAIMS)
    tally.add(of.CLAIMS, 2)
    tally.add(of.STEPS, 1, "completed")
    tally.add(of.STEPS, 4, "failed")
    report = tally.report()
    assert report.counts == {
        "outlast.store.claims": 3,
        "outlast.step.outcomes": {"completed": 1, "failed": 4},
    }
    assert msgspec.json.decode(msgspec.json.encode(report), type=TallyReport) == report
    assert (tally.count(of.STEPS, "failed"), tally.count(of.EFFECTS, "failed")) == (4, 0)


def test_what_another_raises_stops_nothing(caplog):
    """It is logged once, and the own tally goes on."""

    class Broken:
        def add(self, *_):
            raise OSError("no route")

        record = observe = add

    tally = Tally()
    both = Beside(tally, Broken())
    both.add(of.CLAIMS)
    both.add(of.CLAIMS)
    both.record(of.COMMIT_SIZE, 2.0)
    figures = Figures(ManualClock().now(), {})
    both.observe(figures)
    assert tally.count(of.CLAIMS) == 2
    assert tally.report().measures[of.COMMIT_SIZE.name].count == 1
    assert tally.figures is figures
    assert len(caplog.records) == 1
    assert "no route" in caplog.text


def test_every_figure_has_a_gauge():
    """Each gauge is told; each has the label that it declares, and no other instrument is among them."""
    figures = Figures(
        ManualClock().now(),
        {status.value: 1 for status in OPEN},
        blocked={"poison": 2},
        unclaimed={"fix": Backlog(3, 4.0)},
        tasks={"gpu": Backlog(5, 6.0)},
    )
    told = list(gauges_of(figures))
    assert {one for one, _, _ in told} == {one for one in of.INSTRUMENTS if one.kind == "gauge"}
    assert all(bool(gauge.label) is bool(label) for gauge, _, label in told)
    assert (of.UNCLAIMED_AGE, 4.0, "fix") in told
    assert len(told) == len({(gauge, label) for gauge, _, label in told})


def test_names_follow_the_conventions():
    """Dotted, of one root, once each; no name is the root of another; seconds, or things in braces."""
    names = [one.name for one in of.INSTRUMENTS]
    assert len(names) == len(set(names)) > 30
    assert all(
        one.name.startswith("outlast.") and one.name == one.name.lower() for one in of.INSTRUMENTS
    )
    assert not [one for one in names if any(other.startswith(f"{one}.") for other in names)]
    assert all(one.unit == "s" or one.unit.strip("{}") == one.unit[1:-1] for one in of.INSTRUMENTS)
