"""Whole systems on simulated time, from one seed.

For everybody's workflows: `system` (store, clock, workers), and what holds at every write and call: `invariant`, which `watch` tells of
what happens, with its parts `model` (what is remembered), `written` (of changes) and `bodies` (of attempts).

For Outlast itself and for stores: `search` draws a `scenario` from each seed, has it `play`ed, and makes one that fails small (`shrink`).
A scenario is made of `shape`s, which `kit` carries out, of `people`, of a `world` of receivers, and of what `disturb` does.
"""

from outlast.testing.simulation.invariant import InvariantViolatedError
from outlast.testing.simulation.system import LONGEST, SimulatedWorker, Simulation

__all__ = ["LONGEST", "InvariantViolatedError", "SimulatedWorker", "Simulation"]
