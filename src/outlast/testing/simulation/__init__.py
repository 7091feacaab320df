"""Whole systems on simulated time, from one seed."""

from outlast.testing.simulation.system import LONGEST, SimulatedWorker, Simulation, simulate

__all__ = ["LONGEST", "SimulatedWorker", "Simulation", "simulate"]
