"""Testing kit for actors: see docs/testing.md. Nothing in ringcast imports it.

>>> from ringcast.actors import testing
"""

from .errors import Deadlock, Endless, InvariantViolated, NotSimulated, SimulationFailed
from .faults import Faults
from .simulation import Simulation, explore
from .trace import Trace, TraceEvent

__all__ = [
    "Deadlock",
    "Endless",
    "Faults",
    "InvariantViolated",
    "NotSimulated",
    "Simulation",
    "SimulationFailed",
    "Trace",
    "TraceEvent",
    "explore",
]
