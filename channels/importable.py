"""Whether a class can be found by its name in another process of the same program, and finding it there.

Used for classes of messages and of actors. What cannot be found by name travels by value, see `by_value`.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import lru_cache


def name_of(cls: type) -> str:
    """``module:qualname``, the name under which `find` looks for a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def is_importable(cls: type) -> bool:
    """Whether another process that imports the class's module finds this class there.

    False for classes of ``__main__``, of notebooks and of functions, and for those of a module that no finder finds
    by its name, such as one that was loaded from a path.
    """
    module = sys.modules.get(cls.__module__)
    return is_importable_module(cls.__module__) and look_up(module, cls.__qualname__) is cls


def is_importable_module(name: str) -> bool:
    """The same for a module of this process, by name."""
    module = sys.modules.get(name)
    return module is not None and name != "__main__" and _can_be_found(name, id(module))


def find(name: str) -> object:
    """What `name_of` named, from its module, which is imported. `ImportError` if there is none."""
    module, _, qualname = name.partition(":")
    found = look_up(importlib.import_module(module), qualname)
    if found is None:
        raise ImportError(f"module {module!r} has no class {qualname!r}: do both processes run the same code?")
    return found


def look_up(module: object, qualname: str) -> object:
    """An attribute of an attribute of a module; None if one of them is missing."""
    found = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


@lru_cache(maxsize=1024)
def _can_be_found(name: str, module_id: int) -> bool:
    """Whether the finders find the module that this process has under that name (``module_id``: for the cache)."""
    module = sys.modules[name]
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is None or not is_importable_module(parent):
            return False
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        found = find_spec(name, path, None) if find_spec is not None else None
        if found is not None:
            return _is_same(found.origin, spec.origin)
    return False


def _is_same(one: str | None, other: str | None) -> bool:
    """Whether two origins are one: files by their identity, built-in modules and namespaces by their words."""
    if one == other:
        return True
    try:
        return one is not None and other is not None and os.path.samefile(one, other)
    except OSError:
        return False
