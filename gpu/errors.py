"""Errors of the gpu layer. Each docstring says whose fault it is; each message ends with the remedy."""


class GpuError(Exception):
    """Base of everything that this layer raises on purpose."""


class ModelFileError(GpuError):
    """The file's fault: a model file is missing, damaged, or not what its name says."""


class UnsupportedModelError(GpuError):
    """Nobody's fault: the file is sound, but asks for something that is not implemented."""


class WorkerConfigError(GpuError, ValueError):
    """The user's fault: a setting of the worker is out of range. The message names field, value and remedy."""


class WeightCacheError(GpuError):
    """The machine's fault: the converted copy of the weights cannot be written. Loading goes on in memory."""


class CacheFolderError(GpuError):
    """The machine's state, or the user's choice: no folder can be had for ringcast's own files."""


class KVCacheMemoryError(GpuError):
    """The machine's fault: the blocks, requests or steps asked for do not fit into the memory that is available."""


class PlanError(GpuError):
    """The engine core's fault: a plan does not fit the rows that the worker holds. Nothing was computed."""
