"""The page at ``/ui/``: what an engine is doing, live, and a box to talk with it. Plain files, served as they are.

The page asks ``/ui/state`` once a second while somebody looks at it; nothing is kept and nothing runs here otherwise.
The files hold no data and need no key; the state does, like every endpoint.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from fastapi import APIRouter
from fastapi.responses import FileResponse, RedirectResponse, Response

import ringcast.actors.top as board

from ..async_llm import AsyncLLM
from ..errors import EngineError
from .traffic import Traffic

T = TypeVar("T")

FILES: Final = {"": "index.html", "page.js": "page.js", "chat.js": "chat.js", "style.css": "style.css"}
OPEN_PATHS: Final = ("/ui", *(f"/ui/{name}" for name in FILES))
_FOLDER: Final = Path(__file__).parent / "ui_files"
_ANSWER_S: Final = 0.5  # what the engine core gets to answer, before the page is told the rest without it
_HEADERS: Final = {
    # Whatever a model says, a browser runs nothing but our own two scripts, and asks nobody but us.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def ui(llm: AsyncLLM, model: str, traffic: Traffic) -> APIRouter:
    """The routes under /ui. ``model`` is the name under which ``llm`` is served."""
    router = APIRouter(prefix="/ui", include_in_schema=False)

    def route(path: str, file: Path) -> None:
        async def send_file() -> Response:
            return FileResponse(file, headers=_HEADERS)

        router.add_api_route(f"/{path}", send_file, methods=["GET"])

    @router.get("")
    async def to_the_page() -> Response:
        return RedirectResponse("ui/")  # relative: the app may be mounted anywhere

    for path, name in FILES.items():
        route(path, _FOLDER / name)

    @router.get("/state")
    async def state() -> dict[str, Any]:
        return await _state(llm, model, traffic)

    return router


async def _state(llm: AsyncLLM, model: str, traffic: Traffic) -> dict[str, Any]:
    """What is known now, in any state of the engine: ``scheduler`` and ``engine`` are null while it cannot tell.

    ``actors`` are the processes of this process's systems, off their board: they are asked nothing, so a busy or stuck
    one is seen as well. Times in seconds, memory in bytes.
    """
    health = llm.health()
    is_draining = traffic.is_draining and health.state != "dead"
    scheduler = await _answer(llm.statistics())
    try:
        engine = dataclasses.asdict(llm.info())
    except EngineError:  # it has not started, or is dead
        engine = None
    return {
        "version": version("ringcast"),
        "model": model,
        "health": {"state": "draining" if is_draining else health.state, "detail": health.detail},
        "num_answering": traffic.in_flight,
        "engine": engine,
        "scheduler": None if scheduler is None else dataclasses.asdict(scheduler),
        "time_s": asyncio.get_running_loop().time(),
        "actors": [dataclasses.asdict(row) for row in board.rows(os.getpid())],
    }


async def _answer(question: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await question
    except (EngineError, TimeoutError):
        return None
