"""Which faults a simulation injects, and how often."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities, 0 to 1, each per opportunity. The runtime promises to survive all of them but ``lost_doorbell``.

    ``kill``: a child process dies (SIGKILL) before its next step: at any of its awaits. At most ``max_kills`` in all.
    ``slow_reader``: a child process stands still before its next step, for up to ``delay_s``.
    ``delayed_doorbell``, ``delayed_frame``: a wake-up, or frames on a link, are noticed up to ``delay_s`` later.
    ``full_ring``: a message finds the ring full, for up to ``delay_s``.
    ``late_reply``: the answer of a call is held back for up to ``delay_s`` and, if its sender dies meanwhile, until a
    successor is READY: it arrives after the call has ended.
    ``lost_doorbell``: a wake-up never arrives. No kernel loses one and the runtime has no timer against it, so that
    a simulation with it is expected to fail: it shows that your deadlines and checks notice.
    """

    kill: float = 0.0
    slow_reader: float = 0.0
    delayed_doorbell: float = 0.0
    delayed_frame: float = 0.0
    full_ring: float = 0.0
    late_reply: float = 0.0
    lost_doorbell: float = 0.0
    max_kills: int = 1_000_000
    delay_s: float = 0.2

    def __post_init__(self) -> None:
        for field in fields(self)[:7]:
            value = getattr(self, field.name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"Faults.{field.name} is {value}: it is a probability, 0 to 1")
        if self.max_kills < 0 or self.delay_s < 0:
            raise ValueError(f"Faults.max_kills is {self.max_kills}, delay_s {self.delay_s}: neither can be negative")
