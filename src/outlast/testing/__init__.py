"""What users need to test their own workflows, and what every store must pass."""

from outlast.testing.clock import SimulatedClock
from outlast.testing.fault import Faults, FaultyStore
from outlast.testing.loop import Process, SimulatedLoop, SimulationStuckError
from outlast.testing.receiver import Receiver
from outlast.testing.replay import replay_run
from outlast.testing.simulation import SimulatedWorker, Simulation
from outlast.testing.thread import SeededRandom, SimulatedThreads

__all__ = [
    "Faults",
    "FaultyStore",
    "Process",
    "Receiver",
    "SeededRandom",
    "SimulatedClock",
    "SimulatedLoop",
    "SimulatedThreads",
    "SimulatedWorker",
    "Simulation",
    "SimulationStuckError",
    "replay_run",
]
