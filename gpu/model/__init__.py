"""The models, by architecture. Imported by the runner only: this folder needs torch."""

from __future__ import annotations

from .decoder import Decoder
from .gemma2 import Gemma2
from .gemma3 import Gemma3
from .llama import Llama
from .mistral import Mistral
from .phi3 import Phi3
from .qwen2 import Qwen2
from .qwen3 import Qwen3

MODELS: dict[str, type[Decoder]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Mistral,
    "Qwen2ForCausalLM": Qwen2,
    "Qwen3ForCausalLM": Qwen3,
    "Gemma2ForCausalLM": Gemma2,
    "Gemma3ForCausalLM": Gemma3,
    "Phi3ForCausalLM": Phi3,
}

__all__ = ["MODELS", "Decoder"]
