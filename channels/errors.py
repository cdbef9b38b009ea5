"""Errors of the channels layer. Each docstring says whose fault it is."""

_PATH_STEPS = 16  # as many are shown


class ChannelError(Exception):
    """Base of everything that channels raise."""


class EncodeError(ChannelError):
    """The caller's fault: a value was sent whose type cannot travel.

    ``path``: the steps to it from what was sent, such as ``[1]`` and ``.point``.
    """

    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        path = self.path if len(self.path) <= _PATH_STEPS else (*self.path[:_PATH_STEPS], "...")
        return f"{''.join(path).rstrip(', ')}: {super().__str__()}" if path else super().__str__()


class DecodeError(ChannelError):
    """The sender's fault: bytes arrived that are no message. The ring goes on."""


class SegmentError(ChannelError):
    """The machine's fault: no shared memory to be had. The message names the size and the remedy."""


class RingMismatch(ChannelError):
    """The wiring's fault: the mapped bytes are not the ring (magic, layout, epoch, reader slot) that was expected."""


class RingCorrupt(ChannelError):
    """A defect, or a writer gone wild: a record has another sequence number or shape than it must have.

    The reader stays where it is; every further poll raises the same.
    """


class ReaderLimit(ChannelError):
    """The caller's fault: a ring has 64 reader slots and all are taken. More readers need a second ring."""


class LinkError(ChannelError):
    """The other side's defect, or a lack of file descriptors: the byte stream of a link makes no sense any more."""


class RingFull(ChannelError):
    """A reader's fault: it lags, and its policy is that sends are refused rather than wait for it. Nothing was sent.

    Either its policy is ``reject``, or it is ``spill`` and its link holds as much as it may.
    """

    def __init__(
        self, message: str, *, slot: int, mask: int, depth_bytes: int, depth_records: int, age_s: float
    ) -> None:
        super().__init__(message)
        self.slot = slot  # the laggard; of several the slowest
        self.mask = mask  # all who refuse: the message can be sent to the others
        self.depth_bytes = depth_bytes  # what the laggard has not consumed
        self.depth_records = depth_records
        self.age_s = age_s  # how long it was seen to stand there, at least


class EndOfRing(ChannelError):
    """Nobody's fault: the writer has closed the ring, and everything before was read."""


class PeerDead(ChannelError):
    """The other side's death: its ring is drained and its link is closed."""

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch  # of the ring that ended; a restarted writer's has another


class NameUnknown(ChannelError):
    """The caller's mistake, or the owner's death: nobody who lives owns the name. Start its owner first."""


class NameTaken(ChannelError):
    """The caller's mistake: another living process, or another part of this one, owns the name."""


class NameMismatch(ChannelError):
    """The set-up's fault: the name's owner runs another version of ringcast. Both programs need the same one."""


class NameRefused(ChannelError):
    """The owner's decision: the program is another user's, or the name has as many as it can."""
