"""Types of the actors' native core: see native/mailbox.c."""

from typing import Any, Final, final

from .call_context import CallContext
from .origin import Origin

BUCKETS: Final[int]

@final
class Incoming:
    """A message in a mailbox. ``call_id`` is None for a cast; ``quiet``: answer only if it fails."""

    def __new__(
        cls,
        call_id: int | None,
        method: str,
        args: Any,
        kwargs: Any,
        origin: Origin,
        size_bytes: int,
        context: CallContext,
        is_stream: bool = False,
        quiet: bool = False,
        /,
    ) -> Incoming: ...
    @property
    def call_id(self) -> int | None: ...
    @property
    def method(self) -> str: ...
    @property
    def args(self) -> Any: ...
    @property
    def kwargs(self) -> Any: ...
    origin: Origin
    @property
    def size_bytes(self) -> int: ...
    @property
    def context(self) -> CallContext: ...
    @property
    def is_stream(self) -> bool: ...
    @property
    def quiet(self) -> bool: ...
    arrived_at: float  # monotonic seconds, set by the mailbox
    began_at: float

class MeterCore:
    """What one mailbox counts. Times are monotonic seconds."""

    peak_depth: int
    failed: int
    expired: int
    @property
    def handled(self) -> int: ...
    @property
    def taken_at(self) -> float: ...
    @property
    def queue_time_s(self) -> float: ...
    @property
    def handling_time_s(self) -> float: ...
    @property
    def queue_histogram(self) -> list[int]: ...
    @property
    def handling_histogram(self) -> list[int]: ...
    def took(self, now: float, arrived_at: float, /) -> None: ...
    def handled_since(self, now: float, began_at: float, /) -> None: ...
