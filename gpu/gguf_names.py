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
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GGUFName(NamedTuple):
    """A tensor's name in the file; ``interleaved_heads`` > 0: its rows are in llama.cpp's rotary order, per head."""

    name: str
    interleaved_heads: int


def gguf_name(hf_name: str, config: ModelConfig) -> GGUFName:
    """Translate ``hf_name``. `KeyError` if the table does not know it, which is a defect of the weight table."""
    if hf_name in _TOP:
        return GGUFName(_TOP[hf_name], 0)
    # model.layers.<index>.<module>.weight
    index, _, rest = hf_name.removeprefix("model.layers.").partition(".")
    module = rest.removesuffix(".weight")
    # Only files of architecture "llama" are permuted; other converters keep HF's order.
    heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}.get(module, 0)
    permuted = heads if config.architecture == "LlamaForCausalLM" else 0
    return GGUFName(f"blk.{index}.{_IN_LAYER[module]}.weight", permuted)
