"""Testing kit for actors: see docs/testing.md. Nothing in ringcast imports it.

>>> from ringcast.actors import testing
"""

from .errors import Deadlock, Endless, InvariantViolated, NotSimulated, SimulationFailed
from .faults import Faults
from .handlers import open_stream, run_handler
from .leaks import left_behind, no_leaks, resources
from .probe import Probe
from .simulation import Simulation, explore
from .stand_in import FakeActor, FakeContext, Told
from .trace import Trace, TraceEvent

__all__ = [
    "Deadlock",
    "Endless",
    "FakeActor",
    "FakeContext",
    "Faults",
    "InvariantViolated",
    "NotSimulated",
    "Probe",
    "Simulation",
    "SimulationFailed",
    "Told",
    "Trace",
    "TraceEvent",
    "explore",
    "left_behind",
    "no_leaks",
    "open_stream",
    "resources",
    "run_handler",
]
