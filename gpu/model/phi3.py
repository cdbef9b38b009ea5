"""Phi-3: Llama whose checkpoints hold queries, keys and values as one tensor, gates and ups as another.

Only a part of each head may be rotated, and contexts are stretched by LongRoPE: the config tells both.
"""

from __future__ import annotations

from .decoder import Decoder
from .llama import LlamaLayer


class Phi3(Decoder):
    layer_type = LlamaLayer
