"""`WorkerConfig`: everything a worker is told when it starts. Validated once, here; travels as a message."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast.channels.codec import message

from .errors import WorkerConfigError

DTYPES = ("auto", "bfloat16", "float32")
LOAD_FORMATS = ("auto", "dummy")
QUANTIZATIONS = ("none", "gguf")
BLOCK_SIZE_UNIT = 16  # the attention kernel's vectors
_MAX_MODEL_LEN, _MAX_BYTES = 2**31 - 1, 2**60
_MAX_THREADS = 2**12  # more than any machine has processors, and no more than a process may start


@message(48)
@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of a worker. `WorkerConfigError` names the field, the value and the remedy."""

    model_path: str  # a folder with config.json and safetensors, or a .gguf file; never a name to look up
    dtype: str = (
        "auto"  # of weights, products and cache; "auto": bfloat16 where the processor multiplies it, else float32
    )
    max_model_len: int | None = None  # tokens of prompt and output; None: the model's context
    kv_cache_memory_bytes: int | None = None  # for the KV cache; None: by memory_fraction
    memory_fraction: float | None = None  # of the available memory; None: a quarter, at most 4 GiB
    num_threads: int = 0  # 0: all processors that this process may use
    load_format: str = "auto"  # "dummy": random weights, for trials of speed
    quantization: str = (
        "none"  # "gguf": blocks of Q4_0, Q4_1 and Q8_0 stay packed, products take bfloat16; "none": all become dtype
    )
    worker_extension_cls: str | None = None  # "package.module.Class", whose methods are added to the worker

    def __post_init__(self) -> None:
        if not isinstance(self.model_path, str) or not self.model_path:
            raise _wrong("model_path", self.model_path, "give a model's folder or a .gguf file")
        if self.dtype not in DTYPES:
            raise _wrong("dtype", self.dtype, f"use one of {', '.join(DTYPES)}")
        if self.load_format not in LOAD_FORMATS:
            raise _wrong("load_format", self.load_format, f"use one of {', '.join(LOAD_FORMATS)}")
        if self.quantization not in QUANTIZATIONS:
            raise _wrong("quantization", self.quantization, f"use one of {', '.join(QUANTIZATIONS)}")
        if self.quantization == "gguf" and self.dtype == "float32":
            raise _wrong(
                "dtype", self.dtype, "products with packed blocks take bfloat16: use auto, or quantization none"
            )
        if self.max_model_len is not None and not _is_whole(self.max_model_len, 1, _MAX_MODEL_LEN):
            remedy = f"use a whole number from 1 to {_MAX_MODEL_LEN} tokens, or None for the model's own"
            raise _wrong("max_model_len", self.max_model_len, remedy)
        if self.kv_cache_memory_bytes is not None and not _is_whole(self.kv_cache_memory_bytes, 1, _MAX_BYTES):
            remedy = f"use a whole number of bytes from 1 to {_MAX_BYTES}, or None"
            raise _wrong("kv_cache_memory_bytes", self.kv_cache_memory_bytes, remedy)
        if self.memory_fraction is not None and not _is_fraction(self.memory_fraction):
            raise _wrong("memory_fraction", self.memory_fraction, "use a number above 0 and at most 1, or None")
        if not _is_whole(self.num_threads, 0, _MAX_THREADS):
            raise _wrong("num_threads", self.num_threads, f"use 0 for all processors, or a number up to {_MAX_THREADS}")


def check_block_size(block_size: int) -> None:
    """Refuse what no model's cache can have, long before there is a worker. `WorkerConfigError`."""
    if block_size % BLOCK_SIZE_UNIT:
        raise _wrong("block_size", block_size, f"use a multiple of {BLOCK_SIZE_UNIT}")


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def _wrong(field: str, value: object, remedy: str) -> WorkerConfigError:
    return WorkerConfigError(f"{field} is {value!r}: {remedy}")
