"""The production core in virtual time: an event heap, simulated workers, and faults from a seed.

Invariants: the core is the very object that the shell drives; messages between one pair of ends keep their
order, as the session guarantees; a killed worker never speaks again; the same seed gives the same run,
command for command. Nothing here imports scipy or matplotlib before a bound or a plot is asked for.
"""

from controller.simulation.faults import Faults
from controller.simulation.host import Outcome, Simulation
from controller.simulation.records import TrainStart, Window, window

__all__ = ["Faults", "Outcome", "Simulation", "TrainStart", "Window", "window"]
