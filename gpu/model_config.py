"""`ModelConfig`: the numbers that define a model. Imports no torch.

`hf_config` and `gguf_config` make it from their files; the loader, the models and the frontend's admission read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .rope_config import RopeConfig

# HF architecture -> GGUF's general.architecture; llama.cpp writes Mistral as "llama".
SUPPORTED_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
}
MAX_LAYERS = 1 << 12


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a decoder-only model looks like. Sizes count elements; lengths and windows count tokens.

    The fields from ``windows`` on have defaults that mean "nothing of the kind".
    """

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    windows: tuple[int, ...] = ()  # per layer: how many tokens a query sees, itself included; 0: all before it
    local_rope: RopeConfig | None = None  # of the layers with a window
    activation: str = "silu"
    query_scale: float | None = None  # None: 1/sqrt(head_dim)
    attention_softcap: float = 0.0  # scores s become softcap * tanh(s / softcap)
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    norm_offset: float = 0.0  # added to the weights of all norms

    @property
    def longest_context(self) -> int:
        """The most tokens that ``max_model_len`` may be: more than the default where the rope is made for it."""
        scaled = int(self.rope.factor * self.rope.original_context) if self.rope.kind in ("dynamic", "yarn") else 0
        return max(self.max_position_embeddings, scaled)

    def window(self, layer: int) -> int:
        """Of a layer, 0 for none."""
        return self.windows[layer] if self.windows else 0

    def layer_rope(self, layer: int) -> RopeConfig:
        """The rotation in a layer."""
        return self.local_rope if self.local_rope is not None and self.window(layer) else self.rope
