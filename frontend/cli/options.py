"""Options that several commands share: the engine's and the sampling's, as decorators over a command's function.

A decorated function takes ``args: EngineArgs`` or ``sampling: SamplingOptions``; on the command line these
are the options below.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..engine_args import EngineArgs
from ..sampling_params import SamplingParams
from .errors import one_line_errors

_ENGINE: dict[str, tuple[Any, str]] = {
    "model": (str, "Built-in name (smollm2), .gguf file, folder in HF format, or hub id org/name."),
    "dtype": (str, "Arithmetic: auto, float32 or bfloat16."),
    "max_model_len": (int | None, "Most tokens of prompt and answer together. (Default: the model's limit.)"),
    "max_num_seqs": (int, "Requests that run at the same time."),
    "max_num_batched_tokens": (int, "Tokens that one step computes."),
    "block_size": (int, "Tokens per KV block."),
    "num_kv_blocks": (int | None, "KV blocks. (Default: what the memory holds.)"),
    "kv_cache_memory_bytes": (
        int | None,
        "Memory for KV blocks. (Default: a quarter of the free memory, at most 4 GiB.)",
    ),
    "num_threads": (int | None, "Threads of the worker. (Default: one per CPU.)"),
    "enable_prefix_caching": (bool, "Whether requests that begin alike share KV blocks."),
    "scheduling_policy": (str, "fcfs: who came first. priority: the lowest `priority` of a request first."),
    "quantization": (str, "gguf: blocks of a GGUF file stay packed. none: they are dequantised."),
    "stall_after": (float, "Seconds without progress after which worker or engine core count as stalled."),
    "restart_stalled": (float | None, "Seconds without progress after which they are restarted. (Default: never.)"),
    "max_logprobs": (int, "Most log-probabilities a token that a request may ask for; -1: no bound."),
}
_SAMPLING: dict[str, tuple[Any, Any, str]] = {
    "max_tokens": (int | None, None, "Most tokens of an answer."),
    "temperature": (float | None, None, "0 is greedy. (Default: the model's own, else 0.)"),
    "top_p": (float | None, None, "Keep the likeliest tokens up to this probability."),
    "top_k": (int | None, None, "Keep the k likeliest tokens; 0 keeps all."),
    "seed": (int | None, None, "Draw the same answer again."),
    "stop": (list[str] | None, None, "Cut the answer before this text; may be repeated."),
    "ignore_eos": (bool, False, "Go on after the end-of-sequence token."),
}


@dataclass(frozen=True)
class SamplingOptions:
    """What was given on the command line; None where nothing was."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool = False

    def params(self, model_defaults: dict[str, Any], max_tokens: int) -> SamplingParams:
        """Parameters: the options, then the model's defaults, then greedy with ``max_tokens``."""
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, **model_defaults, **given})


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Fill the parameter ``args`` from the engine's options."""
    defaults = EngineArgs()
    options = [
        _option(name, kind, getattr(defaults, name), text, short="-m" if name == "model" else None)
        for name, (kind, text) in _ENGINE.items()
    ]
    return _with_options(command, "args", EngineArgs, options)


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Fill the parameter ``sampling`` from the sampling's options."""
    options = [_option(name, kind, default, text) for name, (kind, default, text) in _SAMPLING.items()]
    return _with_options(command, "sampling", SamplingOptions, options)


def _option(name: str, kind: Any, default: Any, text: str, short: str | None = None) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    flags = [f"{flag}/--no-{flag[2:]}" if default is True else flag, *([short] if short else [])]
    option = typer.Option(*flags, help=text, show_default=default not in (None, False))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _with_options(
    command: Callable[..., None], target: str, make: Callable[..., Any], options: list[inspect.Parameter]
) -> Callable[..., None]:
    """``command`` with its parameter ``target`` replaced by options from which ``make`` builds it."""
    names = [option.name for option in options]
    signature = inspect.signature(command, eval_str=True)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != target]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        with one_line_errors(bool(given.get("debug"))):
            built = make(**{name: given.pop(name) for name in names})
        command(**{target: built}, **given)

    by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
    wrapper.__signature__ = signature.replace(parameters=[*by_keyword, *options])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {item.name: item.annotation for item in [*by_keyword, *options]}
    del wrapper.__wrapped__
    return wrapper
