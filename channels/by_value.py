"""Definitions of classes that cannot be imported by name, as bytes: through cloudpickle, which this module loads.

A class keeps its identity: however often its definition travels, each process has one class of it, and where it was
defined that is the class itself.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final

import cloudpickle

from .importable import is_importable_module, look_up

_DEFINITIONS_KEPT: Final = 256  # of those that came from others

_lock = RLock()  # cloudpickle's registry is one for the process
_dumped: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()
_loaded: dict[bytes, type[Any]] = {}
_complete: weakref.WeakSet[type] = weakref.WeakSet()  # classes that have their attributes here


def dump(cls: type) -> bytes:
    """The definition of a class, as it was when it was first asked for. ``TypeError`` if it does not travel."""
    with _lock:
        data = _dumped.get(cls)
        if data is None:
            try:
                data = _dumped[cls] = _dump(cls)
            except Exception as error:
                raise TypeError(
                    f"class {cls.__module__}:{cls.__qualname__} cannot be imported by another process, and its "
                    f"definition does not travel by value: {type(error).__name__}: {error}. Move it into a module"
                ) from error
    return data


def load(data: bytes) -> Any:
    """The class of a definition: this process's own, if it has it already. Raises what its code raises."""
    with _lock:
        cls = _loaded.get(data)
        if cls is None:
            cls = pickle.loads(data)
            if len(_loaded) >= _DEFINITIONS_KEPT:
                del _loaded[next(iter(_loaded))]
            _loaded[data] = cls
    return cls


def _dump(cls: type) -> bytes:
    file = io.BytesIO()
    with _by_value() as by_value:
        _Pickler(file, by_value).dump(cls)
    return file.getvalue()


@contextmanager
def _by_value() -> Iterator[dict[str, types.ModuleType]]:
    """The modules put into the dict are pickled by value meanwhile."""
    modules: dict[str, types.ModuleType] = {}
    try:
        yield modules
    finally:
        for module in modules.values():
            cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles by value what cannot be imported, and lets no definition change a class that is there already.

    The wrappers of `functools` that hold locks or caches are made anew around what they wrap.
    """

    def __init__(self, file: io.BytesIO, by_value: dict[str, types.ModuleType]) -> None:
        super().__init__(file)
        self._by_value = by_value

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)):
            self._look_at_module(obj.__module__ or "")
        if type(obj) in _REDUCERS:
            return _REDUCERS[type(obj)](obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            make, arguments, state, items, pairs, set_state = reduced
            _complete.add(obj)
            reduced = (make, arguments, (set_state, state), items, pairs, complete_class)
        return reduced

    def _look_at_module(self, name: str) -> None:
        """Have a module pickled by value that cannot be imported by its name."""
        module = sys.modules.get(name)
        if module is None or name == "__main__" or is_importable_module(name):
            return
        if name not in cloudpickle.list_registry_pickle_by_value():  # the program's own choices stay
            cloudpickle.register_pickle_by_value(module)
            self._by_value[name] = module


def make_cached_property(function: Any, name: str | None) -> functools.cached_property[Any]:
    """Called by pickle, as are the functions below."""
    made = functools.cached_property(function)
    made.attrname = name
    return made


def make_cached(function: Any, parameters: dict[str, Any], attributes: dict[str, Any]) -> Any:
    made = functools.lru_cache(**parameters)(function)
    made.__dict__.update(attributes)
    return made


def make_singledispatchmethod(function: Any, registry: dict[type, Any]) -> functools.singledispatchmethod[Any]:
    made = functools.singledispatchmethod(function)
    for cls, implementation in registry.items():
        made.dispatcher.register(cls, implementation)
    return made


def _of_cached_property(obj: functools.cached_property[Any]) -> tuple[Any, ...]:
    return make_cached_property, (obj.func, obj.attrname)


def _of_cached(obj: Any) -> Any:
    """A function of `functools.cache` or `lru_cache`; one that can be imported goes by its name."""
    name: str = getattr(obj, "__qualname__", "")
    if is_importable_module(obj.__module__) and look_up(sys.modules[obj.__module__], name) is obj:
        return name
    attributes = {name: value for name, value in vars(obj).items() if name != "__wrapped__"}
    return make_cached, (obj.__wrapped__, obj.cache_parameters(), attributes)


def _of_singledispatchmethod(obj: Any) -> tuple[Any, ...]:
    return make_singledispatchmethod, (obj.func, {c: f for c, f in obj.dispatcher.registry.items() if c is not object})


_REDUCERS: Final[dict[type, Any]] = {
    functools.cached_property: _of_cached_property,
    type(functools.lru_cache(len)): _of_cached,
    functools.singledispatchmethod: _of_singledispatchmethod,
}


def complete_class(cls: type, state: tuple[Any, Any]) -> type:
    """Give a class that was just made its attributes; one that has them is left as it is (called by pickle)."""
    set_state, attributes = state
    if cls not in _complete:
        set_state(cls, attributes)
        _complete.add(cls)
    return cls
