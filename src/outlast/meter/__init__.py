"""What is counted and measured of a worker and its store, and who is told. No dependency: who wants the numbers elsewhere brings a `Meters`."""

from outlast.meter.instrument import Instrument
from outlast.meter.meters import Meters

__all__ = ["Instrument", "Meters"]
