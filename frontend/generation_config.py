"""A model's own sampling defaults and end-of-sequence ids: `generation_config.json`, or what a GGUF says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelUnusable


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Defaults for requests that do not say otherwise; None where the model has no opinion."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    def sampling_defaults(self) -> dict[str, float | int]:
        """The fields of `SamplingParams` that the model has an opinion on."""
        found = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in found.items() if value is not None}


def folder_generation_config(folder: Path) -> GenerationConfig:
    """From a Hugging Face folder. The ids of `config.json` count where `generation_config.json` names none.

    ``do_sample: false`` means greedy, so temperature 0.
    """
    own = read_json(folder / "generation_config.json")
    eos = _ids(own.get("eos_token_id"), folder) or _ids(read_json(folder / "config.json").get("eos_token_id"), folder)
    if own.get("do_sample") is False:
        return GenerationConfig(eos, temperature=0.0)
    return GenerationConfig(eos, own.get("temperature"), own.get("top_p"), own.get("top_k"))


def gguf_generation_config(metadata: Mapping[str, Any]) -> GenerationConfig:
    """From a GGUF's metadata: its end-of-sequence, end-of-turn and end-of-message ids."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return GenerationConfig(tuple(dict.fromkeys(int(item) for item in ids if item is not None)))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file. `ModelUnusable` names a broken one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnusable(f"{path} holds no JSON object")
    return value


def _ids(value: object, folder: Path) -> tuple[int, ...]:
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise ModelUnusable(f"eos_token_id in {folder} is {value!r}: it must be an id or a list of ids")
    return tuple(items)
