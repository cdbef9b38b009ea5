"""One other process as a node sees it: the link, its doorbell, our place in its ring and its place in ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcast.channels import Doorbell, Inbox, Link

if TYPE_CHECKING:
    from .origin import RemoteOrigin


@dataclass(slots=True, eq=False)
class Peer:
    """A connected process. ``inbox`` is None until the peer has admitted us to its ring."""

    slot: int  # its number in the system, and its bell's on the board
    name: str
    link: Link
    bell: Doorbell
    ring_fd: int  # its ring's segment until the inbox maps it, then -1
    reader_slot: int  # its place in our ring
    mask: int  # the same as a bit
    origin: RemoteOrigin = field(init=False)  # it as a caller: made together with it
    inbox: Inbox | None = None
