"""What users need to test their own workflows, and what every store must pass."""

from outlast.testing.clock import SimulatedClock
from outlast.testing.crash import (
    BodyCall,
    CrashPoint,
    CrashPointError,
    Life,
    Trial,
    Workload,
    approve_everything,
    crashed,
    double,
    every_crash,
    undisturbed,
)
from outlast.testing.fault import Faults, FaultyStore
from outlast.testing.golden import Golden, record
from outlast.testing.loop import Process, SimulatedLoop, SimulationStuckError
from outlast.testing.receiver import Receiver
from outlast.testing.replay import always_replay, replay_run
from outlast.testing.simulation import SimulatedWorker, Simulation
from outlast.testing.thread import SeededRandom, SimulatedThreads

__all__ = [
    "BodyCall",
    "CrashPoint",
    "CrashPointError",
    "Faults",
    "FaultyStore",
    "Golden",
    "Life",
    "Process",
    "Receiver",
    "SeededRandom",
    "SimulatedClock",
    "SimulatedLoop",
    "SimulatedThreads",
    "SimulatedWorker",
    "Simulation",
    "SimulationStuckError",
    "Trial",
    "Workload",
    "always_replay",
    "approve_everything",
    "crashed",
    "double",
    "every_crash",
    "record",
    "replay_run",
    "undisturbed",
]
