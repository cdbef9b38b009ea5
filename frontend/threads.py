"""Work on another thread for a coroutine: `asyncio.to_thread` with an error that a user of the engine understands."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from .errors import EngineNotReady

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``work``'s result. `EngineNotReady` when the interpreter is ending, and starts no threads any more."""
    call = partial(contextvars.copy_context().run, work, *args, **kwargs)
    try:
        future = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError as error:
        raise EngineNotReady(f"the program is ending: the engine takes no requests any more ({error})") from error
    return await future
