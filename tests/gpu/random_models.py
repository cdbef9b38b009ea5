"""Small random Llama models, made by transformers: as HF folders, as GGUF files, and as a runner or its logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ringcast.gpu import Checkpoint
from ringcast.gpu.batch import Batch
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.kv_cache import KVCache
from ringcast.gpu.loader import load_weights
from ringcast.gpu.model import Llama
from ringcast.gpu.runner import ModelRunner


def random_llama(tie: bool, seed: int = 0) -> Any:
    """A model of 3 layers whose sizes are no powers of two; weights large enough that every part matters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=203, hidden_size=72, intermediate_size=100, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, initializer_range=0.2, rope_theta=5000.0,
        tie_word_embeddings=tie, eos_token_id=[2, 7],
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def save_gguf(model: Any, path: Path) -> None:
    """Write ``model`` as llama.cpp's converter does: its names, and its order of query and key rows."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list([f"token {index}" for index in range(config.vocab_size)])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        if name.endswith("q_proj.weight"):
            array = _interleaved(array, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            array = _interleaved(array, config.num_key_value_heads)
        base = names.get_name(name.removesuffix(".weight"))
        writer.add_tensor(f"{base}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def runner_of(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> ModelRunner:
    """A runner on one thread."""
    return ModelRunner(checkpoint.config, load_weights(checkpoint, dtype), dtype, CpuKernels(1))


def logits_of(checkpoint: Checkpoint, token_ids: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits [tokens, vocab] of one sequence, computed in one go."""
    count = len(token_ids)
    model = Llama(checkpoint.config, load_weights(checkpoint, dtype), CpuKernels(1))
    model.prepare(count)
    blocks = -(-count // 16)
    cache = KVCache(checkpoint.config, blocks, 16, dtype)
    positions = torch.arange(count)
    batch = Batch(
        token_ids=torch.tensor(token_ids),
        positions=positions,
        slots=positions.clone(),
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        kv_lengths=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32).unsqueeze(0),
        logit_tokens=positions.clone(),
    )
    with torch.inference_mode():
        return model.forward(batch, cache)
