"""The public face of ringcast: an LLM inference engine and actor runtime on lock-free shared-memory rings.

Names are imported when they are first used, so that ``import ringcast`` and ``import ringcast.actors`` stay
small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frontend.async_llm import AsyncLLM
    from .frontend.engine_args import EngineArgs
    from .frontend.llm import LLM
    from .frontend.llm_engine import LLMEngine
    from .frontend.outputs import CompletionOutput, Logprob, RequestOutput
    from .frontend.sampling_params import RequestOutputKind, SamplingParams

    __version__: str

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "__version__",
]

_MODULES = {
    "AsyncLLM": "async_llm",
    "CompletionOutput": "outputs",
    "EngineArgs": "engine_args",
    "LLM": "llm",
    "LLMEngine": "llm_engine",
    "Logprob": "outputs",
    "RequestOutput": "outputs",
    "RequestOutputKind": "sampling_params",
    "SamplingParams": "sampling_params",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("ringcast")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".frontend.{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
