"""The worker: checkpoints, models, kernels, sampling, and the actor that runs them on one device.

These names need no torch; the modules behind `Worker.on_start` do (runner, loader, kernels, layers, model).
"""

from .cache import cache_folder
from .checkpoint import Checkpoint
from .errors import (
    GpuError,
    KVCacheMemoryError,
    ModelFileError,
    PlanError,
    UnsupportedModelError,
    WeightCacheError,
    WorkerConfigError,
)
from .gguf_file import GGUFFile
from .model_config import SUPPORTED_ARCHITECTURES, ModelConfig
from .worker import Worker
from .worker_config import WorkerConfig

__all__ = [
    "SUPPORTED_ARCHITECTURES",
    "Checkpoint",
    "GGUFFile",
    "GpuError",
    "KVCacheMemoryError",
    "ModelConfig",
    "ModelFileError",
    "PlanError",
    "UnsupportedModelError",
    "WeightCacheError",
    "Worker",
    "WorkerConfig",
    "WorkerConfigError",
    "cache_folder",
]
