"""What lets users reach into a worker: methods of a class of their own added to it, and calls by name or by function.

The worker uses it for ``worker_extension_cls`` and for the handlers behind ``collective_rpc``. Imports no torch.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import GpuError, WorkerConfigError


def extend(worker: object, dotted_name: str) -> None:
    """Make ``worker`` an instance of the class ``dotted_name`` ("package.module.Class") too, without calling its init.

    `WorkerConfigError` if there is no such class, or if it would hide something of the worker's.
    """
    extension = _class_of(dotted_name)
    base = type(worker)
    own = [name for name in dir(extension) if not (name.startswith("__") and name.endswith("__"))]
    hidden = sorted(name for name in own if hasattr(worker, name))
    if hidden:
        raise _wrong(dotted_name, f"{', '.join(hidden)} would hide what the worker has; rename")
    try:
        worker.__class__ = types.new_class(f"{base.__name__}With{extension.__name__}", (base, extension))
    except TypeError as error:
        raise _wrong(dotted_name, f"it cannot be added to {base.__name__} ({error}); use a plain class") from error


def call_method(worker: object, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``worker.method(*args, **kwargs)``. `GpuError` if there is no public method of that name."""
    function = None if method.startswith("_") else getattr(worker, method, None)
    if not callable(function):
        raise GpuError(
            f"the worker has no method {method!r}: name a public method of {type(worker).__name__}, or add one by "
            "worker_extension_cls"
        )
    return function(*args, **kwargs)


def call_function(worker: object, pickled: bytes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``function(worker, *args, **kwargs)``, where ``pickled`` is the function by cloudpickle.

    It comes over the rings of one's own processes only: nothing from a network may be handed to it.
    """
    import cloudpickle

    function: Callable[..., Any] = cloudpickle.loads(pickled)
    if not callable(function):
        raise GpuError(f"a function was due, not {function!r}: pickle what the workers shall call")
    return function(worker, *args, **kwargs)


def _class_of(dotted_name: str) -> type:
    module_name, _, class_name = dotted_name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _wrong(dotted_name, f"it cannot be imported ({error}); give package.module.Class") from error
    if not isinstance(found, type):
        raise _wrong(dotted_name, "it is no class; give package.module.Class")
    return found


def _wrong(dotted_name: str, remedy: str) -> WorkerConfigError:
    return WorkerConfigError(f"worker_extension_cls is {dotted_name!r}: {remedy}")
