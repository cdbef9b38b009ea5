"""Qwen3: Llama with an RMSNorm on each head of queries and keys; sliding windows as in Qwen2."""

from __future__ import annotations

from .decoder import Decoder
from .llama import LlamaLayer


class Qwen3Layer(LlamaLayer):
    has_norms = True


class Qwen3(Decoder):
    layer_type = Qwen3Layer
