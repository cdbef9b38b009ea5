"""For programs that run on a test build of the native modules: `native_builds` says where it is, in the environment."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

VARIABLE: Final = "RINGCAST_TEST_NATIVE"  # a folder: <layer>/_native, of channels at least


class TestBuild:
    """Finds ``ringcast.<layer>._native`` in the build, where it has that layer."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in ("ringcast.channels._native", "ringcast.actors._native"):
            return None
        file = Path(os.environ[VARIABLE]) / name.split(".")[1] / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        return importlib.util.spec_from_file_location(name, file) if file.exists() else None


def install() -> None:
    """Before anything of ringcast is imported."""
    sys.meta_path.insert(0, TestBuild)  # type: ignore[arg-type]
