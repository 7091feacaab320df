"""What users need to test their own workflows, and what every store must pass."""

from outlast.errors import RunBlockedError
from outlast.testing.attempt import attempt
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
from outlast.testing.simulation import InvariantViolatedError, SimulatedWorker, Simulation
from outlast.testing.thread import SeededRandom, SimulatedThreads
from outlast.worker.options import WorkerOptions

__all__ = [
    "BodyCall",
    "CrashPoint",
    "CrashPointError",
    "Faults",
    "FaultyStore",
    "Golden",
    "InvariantViolatedError",
    "Life",
    "Process",
    "Receiver",
    "RunBlockedError",
    "SeededRandom",
    "SimulatedClock",
    "SimulatedLoop",
    "SimulatedThreads",
    "SimulatedWorker",
    "Simulation",
    "SimulationStuckError",
    "Trial",
    "WorkerOptions",
    "Workload",
    "always_replay",
    "approve_everything",
    "attempt",
    "crashed",
    "double",
    "every_crash",
    "record",
    "replay_run",
    "undisturbed",
]
