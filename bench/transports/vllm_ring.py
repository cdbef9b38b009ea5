"""vLLM's shared-memory broadcast queue, a MessageQueue each way; run by an interpreter that has vLLM.

Objects are pickled by it; messages over its chunk size go over its own ZMQ socket.
"""

from __future__ import annotations

import base64
import os
import pickle

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.distributed.device_communicators.shm_broadcast import (  # type: ignore[import-not-found]
    MessageQueue,
)

from . import Endpoint, Peer


class VllmEndpoint(Endpoint):
    """One reader a queue, on this machine."""

    def __init__(self, peer: Peer, near: bool) -> None:
        outward = MessageQueue(1, 1)
        # Its handle is an object of its own; both processes are ours, so pickle is safe here.
        peer.send(base64.b64encode(pickle.dumps(outward.export_handle())).decode())
        handle = pickle.loads(base64.b64decode(str(peer.receive()[0])))
        inward = MessageQueue.create_from_handle(handle, 0)
        for queue in (outward, inward) if near else (inward, outward):
            queue.wait_until_ready()
        self.send, self.receive = outward.enqueue, inward.dequeue
        self.ping_asleep, self.echo_asleep = self.ping, self.echo
