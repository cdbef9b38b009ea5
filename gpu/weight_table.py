"""Which tensors a model holds: one small table per architecture, used by converter and loader alike. Imports no torch.

A `Weight` is a tensor as the model multiplies by it; its parts are the tensors of the HF checkpoint that are stacked to
form it (query, key and value become one product). Names are those of HF; merged ones follow its naming style.
"""

from __future__ import annotations

from dataclasses import dataclass

from .model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the checkpoint. ``shape`` is what the config promises."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the model: its parts, stacked along the first axis.

    ``gated``: the first half of its rows makes gates, the second what they gate; they are packed in turn (`packing`).
    """

    name: str
    parts: tuple[Part, ...]
    gated: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The stacked shape."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])


# A row of a layer's table: our tensor, then the checkpoint's tensors that form it, with the names of their sizes.
_Row = tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]


def _own(name: str, *sizes: str) -> _Row:
    """A tensor that is in the checkpoint as it is here."""
    return name, ((name, sizes),)


_ATTENTION_NORM = _own("input_layernorm.weight", "hidden")
_QKV: _Row = ("self_attn.qkv_proj.weight", (
    ("self_attn.q_proj.weight", ("queries", "hidden")),
    ("self_attn.k_proj.weight", ("keys", "hidden")),
    ("self_attn.v_proj.weight", ("keys", "hidden")),
))  # fmt: skip
_QKV_BIAS: _Row = ("self_attn.qkv_proj.bias", (
    ("self_attn.q_proj.bias", ("queries",)),
    ("self_attn.k_proj.bias", ("keys",)),
    ("self_attn.v_proj.bias", ("keys",)),
))  # fmt: skip
_FUSED_QKV = _own("self_attn.qkv_proj.weight", "qkv", "hidden")
_QK_NORMS = (_own("self_attn.q_norm.weight", "head"), _own("self_attn.k_norm.weight", "head"))
_OUT = _own("self_attn.o_proj.weight", "hidden", "queries")
_MLP_NORM = _own("post_attention_layernorm.weight", "hidden")
_GATE_UP: _Row = ("mlp.gate_up_proj.weight", (
    ("mlp.gate_proj.weight", ("middle", "hidden")),
    ("mlp.up_proj.weight", ("middle", "hidden")),
))  # fmt: skip
_FUSED_GATE_UP = _own("mlp.gate_up_proj.weight", "twice_middle", "hidden")
_DOWN = _own("mlp.down_proj.weight", "hidden", "middle")

_GEMMA_MLP = (
    _own("post_attention_layernorm.weight", "hidden"), _own("pre_feedforward_layernorm.weight", "hidden"), _GATE_UP,
    _DOWN, _own("post_feedforward_layernorm.weight", "hidden"),
)  # fmt: skip

_LLAMA = (_ATTENTION_NORM, _QKV, _OUT, _MLP_NORM, _GATE_UP, _DOWN)
_LAYERS: dict[str, tuple[_Row, ...]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": (_ATTENTION_NORM, _QKV, _QKV_BIAS, _OUT, _MLP_NORM, _GATE_UP, _DOWN),
    "Qwen3ForCausalLM": (_ATTENTION_NORM, _QKV, *_QK_NORMS, _OUT, _MLP_NORM, _GATE_UP, _DOWN),
    "Gemma2ForCausalLM": (_ATTENTION_NORM, _QKV, _OUT, *_GEMMA_MLP),
    "Gemma3ForCausalLM": (_ATTENTION_NORM, _QKV, *_QK_NORMS, _OUT, *_GEMMA_MLP),
    "Phi3ForCausalLM": (_ATTENTION_NORM, _FUSED_QKV, _OUT, _MLP_NORM, _FUSED_GATE_UP, _DOWN),
}  # fmt: skip


def weight_table(config: ModelConfig) -> list[Weight]:
    """All weights of a model, in the order in which a step uses them."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = {
        "hidden": config.hidden_size,
        "head": config.head_dim,
        "queries": queries,
        "keys": keys,
        "qkv": queries + 2 * keys,
        "middle": config.intermediate_size,
        "twice_middle": 2 * config.intermediate_size,
    }
    table = [_single("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))]
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        for name, parts in _LAYERS[config.architecture]:
            stacked = tuple(Part(prefix + part, tuple(sizes[size] for size in shape)) for part, shape in parts)
            table.append(Weight(prefix + name, stacked, gated=name == "mlp.gate_up_proj.weight"))
    table.append(_single("model.norm.weight", (config.hidden_size,)))
    if not config.tie_word_embeddings:
        table.append(_single("lm_head.weight", (config.vocab_size, config.hidden_size)))
    return table


def _single(name: str, shape: tuple[int, ...]) -> Weight:
    return Weight(name, (Part(name, shape),))
