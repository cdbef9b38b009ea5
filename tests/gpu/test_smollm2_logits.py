"""SmolLM2's logits in float32 equal those of transformers on the same weights, over whole records of the reference."""

from __future__ import annotations

from typing import Any

import torch
from random_models import hf_logits, logits_of

from ringcast.gpu import Checkpoint
from ringcast.gpu.weight_table import weight_table


def by_transformers(checkpoint: Checkpoint) -> Any:
    """The checkpoint's dequantised weights in transformers' own model."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = checkpoint.config
    hf_config = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads, max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps, rope_theta=config.rope.theta,
        tie_word_embeddings=config.tie_word_embeddings,
    )  # fmt: skip
    with torch.device("meta"):  # no time for random weights
        model = LlamaForCausalLM(hf_config)
    model.model.rotary_emb = LlamaRotaryEmbedding(hf_config)
    names = [part.name for weight in weight_table(config) for part in weight.parts]
    state = {name: torch.from_numpy(checkpoint.read(name).array) for name in names}
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert missing == ["lm_head.weight"] and not unexpected  # tied
    model.tie_weights()
    return model.eval()


def test_logits_are_within_two_ten_thousandths(smollm2: Checkpoint, reference: list[dict[str, Any]]) -> None:
    model = by_transformers(smollm2)
    record = reference[5]
    sequence = [*record["prompt_token_ids"], *record["token_ids"]][:120]
    ours, theirs = logits_of(smollm2, sequence, chunk=100), hf_logits(model, sequence)
    assert theirs.abs().max() > 10
    assert (ours - theirs).abs().max() < 2e-4
