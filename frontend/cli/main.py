"""The commands of ``ringcast`` and their options. What they do is in the other modules, imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..engine_args import EngineArgs
from .command import Command, Config
from .errors import fail, one_line_errors
from .options import SamplingOptions, engine_options, sampling_options
from .requirements import ENGINE_PACKAGES, SERVER_PACKAGES, missing, missing_line

app = typer.Typer(
    name="ringcast",
    help="LLM inference on shared-memory rings: generate, chat, serve.\n\n"
    "Every option can be given as RINGCAST_OPTION_NAME, too; those of generate, chat and serve in a --config file.\n\n"
    "Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 stopped by Ctrl-C, "
    "141 nobody reads its output.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debugging logs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No line of figures at the end.")]


@app.command(cls=Command)
@engine_options
@sampling_options
def generate(
    args: EngineArgs,
    sampling: SamplingOptions,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; - or nothing reads stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Continue this file.")] = None,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help='File or stdin has a prompt a line: {"prompt": ...} or {"messages": [...]}.'),
    ] = False,
    output_format: Annotated[
        str | None, typer.Option("--format", help="text or jsonl. (Default: jsonl with --jsonl, else text.)")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here instead of stdout.")] = None,
    config: Config = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue a text, or many: answers to stdout, progress and a line of figures to stderr.

    Examples:

      ringcast generate "The capital of France is" --max-tokens 8

      ringcast generate --file story.txt -m ./model.gguf --temperature 0.8

      ringcast generate --jsonl --file prompts.jsonl --output answers.jsonl

    With several prompts one that is refused gets an "error" line, and the exit code is 1.
    """
    with one_line_errors(debug):
        _need(ENGINE_PACKAGES)
        from .generate import generate as run

        if output_format not in (None, "text", "jsonl"):
            raise typer.BadParameter(f"{output_format!r} is neither text nor jsonl", param_hint="--format")
        run(prompt, args, sampling, quiet, file=file, jsonl=jsonl, output_format=output_format, output=output)


@app.command(cls=Command)
@engine_options
@sampling_options
def chat(
    args: EngineArgs,
    sampling: SamplingOptions,
    once: Annotated[
        str | None, typer.Option("--once", "-p", help="Answer this one message, print figures, and end.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    history: Annotated[bool, typer.Option(help="Keep what you typed for the next time.")] = True,
    config: Config = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D ends; \"\"\" begins and ends a message of several lines.

    Examples:

      ringcast chat

      ringcast chat --system "Answer in one sentence." --temperature 0.7

      ringcast chat --once "What is the capital of France?"
    """
    with one_line_errors(debug):
        _need(ENGINE_PACKAGES)
        from .chat import chat as run

        run(once, system, args, sampling, quiet, keeps_history=history)


@app.command(cls=Command)
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
    max_prompts_per_request: Annotated[
        int, typer.Option(help="Most prompts of one request, times its n; more get 400.", min=1)
    ] = 1024,
    max_header_bytes: Annotated[int, typer.Option(help="Largest line and headers of a request.", min=1)] = 64 << 10,
    header_timeout: Annotated[float, typer.Option(help="Seconds in which they must come.", min=0.001)] = 10.0,
    body_timeout: Annotated[float, typer.Option(help="Seconds in which a body must come.", min=0.001)] = 60.0,
    keep_alive_timeout: Annotated[
        float, typer.Option(help="Seconds that an idle connection stays open: more than a proxy's.", min=0.001)
    ] = 75.0,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds after which a request is given up. 0: never.", min=0)
    ] = 0.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Serve OpenAI's API: /v1/completions, /v1/chat/completions, /v1/models; and /health/ready, /metrics, /ui/.

    Examples:

      ringcast serve

      ringcast serve -m ./model.gguf --served-model-name mine --host 0.0.0.0 --api-key "$KEY"

      ringcast serve --config serve.yaml

    The first SIGTERM or Ctrl-C lets running answers finish (exit code 0), the second stops at once.
    """
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
                max_prompts_per_request=max_prompts_per_request,
                max_header_bytes=max_header_bytes,
                header_timeout_s=header_timeout,
                body_timeout_s=body_timeout,
                keep_alive_timeout_s=keep_alive_timeout,
            ),
            log_level="debug" if debug else ("info" if access_log else log_level),
        )


@app.command(cls=Command)
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

        if not interval < float("inf"):
            raise typer.BadParameter(f"{interval}: give seconds, 0.05 at least", param_hint="--interval")
        raise typer.Exit(watch(pid, interval, count))


@app.command(cls=Command)
def bench(
    url: Annotated[str, typer.Argument(help="A running server.")] = "http://127.0.0.1:8000/v1",
    model: Annotated[str | None, typer.Option(help="Its served name. (Default: the first it lists.)")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at the same time.", min=1)] = 8,
    rate: Annotated[
        float | None, typer.Option(help="Instead: requests a second, at random moments.", min=0.001)
    ] = None,
    requests: Annotated[int, typer.Option(help="How many.", min=1)] = 64,
    prompt_words: Annotated[int, typer.Option(help="Words of a prompt.", min=0)] = 32,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="Of the prompts: with the same one a prefix cache may help.")] = 0,
    api_key: Annotated[str | None, typer.Option(help="The server's key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Load a running OpenAI-compatible server, ringcast's or another, and show tokens/s, TTFT, TPOT and ITL.

    Examples:

      ringcast bench

      ringcast bench http://127.0.0.1:8001/v1 --concurrency 32 --requests 256

      ringcast bench --rate 5 --json
    """
    with one_line_errors(debug):
        _need(("httptools",))
        from .bench import BenchOptions
        from .bench import bench as run

        options = BenchOptions(
            url=url,
            model=model,
            concurrency=concurrency,
            rate=rate,
            requests=requests,
            prompt_words=prompt_words,
            max_tokens=max_tokens,
            seed=seed,
            api_key=api_key,
        )
        run(options, as_json=as_json)


@app.command("collect-env", cls=Command)
def collect_env(debug: Debug = False) -> None:
    """Print what a report about a fault should tell of this machine. Keys and tokens are left out."""
    with one_line_errors(debug):
        from .collect_env import collect_env as run

        run()


@app.command(cls=Command)
def pull(
    name: Annotated[str, typer.Argument(help="A built-in name or a hub id.")] = "smollm2", debug: Debug = False
) -> None:
    """Fetch a model's files before they are needed."""
    with one_line_errors(debug):
        from .models import pull as run

        run(name)


@app.command(cls=Command)
def models(debug: Debug = False) -> None:
    """List the models that have a built-in name or are in the hub's cache."""
    with one_line_errors(debug):
        from .models import models as run

        run()


@app.command(cls=Command)
def version() -> None:
    """Print ringcast's version."""
    with one_line_errors(debug=False):
        import ringcast

        print(ringcast.__version__)


def _need(packages: tuple[str, ...]) -> None:
    names = missing(packages)
    if names:
        fail(missing_line(names))
