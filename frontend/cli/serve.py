"""``ringcast serve``: the OpenAI-compatible server in the foreground."""

from __future__ import annotations

import logging

from ..async_llm import AsyncLLM
from ..engine_args import EngineArgs
from ..model_source import resolve_model
from ..progress import download_progress
from ..server.run import address_of, listen, run_server
from ..server.settings import ServerSettings
from .stop_signals import StopSignals
from .streams import tell


def serve(
    args: EngineArgs,
    *,
    host: str,
    port: int,
    served_model_name: str | None,
    drain_timeout_s: float,
    settings: ServerSettings,
    log_level: str,
) -> None:
    """Serve until a signal. Raises what kept the engine from starting, or ended it."""
    with StopSignals() as signals:
        _serve(args, host, port, served_model_name, drain_timeout_s, settings, log_level, signals)
    tell("stopped")


def _serve(
    args: EngineArgs,
    host: str,
    port: int,
    served_model_name: str | None,
    drain_timeout_s: float,
    settings: ServerSettings,
    log_level: str,
    signals: StopSignals,
) -> None:
    args.scheduler_config()  # refuse wrong values first,
    listener = listen(host, port)  # then a port that cannot be had, then load
    logging.getLogger().setLevel(log_level.upper())
    address = address_of(listener)
    with download_progress() as progress:
        resolve_model(args.model, progress)
    name = served_model_name or args.model
    _set_title(f"ringcast: serve {name} on {address}")
    tell(f"loading {args.model}; {address}/health says when it is ready")

    from ..server.app import create_app

    failure = run_server(
        listener,
        lambda failed: create_app(
            AsyncLLM(args),
            model=name,
            settings=settings,
            on_started=lambda: tell(f"ready: {name!r} on {address}/v1"),
            on_failed=failed,
        ),
        settings=settings,
        drain_timeout_s=drain_timeout_s,
        on_stopper=signals.stopper,
    )
    if failure is not None:
        raise failure


def _set_title(title: str) -> None:
    from setproctitle import setproctitle

    setproctitle(title)
