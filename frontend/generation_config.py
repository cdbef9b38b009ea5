"""A model's own defaults for sampling, and the ids that end its answers: all of its files count, and are checked here.

Made by the tokenizer's loader, from a Hugging Face folder or a GGUF's metadata. A value that cannot be used is reported
with its file and field when the model is loaded, never as the fault of a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import InvalidRequest, ModelUnusable
from .sampling_params import SamplingParams

# Key of generation_config.json -> field of `SamplingParams`, as in vLLM.
_FOLDER_KEYS = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens",
}  # fmt: skip
_DRAWING = ("temperature", "top_k", "top_p", "min_p")  # without a meaning where do_sample is false
# Those of llama.cpp.
_GGUF_KEYS = {
    "general.sampling.temp": "temperature", "general.sampling.top_k": "top_k", "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p", "general.sampling.penalty_repeat": "repetition_penalty",
}  # fmt: skip
_GGUF_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """``eos_token_ids`` end an answer. ``defaults`` are for requests that do not say otherwise.

    The keys of ``defaults`` are fields of `SamplingParams`; those on which the model has no opinion are missing.
    """

    eos_token_ids: tuple[int, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def sampling_defaults(self) -> dict[str, Any]:
        """A copy of ``defaults``."""
        return dict(self.defaults)


def folder_generation_config(folder: Path, vocab_size: int, end_tokens: Iterable[int] = ()) -> GenerationConfig:
    """From a Hugging Face folder: ``generation_config.json``, ``config.json``, and what the tokenizer calls ends.

    Ids must be below ``vocab_size``, unless ``config.json`` names another one; ``end_tokens`` that are not below it can
    never be drawn. ``do_sample: false`` means greedy.
    """
    own_path, config_path = folder / "generation_config.json", folder / "config.json"
    own, config = read_json(own_path), read_json(config_path)
    size = config.get("vocab_size")
    limit = size if type(size) is int and size > 0 else vocab_size
    named = [_end_ids(path, "eos_token_id", values, limit) for path, values in ((own_path, own), (config_path, config))]
    ids = [*named[0], *named[1], *(token_id for token_id in end_tokens if token_id < limit)]
    samples = own.get("do_sample")
    if not isinstance(samples, bool | None):
        raise ModelUnusable(
            f"{own_path}: do_sample is {samples!r}: it must be true or false; correct the file, or remove the field "
            "from it"
        )
    is_greedy = samples is False
    keys = {key: name for key, name in _FOLDER_KEYS.items() if not (is_greedy and key in _DRAWING)}
    defaults = _defaults(own_path, own, keys)
    return GenerationConfig(tuple(dict.fromkeys(ids)), {"temperature": 0.0, **defaults} if is_greedy else defaults)


def gguf_generation_config(
    path: Path, metadata: Mapping[str, Any], vocab_size: int, end_tokens: Iterable[int] = ()
) -> GenerationConfig:
    """From a GGUF's metadata: its end-of-sequence, end-of-turn and end-of-message ids, and ``end_tokens``."""
    named = [token_id for key in _GGUF_END_KEYS for token_id in _end_ids(path, key, metadata, vocab_size)]
    return GenerationConfig(tuple(dict.fromkeys([*named, *end_tokens])), _defaults(path, metadata, _GGUF_KEYS))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file. `ModelUnusable` names a broken one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnusable(f"{path} cannot be read as JSON: {error}; get the file again") from error
    if not isinstance(value, dict):
        raise ModelUnusable(f"{path} holds no JSON object; get the file again")
    return value


def _end_ids(path: Path, key: str, values: Mapping[str, Any], vocab_size: int) -> list[int]:
    value = values.get(key)
    items = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and 0 <= item < vocab_size for item in items):
        raise ModelUnusable(
            f"{path}: {key} is {value!r}: it must be a token id below {vocab_size}, the size of the vocabulary, or a "
            "list of such ids; correct the file, or get it again"
        )
    return items


def _defaults(path: Path, values: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, name in keys.items():
        value = values.get(key)
        if value is None:
            continue
        try:
            SamplingParams(**{name: value})
        except InvalidRequest as error:
            reason = str(error).replace(name, key)
            raise ModelUnusable(f"{path}: {reason}; correct the file, or remove the field from it") from error
        found[name] = value
    return found
