"""Shared by the frontend's tests: the real model's tokenizer, the reference records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringcast.frontend.detokenizer import TextDecoder
from ringcast.frontend.model_source import resolve_model
from ringcast.frontend.tokenizer import Tokenizer, load_tokenizer

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    """The built-in model's tokenizer, from its GGUF."""
    return load_tokenizer(resolve_model("smollm2"))


@pytest.fixture(scope="session")
def smollm2_decoder(smollm2: Tokenizer) -> TextDecoder:
    return TextDecoder(smollm2)


@pytest.fixture(scope="session")
def greedy_records() -> list[dict[str, Any]]:
    """HF transformers' greedy continuations of 12 prompts, in float32."""
    return json.loads((DATA / "smollm2_greedy.json").read_text())
