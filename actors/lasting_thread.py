"""A thread that lasts as long as the process, to start children from.

A child asks the kernel to kill it when the thread that started it ends (`channels.end_with_parent`). So a child is
started by the main thread, or by this one, which no other purpose can end.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from .system_calls import start_thread

T = TypeVar("T")


def on_lasting_thread(action: Callable[[], T]) -> T:
    """The result of ``action``, which is called on a thread that ends with the process. Waits for it."""
    if threading.get_native_id() == os.getpid():
        return action()
    return _Thread.of_this_process().call(action)


class _Thread:
    _current: _Thread | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._actions: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        start_thread(self._serve, "ringcast: starts processes")

    @classmethod
    def of_this_process(cls) -> _Thread:
        """The one thread; a forked process needs another one."""
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():
                cls._current = cls()
            return cls._current

    def call(self, action: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._actions.put((action, future))
        return future.result()

    def _serve(self) -> None:
        while True:
            action, future = self._actions.get()
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)
            del action, future
