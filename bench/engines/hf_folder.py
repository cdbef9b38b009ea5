"""Writes a GGUF checkpoint as an HF folder of bfloat16 weights, so that peers load the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

from ringcast.gpu import Checkpoint
from ringcast.gpu.host_tensor import convert
from ringcast.gpu.safetensors_file import lay_out
from ringcast.gpu.weight_table import weight_table


def write_hf_folder(checkpoint: Checkpoint, folder: Path) -> Path:
    """config.json and model.safetensors of a Llama; nothing is written again if they are there."""
    config = checkpoint.config
    if config.architecture != "LlamaForCausalLM":
        raise ValueError(f"{checkpoint.path} is a {config.architecture}; only Llama models are exported for peers")
    weights, settings = folder / "model.safetensors", folder / "config.json"
    if settings.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    parts = [part for weight in weight_table(config) for part in weight.parts]
    head, offsets = lay_out([(part.name, "BF16", part.shape) for part in parts], {"format": "pt"})
    with open(weights, "wb") as file:
        file.write(head)
        for part in parts:
            file.seek(offsets[part.name])
            file.write(convert(checkpoint.read(part.name), "BF16").tobytes())
    assert checkpoint.gguf is not None
    end_id = checkpoint.gguf.metadata["tokenizer.ggml.eos_token_id"]
    settings.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
                "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
                "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
                "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim,
                "vocab_size": config.vocab_size, "max_position_embeddings": config.max_position_embeddings,
                "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope.theta, "hidden_act": "silu",
                "tie_word_embeddings": config.tie_word_embeddings, "eos_token_id": end_id,
            },
            indent=1,
        )
    )  # fmt: skip
    return folder
