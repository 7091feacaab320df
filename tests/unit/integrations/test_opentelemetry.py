"""What an SDK of OpenTelemetry sees: the instruments of the one list, what a worker did, and what its store holds."""

import asyncio

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import outlast
from outlast.integrations.opentelemetry import STALE_SECONDS, OpenTelemetryMeters
from outlast.meter.instrument import INSTRUMENTS
from outlast.store.figures import OPEN, Backlog, Figures
from outlast.testing.conformance import ManualClock
from outlast.worker.report import Reporter


@outlast.step
async def think_aloud() -> int:
    """Think."""
    return 1


@outlast.workflow
async def ponder() -> int:
    """Think twice, and wait for a word."""
    await think_aloud()
    return await think_aloud()


@outlast.workflow
async def wait_for_ever() -> None:
    """Wait."""
    await outlast.wait_condition(lambda: False)


def read(reader):
    """Return what an exporter gets: by name the metric, and by name and label each value."""
    data = reader.get_metrics_data()
    if data is None:
        return {}, {}
    (scope,) = data.resource_metrics[0].scope_metrics
    assert scope.scope.name == "outlast"
    metrics = {one.name: one for one in scope.metrics}
    values = {
        (name, *dict(point.attributes).values()): getattr(
            point, "value", getattr(point, "count", None)
        )
        for name, metric in metrics.items()
        for point in metric.data.data_points
    }
    return metrics, values


def test_what_a_worker_does_and_its_store_holds():
    """Steps, runs and commits of this worker; the gauges of the whole store, once they were read."""
    reader = InMemoryMetricReader()
    meters = OpenTelemetryMeters(MeterProvider([reader]))

    async def main():
        async with outlast.open(
            "memory://", workflows=[ponder, wait_for_ever], meters=meters
        ) as app:
            await app.run(ponder(), id="p")
            await app.start(wait_for_ever(), id="w")
            await Reporter(app.store, app.worker, app._tally, meters).observe()
            return read(reader)

    metrics, values = asyncio.run(main())
    assert values["outlast.step.outcomes", "completed"] == 2
    assert values["outlast.attempt.ended", "returned"] == 2
    assert values["outlast.run.ended", "completed"] == 1
    assert values["outlast.run.started",] == 2
    assert sum(values["outlast.run.open", status.value] for status in OPEN) == 1
    assert values["outlast.worker.count", "live"] == 1
    assert values["outlast.store.commit.duration",] > 3
    point = metrics["outlast.step.outcomes"].data.data_points[0]
    assert dict(point.attributes) == {"outlast.outcome": "completed"}
    seconds = metrics["outlast.store.commit.duration"]
    assert seconds.unit == "s"
    assert seconds.data.data_points[0].explicit_bounds[0] < 0.001
    known = {one.name: (one.unit, one.text) for one in INSTRUMENTS}
    assert all(known[name] == (one.unit, one.description) for name, one in metrics.items())


def test_figures_that_are_old_are_not_told():
    """A gauge that nobody reads any more goes away, and does not stand still."""
    clock, reader = ManualClock(), InMemoryMetricReader()
    now = [0.0]
    meters = OpenTelemetryMeters(MeterProvider([reader]), monotonic=lambda: now[0])
    assert read(reader)[1] == {}
    meters.observe(Figures(clock.now(), {}, unclaimed={"fix": Backlog(2, 3.5)}))
    assert read(reader)[1]["outlast.run.unclaimed_age", "fix"] == 3.5
    now[0] = STALE_SECONDS
    assert read(reader)[1]["outlast.run.unclaimed", "fix"] == 2
    now[0] += 0.1
    assert read(reader)[1] == {}
    meters.observe(Figures(clock.now(), {}))
    assert "outlast.run.unclaimed" not in read(reader)[0]


def test_without_an_sdk_nothing_is_told():
    """The API alone does nothing, and does not fail."""
    meters = OpenTelemetryMeters()
    for one in INSTRUMENTS:
        if one.kind == "counter":
            meters.add(one, 1, "x" if one.label else "")
        elif one.kind == "histogram":
            meters.record(one, 1.0)
    meters.observe(Figures(ManualClock().now(), {}))


@pytest.mark.parametrize("kind", ["add", "record"])
def test_each_instrument_is_known(kind):
    """Nothing that Outlast counts or measures is unknown to it."""
    meters = OpenTelemetryMeters()
    known = meters._counters if kind == "add" else meters._histograms
    wanted = "counter" if kind == "add" else "histogram"
    assert set(known) == {one for one in INSTRUMENTS if one.kind == wanted}
