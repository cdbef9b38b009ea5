"""Ways of waiting: uvloop's event loop when it is installed, asyncio's otherwise, and plain polls without a loop."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ringcast.channels import Link

from .standard_streams import open_standard_streams

T = TypeVar("T")


def run_on_new_loop(main: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``, on uvloop when it is there."""
    open_standard_streams()  # a loop that gets one of their numbers aborts
    new_event_loop: Callable[[], asyncio.AbstractEventLoop]
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def wait_readable(fd: int) -> None:
    """Block until the descriptor is readable, or its other end is gone."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()


def send_all(link: Link) -> None:
    """Block until everything queued on the link is sent, or its other end is gone."""
    poll = select.poll()
    poll.register(link.fileno(), select.POLLOUT)
    while link.pending and not link.closed:
        poll.poll()
        link.pump()
