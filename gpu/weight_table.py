"""Which tensors a model holds: one table per architecture, used by converter and loader alike. Imports no torch.

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


def weight_table(config: ModelConfig) -> list[Weight]:
    """All weights of a model, in the order in which a step uses them."""
    return _TABLES[config.architecture](config)


def _llama(config: ModelConfig) -> list[Weight]:
    hidden, middle = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    # Per layer: our name, then (HF name, shape) of its parts.
    layer: tuple[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]], ...] = (
        ("input_layernorm", (("input_layernorm", (hidden,)),)),
        ("self_attn.qkv_proj", (
            ("self_attn.q_proj", (queries, hidden)),
            ("self_attn.k_proj", (keys, hidden)),
            ("self_attn.v_proj", (keys, hidden)),
        )),
        ("self_attn.o_proj", (("self_attn.o_proj", (hidden, queries)),)),
        ("post_attention_layernorm", (("post_attention_layernorm", (hidden,)),)),
        ("mlp.gate_up_proj", (("mlp.gate_proj", (middle, hidden)), ("mlp.up_proj", (middle, hidden)))),
        ("mlp.down_proj", (("mlp.down_proj", (hidden, middle)),)),
    )  # fmt: skip
    table = [_single("model.embed_tokens.weight", (config.vocab_size, hidden))]
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        for name, parts in layer:
            stacked = tuple(Part(f"{prefix}{part}.weight", shape) for part, shape in parts)
            table.append(Weight(f"{prefix}{name}.weight", stacked, gated=name == "mlp.gate_up_proj"))
    table.append(_single("model.norm.weight", (hidden,)))
    if not config.tie_word_embeddings:
        table.append(_single("lm_head.weight", (config.vocab_size, hidden)))
    return table


def _single(name: str, shape: tuple[int, ...]) -> Weight:
    return Weight(name, (Part(name, shape),))


_TABLES = {"LlamaForCausalLM": _llama}
