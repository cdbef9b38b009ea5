"""Programs of their own that know nothing but a channel's name: ``python named_peers.py ROLE NAME [ARGUMENT]``."""

from __future__ import annotations

import asyncio
import os
import sys

from ringcast import channels
from ringcast.channels import aio


def write(name: str, count: int) -> None:
    """Make the channel, say so, wait for a reader, send so many."""
    with channels.create(name) as writer:
        print("made", flush=True)
        writer.wait_for_readers()
        for number in range(count):
            writer.send(b"%d" % number)


async def write_async(name: str, count: int) -> None:
    """The same on a loop."""
    async with aio.create(name) as writer:
        print("made", flush=True)
        await writer.wait_for_readers()
        for number in range(count):
            await writer.send(b"%d" % number)


def read(name: str) -> None:
    """Read to the end; the sum and how it ended."""
    total = 0
    try:
        with channels.open(name) as reader:
            print("attached", flush=True)
            for message in reader:
                total += int(message.payload)
        print(f"end {total}", flush=True)
    except channels.ChannelError as error:
        print(f"{type(error).__name__} {total}", flush=True)


async def read_async(name: str) -> None:
    """The same on a loop."""
    total = 0
    async with aio.open(name) as reader:
        print("attached", flush=True)
        async for message in reader:
            total += int(message.payload)
    print(f"end {total}", flush=True)


def hold(name: str) -> None:
    """Attach and never read."""
    with channels.open(name):
        print("attached", flush=True)
        sys.stdin.read()


def serve_for_ever(name: str) -> None:
    """Make the channel and send without end."""
    with channels.create(name, capacity=4096) as writer:
        print("made", flush=True)
        number = 0
        while True:
            writer.wait_for_readers()
            writer.send(b"%d" % number)
            number += 1


def as_user(name: str, user: int) -> None:
    """Become another user and try to attach, and to make a channel of that name."""
    with channels.create(f"{name}-before"), channels.open(f"{name}-before"):
        pass  # every module is loaded: that user may not be allowed to read them
    os.setuid(user)
    try:
        channels.open(name)
    except channels.ChannelError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    with channels.create(name):  # his own
        print("made", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    role, name, *rest = sys.argv[1:]
    if role == "write":
        write(name, int(rest[0]))
    elif role == "write_async":
        asyncio.run(write_async(name, int(rest[0])))
    elif role == "read":
        read(name)
    elif role == "read_async":
        asyncio.run(read_async(name))
    elif role == "hold":
        hold(name)
    elif role == "serve":
        serve_for_ever(name)
    else:
        as_user(name, int(rest[0]))
