"""How an engine comes to life: from its arguments to parts, from parts to something that takes requests.

Called by `AsyncLLM.start`. The worker pays for importing torch, so its process starts first and everything
else happens beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import ringcast.actors as rt
from ringcast.gpu.worker import Worker

from .builtin_models import Progress
from .detokenizer import TextDecoder
from .encoding_queue import EncodingQueue
from .engine import Engine
from .engine_args import EngineArgs
from .engine_client import EngineClient
from .input_processor import AdmissionLimits, InputProcessor
from .model_source import resolve_model
from .request_table import RequestTable
from .threads import in_thread
from .tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine that has not started, and how to load the tokenizer that goes with it (slow; off the loop)."""

    engine: EngineClient
    load_tokenizer: Callable[[], Tokenizer]
    limits: AdmissionLimits


@dataclass(frozen=True, slots=True)
class Running:
    """A started engine and all that a request needs."""

    engine: EngineClient
    table: RequestTable
    tokenizer: Tokenizer
    decoder: TextDecoder
    input: InputProcessor
    encoding: EncodingQueue


async def find_parts(args: EngineArgs, progress: Progress | None) -> Parts:
    """Find the model's files, downloading them if need be, and make its engine. Starts nothing."""
    source = await in_thread(resolve_model, args.model, progress)
    worker = rt.spec(Worker, args.worker_config(source.path))
    return Parts(Engine(worker, args), lambda: load_tokenizer(source), args.admission_limits())


async def start_parts(parts: Parts) -> Running:
    """Start the engine and load the tokenizer at the same time. When one fails the other is given up."""
    engine = parts.engine
    table = RequestTable(engine.abort)

    def load() -> tuple[Tokenizer, TextDecoder]:
        tokenizer = parts.load_tokenizer()
        _ = tokenizer.longest_token  # slow the first time: not at the first request
        return tokenizer, TextDecoder(tokenizer)

    starting = asyncio.create_task(engine.start(table), name="start the engine")
    try:
        await asyncio.sleep(0)  # the worker's process first
        tokenizer, decoder = await in_thread(load)
        await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()
        raise
    processor = InputProcessor(tokenizer, parts.limits)
    return Running(engine, table, tokenizer, decoder, processor, EncodingQueue(processor))
