"""The commands of ``ringcast`` and their options. What they do is in the other modules, imported when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from ..engine_args import EngineArgs
from .errors import fail, one_line_errors
from .options import SamplingOptions, engine_options, sampling_options
from .requirements import ENGINE_PACKAGES, SERVER_PACKAGES, missing, missing_line

app = typer.Typer(
    name="ringcast",
    help="LLM inference on shared-memory rings: generate, chat, serve.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debugging logs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No line of figures at the end.")]


@app.command()
@engine_options
@sampling_options
def generate(
    args: EngineArgs,
    sampling: SamplingOptions,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; - or nothing reads stdin.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue a text: the continuation to stdout, a line of figures to stderr."""
    with one_line_errors(debug):
        _need(ENGINE_PACKAGES)
        from .generate import generate as run

        run(prompt, args, sampling, quiet)


@app.command()
@engine_options
@sampling_options
def chat(
    args: EngineArgs,
    sampling: SamplingOptions,
    once: Annotated[
        str | None, typer.Option("--once", "-p", help="Answer this one message, print figures, and end.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D ends."""
    with one_line_errors(debug):
        _need(ENGINE_PACKAGES)
        from .chat import chat as run

        run(once, system, args, sampling, quiet)


@app.command()
@engine_options
def serve(
    args: EngineArgs,
    host: Annotated[str, typer.Option(help="Address to listen on; the default is reachable from here only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="The name clients use. (Default: --model.)")] = None,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running answers get after the first SIGTERM or Ctrl-C.", min=0)
    ] = 10.0,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="A key that clients must send; may be repeated.", envvar="RINGCAST_API_KEY"),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="A web origin that browsers may let in (CORS), * for all; repeatable.")
    ] = None,
    allow_credentials: Annotated[bool, typer.Option("--allow-credentials", help="Let those send cookies.")] = False,
    max_body_bytes: Annotated[int, typer.Option(help="Largest body of a request.", min=1)] = 32 << 20,
    max_concurrent_requests: Annotated[
        int, typer.Option(help="Requests answered at a time; more get 429 with Retry-After. 0: no bound.", min=0)
    ] = 1024,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds after which a request is given up. 0: never.", min=0)
    ] = 0.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    debug: Debug = False,
) -> None:
    """Serve OpenAI's API: /v1/completions, /v1/chat/completions, /v1/models; and /health/ready, /metrics."""
    with one_line_errors(debug):
        _need(ENGINE_PACKAGES + SERVER_PACKAGES)
        if log_level not in ("debug", "info", "warning", "error"):
            raise typer.BadParameter(
                f"{log_level!r} is not one of debug, info, warning, error", param_hint="--log-level"
            )
        from ..server.settings import ServerSettings
        from .serve import serve as run

        run(
            args,
            host=host,
            port=port,
            served_model_name=served_model_name,
            drain_timeout_s=drain_timeout,
            settings=ServerSettings(
                api_keys=tuple(api_key or ()),
                allowed_origins=tuple(allowed_origin or ()),
                allow_credentials=allow_credentials,
                max_body_bytes=max_body_bytes,
                max_concurrent_requests=max_concurrent_requests or None,
                request_timeout_s=request_timeout or None,
            ),
            log_level="debug" if debug else ("info" if access_log else log_level),
        )


@app.command()
def top(
    pid: Annotated[
        int | None, typer.Argument(help="A system's first process. (Default: all that can be seen.)")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between tables.", min=0.05)] = 1.0,
    count: Annotated[int | None, typer.Option(help="How many tables. (Default: until interrupted.)", min=1)] = None,
    debug: Debug = False,
) -> None:
    """Show what the actors of running engines and systems do: state, mailbox, rate, restarts, CPU, memory."""
    with one_line_errors(debug):
        from ringcast.actors.top import watch

        raise typer.Exit(watch(pid, interval, count))


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A built-in name or a hub id.")] = "smollm2", debug: Debug = False
) -> None:
    """Fetch a model's files before they are needed."""
    with one_line_errors(debug):
        from .models import pull as run

        run(name)


@app.command()
def models(debug: Debug = False) -> None:
    """List the models that have a built-in name or are in the hub's cache."""
    with one_line_errors(debug):
        from .models import models as run

        run()


@app.command()
def version() -> None:
    """Print ringcast's version."""
    import ringcast

    print(ringcast.__version__)


def _need(packages: tuple[str, ...]) -> None:
    names = missing(packages)
    if names:
        fail(missing_line(names))
