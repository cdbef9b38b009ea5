"""The FastAPI app: routes, errors in OpenAI's shape, and the engine's life inside the app's.

`create_app` is for embedding in a program or another app's lifespan as much as for ``ringcast serve``. The
engine starts beside the app, so that the app can say that it is starting. Middleware is plain ASGI: Starlette's
BaseHTTPMiddleware would halve the rate of streams.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from ..async_llm import AsyncLLM
from ..errors import EngineDead, EngineError, FrontendError
from .delivery import answer_or_disconnect
from .errors import ErrorReply, error_reply, invalid, let_go
from .gate import Gate
from .head import HeadAsGet, with_head
from .json_body import BodyRefused, JsonRoute
from .operations import operations
from .protocol import ChatCompletionRequest, CompletionRequest
from .responses import (
    ChatCompletion,
    Completion,
    LoadBody,
    ModelCard,
    ModelList,
    TokenizerInfo,
    VersionBody,
    documented,
)
from .service import Service
from .settings import ServerSettings
from .tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    detokenize,
    tokenize,
    tokenizer_info,
)
from .traffic import Traffic
from .ui import ui

_ALL = (400, 401, 404, 408, 413, 415, 429, 500, 503, 504)

log = logging.getLogger("ringcast.server")


def create_app(
    llm: AsyncLLM,
    *,
    model: str | None = None,
    settings: ServerSettings = ServerSettings(),  # noqa: B008 (a frozen value)
    on_started: Callable[[], None] | None = None,
    on_failed: Callable[[Exception], None] | None = None,
) -> FastAPI:
    """An app that serves ``llm`` under the name ``model`` (default: the name it was loaded by).

    The app's lifespan starts and closes the engine. ``on_started`` is told when it is ready, ``on_failed``
    when it could not start or is dead for good (restarts do not count). ``app.state.drain(timeout_s)``, awaited before
    the app is stopped, lets running requests finish and refuses new ones; what is left at its end is aborted.
    """
    name = model or llm.args.model
    service = Service(llm, name, settings.max_prompts_per_request)
    created = int(time.time())
    traffic = Traffic()
    is_closing = False  # by ourselves: no failure

    async def live() -> None:
        try:
            await llm.start()
            if on_started is not None:
                on_started()
            raise EngineDead(await llm.wait_dead())
        except Exception as error:
            if is_closing:
                return
            if on_failed is not None:
                on_failed(error)
            else:
                log.error("the engine is gone, or never came: %s", error)

    async def drain(timeout_s: float) -> None:
        if not await traffic.drain(timeout_s):
            log.warning("%d requests are cut off: they did not end within %g s", traffic.in_flight, timeout_s)
            nonlocal is_closing
            is_closing = True
            await llm.close()  # each of them is told

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        living = asyncio.create_task(live(), name="engine")
        try:
            yield
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            await llm.close()

    app = FastAPI(title="ringcast", version=version("ringcast"), lifespan=lifespan)
    app.router.route_class = JsonRoute
    app.state.traffic = traffic
    app.state.drain = drain
    app.add_middleware(HeadAsGet)  # within the gate, which logs what was asked
    app.add_middleware(Gate, settings=settings, traffic=traffic, queue_time_s=lambda: _queue_time_s(llm))
    if settings.allowed_origins:  # around the gate, so that its refusals reach a page, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_credentials=settings.allow_credentials,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    _install_errors(app)

    @app.post("/v1/completions", response_class=JSONResponse, responses=documented(Completion, *_ALL, streams=True))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        return await service.completions(body, request.receive)

    @app.post(
        "/v1/chat/completions", response_class=JSONResponse, responses=documented(ChatCompletion, *_ALL, streams=True)
    )
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a chat."""
        return await service.chat(body, request.receive)

    @app.get("/v1/models", responses=documented(ModelList))
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [_card(llm, name, created)]}

    @app.get("/v1/models/{model:path}", response_class=JSONResponse, responses=documented(ModelCard, 404))
    async def one_model(model: str) -> Response:
        """That model, by its name."""
        service.check_model(model)
        return JSONResponse(_card(llm, name, created))

    @app.post("/tokenize", response_class=JSONResponse, responses=documented(TokenizeResponse, *_ALL))
    async def to_tokens(body: TokenizeRequest, request: Request) -> Response:
        """The token ids of a text or a chat."""
        service.check_model(body.model)
        return await answer_or_disconnect(request.receive, tokenize(llm, body))

    @app.post("/detokenize", response_class=JSONResponse, responses=documented(DetokenizeResponse, *_ALL))
    async def to_text(body: DetokenizeRequest, request: Request) -> Response:
        """The text of token ids."""
        service.check_model(body.model)
        return await answer_or_disconnect(request.receive, detokenize(llm, body))

    @app.get("/tokenizer_info", responses=documented(TokenizerInfo, 503))
    async def about_tokenizer() -> dict[str, Any]:
        """Special tokens, chat template, context."""
        return tokenizer_info(llm)

    app.include_router(operations(llm, name, traffic))

    @app.get("/version", responses=documented(VersionBody))
    async def about_version() -> dict[str, str]:
        """The server's version."""
        return {"version": version("ringcast")}

    @app.get("/load", responses=documented(LoadBody))
    async def load() -> dict[str, int]:
        """How many requests are being answered."""
        return {"server_load": service.num_answering}

    app.include_router(ui(llm, name, traffic))
    document = app.openapi
    app.openapi = lambda: _as_it_is(document())  # type: ignore[method-assign]
    return app


def _queue_time_s(llm: AsyncLLM) -> float:
    """What requests have waited of late before they ran."""
    try:
        return llm.request_figures().recent_queue_time_s
    except EngineError:  # it takes none now
        return 0.0


def _card(llm: AsyncLLM, name: str, created: int) -> dict[str, Any]:
    limit = llm.info().max_model_len if llm.health().state == "ready" else None
    return {"id": name, "object": "model", "created": created, "owned_by": "ringcast", "max_model_len": limit}


def _as_it_is(document: dict[str, Any]) -> dict[str, Any]:
    """The document without FastAPI's own 422: here a body that is wrong gets a 400."""
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    return document


def _install_errors(app: FastAPI) -> None:
    """Every error leaves in OpenAI's shape."""

    async def frontend_error(request: Request, error: Exception) -> Response:
        reply = error_reply(error)
        let_go(error)
        return _reply(reply)

    async def body_refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, BodyRefused)
        let_go(error)
        return _reply(error.reply)

    async def invalid_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        reply = _invalid_type(request) if isinstance(error.body, bytes) and error.body else _first_problem(error)
        let_go(error)
        return _reply(reply)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers or {})
        if "Allow" in headers:
            headers["Allow"] = with_head(headers["Allow"])
        return _reply(ErrorReply(error.status_code, text, "invalid_request_error"), headers)

    async def defect(request: Request, error: Exception) -> Response:
        return _reply(error_reply(error))  # uvicorn logs the traceback

    app.add_exception_handler(FrontendError, frontend_error)
    app.add_exception_handler(BodyRefused, body_refused)
    app.add_exception_handler(RequestValidationError, invalid_body)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, defect)


def _invalid_type(request: Request) -> ErrorReply:
    """FastAPI parses what says that it is JSON, and nothing else."""
    sent = request.headers.get("content-type", "none")
    text = f"the body has the content type {sent!r}: send JSON with the header Content-Type: application/json"
    return invalid(text, None, "invalid_content_type")


def _first_problem(error: RequestValidationError) -> ErrorReply:
    problem = error.errors()[0]
    if problem["loc"] == ("body",):
        if error.body in (None, b""):
            return invalid("the body is empty: send the parameters as JSON", None, "invalid_type")
        kind = {list: "a list", str: "a text", bool: "true or false"}.get(type(error.body), "a number")
        return invalid(f"the body is {kind}: send an object with the parameters", None, "invalid_type")
    # ("body", "messages", 0, "role"); members of a union type add their own names behind, which tell
    # clients nothing.
    path = [str(item) for item in problem["loc"][1:]]
    param = path[0] if path else None
    return invalid(f"{'.'.join(path) or 'the body'}: {problem['msg']}", param, "invalid_type")


def _reply(reply: ErrorReply, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(reply.body(), reply.status, headers)
