"""A measuring process: ``python -m bench.worker MODULE:CLASS near|far PEER_FD CORE``; started by `bench.workers`.

Builds one end of a transport, then answers calls of its methods: JSON lines on standard input and output. It needs
nothing but the standard library and what its transport imports, so another interpreter can run it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from functools import partial
from typing import Any

from bench.counting import counted
from bench.transports import Peer

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Connect, say so, then serve until standard input ends."""
    # A spinning end must not outlive its benchmark. Good enough here: our parent started us from its main thread.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    endpoint_path, side, peer_fd, core = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    if int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})  # before the transport starts threads: they inherit it
    module, _, name = endpoint_path.partition(":")
    try:
        peer = Peer(socket.socket(fileno=int(peer_fd)))
        endpoint = getattr(importlib.import_module(module), name)(peer, side == "near")
    except Exception:
        print(json.dumps({"error": traceback.format_exc()}), file=answers, flush=True)
        sys.exit(1)
    print(json.dumps({"value": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"value": _call(endpoint, method, arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # some transports' clean-up waits for a peer that has gone


def _call(endpoint: object, method: str, arguments: list[Any]) -> Any:
    if method == "counted":
        return counted(partial(getattr(endpoint, arguments[0]), *arguments[1:]))
    return getattr(endpoint, method)(*arguments)


if __name__ == "__main__":
    main()
