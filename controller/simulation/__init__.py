"""The production core in virtual time: an event heap, simulated workers, and faults from a seed.

Invariants: the core is the same class that the shell of a real run drives; messages between two ends keep
their order, as the session guarantees; a killed worker sends no message again; the same seed gives the same
run, command for command. scipy and matplotlib are imported only when a bound or a plot is asked for.
"""

from controller.simulation.faults import Faults
from controller.simulation.host import Outcome, Simulation
from controller.simulation.records import TrainStart, Window, window

__all__ = ["Faults", "Outcome", "Simulation", "TrainStart", "Window", "window"]
