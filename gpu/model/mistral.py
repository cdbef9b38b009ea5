"""Mistral: Llama with, in its first version, a sliding window on every layer, which the config tells."""

from __future__ import annotations

from .decoder import Decoder
from .llama import LlamaLayer


class Mistral(Decoder):
    layer_type = LlamaLayer
