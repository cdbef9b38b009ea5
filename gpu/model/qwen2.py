"""Qwen2: Llama with biases on queries, keys and values; if its config says so, later layers have a sliding window."""

from __future__ import annotations

from .decoder import Decoder
from .llama import LlamaLayer


class Qwen2Layer(LlamaLayer):
    has_bias = True


class Qwen2(Decoder):
    layer_type = Qwen2Layer
