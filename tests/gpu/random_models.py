"""Small random models of every family, made by transformers; as HF folders, as GGUF files, as a runner or logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from ringcast.gpu.model import MODELS
from ringcast.gpu.runner import ModelRunner

# Three layers whose sizes are no powers of two.
SIZES: dict[str, Any] = {
    "vocab_size": 203, "hidden_size": 72, "intermediate_size": 100, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "eos_token_id": [2, 7],
    "bos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
# What each family can do beyond Llama. Windows are shorter than the tests' sequences, and no multiples of 16. Heads are
# untied: a random Gemma with a tied one repeats its last token.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_theta": 5000.0}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 21}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma2": ("Gemma2", {
        "sliding_window": 22, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
    }),
    "gemma3": ("Gemma3", {
        "sliding_window": 17, "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }),
    "phi3": ("Phi3", {"hidden_size": 96, "sliding_window": 40}),
}  # fmt: skip


def random_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A model of `FAMILIES`; its weights are so large that every part matters, norms and biases included."""
    import transformers

    name, own = FAMILIES[family]
    values = {**SIZES, "initializer_range": 0.2, "tie_word_embeddings": False, **own, **changes}
    if name == "Phi3":  # it has no key for the size of a head
        del values["head_dim"]
    torch.manual_seed(seed)
    config_class = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")
    # Of the attentions that transformers has only this one knows soft-caps.
    config = config_class(**values, attn_implementation="eager")
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn_like(parameter)
            assert parameter.std() > 0.1, parameter_name
    return model


def random_llama(tie: bool, seed: int = 0) -> Any:
    """The Llama of `FAMILIES`."""
    return random_model("llama", seed, tie_word_embeddings=tie)


def hf_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """What transformers computes: [tokens, vocab] in float32, without a cache."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()
    return logits


def save_gguf(model: Any, path: Path, quantisation: Callable[[str], str] = lambda name: "F32") -> None:
    """Write ``model`` as llama.cpp's converter does: its names, its order of query and key rows, its norms.

    ``quantisation`` gives the type of a matrix by its HF name; vectors stay in float32.
    """
    config = model.config
    architecture = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list([f"token {index}" for index in range(config.vocab_size)])
    writer.add_eos_token_id(2)
    _add_rope(writer, config, head_dim)
    if architecture.startswith(("gemma", "phi3")) and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
        if architecture == "gemma3":
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = _interleaved(array, heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        base, _, kind = name.rpartition(".")
        tensor_type = gguf.GGMLQuantizationType[quantisation(name) if array.ndim == 2 else "F32"]
        packed = gguf.quants.quantize(np.ascontiguousarray(array), tensor_type)
        writer.add_tensor(f"{names.get_name(base)}.{kind}", packed, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_rope(writer: Any, config: Any, head_dim: int) -> None:
    """As the converter does; llama3 becomes a tensor of divisors, longrope two of them."""
    rope = config.rope_parameters
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        plain = rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
        wavelengths, length = 2 * math.pi / plain, rope["original_max_position_embeddings"]
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        smooth = np.clip((length / wavelengths - low) / (high - low), 0, 1)
        writer.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / factor + smooth)).astype(np.float32))
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        growth = math.log(config.max_position_embeddings / original) / math.log(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + growth))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
        writer.add_rope_dimension_count(2 * len(rope["long_factor"]))


def _interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def runner_of(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> ModelRunner:
    """A runner on one thread."""
    return ModelRunner(checkpoint.config, load_weights(checkpoint, dtype), dtype, CpuKernels(1))


def logits_of(
    checkpoint: Checkpoint,
    token_ids: Sequence[int],
    dtype: torch.dtype = torch.float32,
    chunk: int | None = None,
    context: int | None = None,
    keep_blocks: bool = False,
    level: str | None = None,
) -> torch.Tensor:
    """Logits [tokens, vocab] of one sequence, computed in one go or in chunks, over scattered blocks.

    ``context`` is what the model is prepared for; None: the length of the sequence.
    """
    count = len(token_ids)
    weights = load_weights(checkpoint, dtype, keep_blocks)
    model = MODELS[checkpoint.config.architecture](checkpoint.config, weights, CpuKernels(1, level))
    model.prepare(context or count)
    num_blocks = -(-count // 16)
    cache = KVCache(checkpoint.config, num_blocks + 5, 16, dtype)
    for layer in cache.layers:
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    table = torch.randperm(num_blocks + 5, generator=torch.Generator().manual_seed(1))[:num_blocks]
    positions = torch.arange(count)
    slots = table[positions // 16] * 16 + positions % 16
    logits = []
    for start in range(0, count, chunk or count):
        stop = min(start + (chunk or count), count)
        batch = Batch(
            token_ids=torch.tensor(token_ids[start:stop]),
            positions=positions[start:stop].clone(),
            slots=slots[start:stop].clone(),
            query_starts=torch.tensor([0, stop - start], dtype=torch.int32),
            kv_lengths=torch.tensor([stop], dtype=torch.int32),
            block_tables=table.to(torch.int32).unsqueeze(0),
            logit_tokens=torch.arange(stop - start),
        )
        with torch.inference_mode():
            logits.append(model.logits(model.forward(batch, cache)))
    return torch.cat(logits)
