"""A Llama of 2 small layers with random weights, as a Hugging Face folder: to test loading, not answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from ringcast.frontend.tokenizer import Tokenizer

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS, VOCAB = 64, 4, 2, 16, 128, 2, 49152


def write_tiny_model(folder: Path, tokenizer: Tokenizer, generation_config: dict[str, object]) -> None:
    """Weights, config.json, tokenizer files of ``tokenizer`` and a generation_config.json."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": (FFN, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (FFN, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, FFN),
        }
    weights = {name: (random.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "head_dim": HEAD_DIM,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(generation_config))
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    assert tokenizer.chat_template is not None
    (folder / "chat_template.jinja").write_text(tokenizer.chat_template.source)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
