"""Gemma 3, text only: Gemma 2 with norms on each head of queries and keys instead of the cap on attention scores.

Five of six layers have a window, and a rotation of their own.
"""

from __future__ import annotations

from .decoder import Decoder
from .gemma2 import Gemma2Layer


class Gemma3Layer(Gemma2Layer):
    has_norms = True


class Gemma3(Decoder):
    layer_type = Gemma3Layer
