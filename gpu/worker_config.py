"""`WorkerConfig`: everything a worker is told when it starts. Validated once, here; travels as a message."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast.channels.codec import message

from .errors import WorkerConfigError

DTYPES = ("auto", "bfloat16", "float32")
LOAD_FORMATS = ("auto", "dummy")
QUANTIZATIONS = ("none", "gguf")


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
        if self.max_model_len is not None and self.max_model_len < 1:
            raise _wrong("max_model_len", self.max_model_len, "use at least 1 token, or None for the model's own")
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes < 1:
            raise _wrong("kv_cache_memory_bytes", self.kv_cache_memory_bytes, "use a positive number of bytes, or None")
        if self.memory_fraction is not None and not 0.0 < self.memory_fraction <= 1.0:
            raise _wrong("memory_fraction", self.memory_fraction, "use more than 0 and at most 1, or None")
        if self.num_threads < 0:
            raise _wrong("num_threads", self.num_threads, "use 0 for all processors, or a positive number")


def _wrong(field: str, value: object, remedy: str) -> WorkerConfigError:
    return WorkerConfigError(f"{field} is {value!r}: {remedy}")
