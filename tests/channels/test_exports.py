"""The public names of the layer, and what importing it must not bring along."""

from __future__ import annotations

import subprocess
import sys

import ringcast.channels as channels


def test_exported_names_are_complete_and_exist():
    assert sorted(channels.__all__) == sorted(set(channels.__all__))
    assert all(hasattr(channels, name) for name in channels.__all__)
    public = {n for n, v in vars(channels).items() if not n.startswith("_") and not hasattr(v, "__path__")}
    modules = {n for n in public if type(vars(channels)[n]).__name__ == "module"}
    assert public - modules - {"TYPE_CHECKING"} == set(channels.__all__)


def test_import_brings_neither_torch_nor_numpy_nor_asyncio():
    code = "import sys, ringcast.channels; print({'torch', 'numpy', 'asyncio', 'multiprocessing'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_every_native_method_has_a_docstring():
    for cls in (channels.Board, channels.Doorbell, channels.RingWriter, channels.RingReader):
        for name in dir(cls):
            if not name.startswith("_"):
                assert getattr(cls, name).__doc__, f"{cls.__name__}.{name}"
