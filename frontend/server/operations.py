"""What operators ask a server: is it alive, is it ready, and its figures. Open without a key."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from ..async_llm import AsyncLLM
from .metrics import CONTENT_TYPE_LATEST, metrics_text
from .responses import HealthBody, documented
from .traffic import Traffic


def operations(llm: AsyncLLM, model: str, traffic: Traffic) -> APIRouter:
    """The routes /health, /health/ready, /health/live and /metrics."""
    router = APIRouter()

    def state() -> tuple[str, str]:
        health = llm.health()
        if traffic.is_draining and health.state != "dead":
            return "draining", f"the server is stopping; {traffic.in_flight} requests are still being answered"
        return health.state, health.detail

    tells_health = documented(HealthBody) | {503: {"model": HealthBody}}

    @router.get("/health/ready", response_class=JSONResponse, responses=tells_health)
    @router.get("/health", response_class=JSONResponse, responses=tells_health)
    async def ready() -> Response:
        """200 while new requests are taken and run at once, 503 with the state otherwise."""
        status, detail = state()
        return JSONResponse({"status": status, "detail": detail}, 200 if status == "ready" else 503)

    @router.get("/health/live", response_class=JSONResponse, responses=tells_health)
    async def live() -> Response:
        """200 unless the engine is dead for good: what to restart the server by."""
        status, detail = state()
        return JSONResponse({"status": status, "detail": detail}, 503 if status == "dead" else 200)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(await metrics_text(llm, model, traffic, state()[0]), media_type=CONTENT_TYPE_LATEST)

    return router
