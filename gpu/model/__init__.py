"""The models, by architecture. Imported by the runner only: this folder needs torch."""

from __future__ import annotations

from .llama import Llama

MODELS = {"LlamaForCausalLM": Llama}

__all__ = ["MODELS", "Llama"]
