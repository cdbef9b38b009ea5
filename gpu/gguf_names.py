"""How llama.cpp names the tensors that HF names otherwise. A table and its look-up; `checkpoint` uses it."""

from __future__ import annotations

from typing import NamedTuple

from .model_config import ModelConfig

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Gemma's norms stand on both sides of attention and MLP.
_IN_GEMMA_LAYER = {
    **_IN_LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


class GGUFName(NamedTuple):
    """A tensor's name in the file, and how its content differs from HF's."""

    name: str
    interleaved_heads: int  # > 0: its rows are in llama.cpp's rotary order, per head
    offset: float  # what was added to every item


def gguf_name(hf_name: str, config: ModelConfig) -> GGUFName:
    """Translate ``hf_name``. `KeyError` if the table does not know it, which is a defect of the weight table."""
    # llama.cpp adds the offset of Gemma's norms into their weights.
    offset = config.norm_offset if hf_name.endswith("norm.weight") else 0.0
    if hf_name in _TOP:
        return GGUFName(_TOP[hf_name], 0, offset)
    # model.layers.<index>.<module>.<weight or bias>
    index, _, rest = hf_name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    names = _IN_GEMMA_LAYER if config.architecture.startswith("Gemma") else _IN_LAYER
    # Only files of architecture "llama" are permuted; other converters keep HF's order.
    heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}.get(module, 0)
    permuted = heads if config.architecture == "LlamaForCausalLM" else 0
    return GGUFName(f"blk.{index}.{names[module]}.{kind}", permuted, offset)
