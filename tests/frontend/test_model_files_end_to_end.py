"""What a model's files say, in a running engine: contexts beyond the default, ends, defaults, a first space."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model

from ringcast import LLM, SamplingParams
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import EngineStartFailed, ModelUnusable
from ringcast.frontend.model_source import resolve_model
from ringcast.frontend.tokenizer import Tokenizer

OWN = {"max_new_tokens": 7, "repetition_penalty": 1.3, "min_p": 0.1, "temperature": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Tokenizer) -> Path:
    """A tiny Llama of 128 positions whose rope can be stretched to twice as many."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, smollm2, {"eos_token_id": 0, **OWN})
    change(folder / "config.json", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), max_model_len=200) as llm:
        yield llm


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_stretched_context_is_used_to_its_end(llm: LLM) -> None:
    """B10: max_model_len above the model's positions, where its rope is made for it."""
    answer = llm.generate([[5] * 150], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0].outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (50, "length")


def test_a_context_beyond_the_stretched_one_is_refused(folder: Path) -> None:
    """B10"""
    with pytest.raises(EngineStartFailed, match=r"max_model_len is 257, but the context of .* is 256; use at most 256"):
        LLM(str(folder), max_model_len=257)
    assert EngineArgs(max_model_len=200).worker_config(folder).max_model_len == 200


def test_the_models_own_defaults_are_taken_where_a_caller_says_nothing(llm: LLM) -> None:
    """B6: all of them, and none where the caller gives parameters."""
    defaults = llm.get_default_sampling_params()
    assert defaults == SamplingParams(max_tokens=7, repetition_penalty=1.3, min_p=0.1, temperature=0.0)
    silent, said = (llm.generate("The sea", params)[0].outputs[0].token_ids for params in (None, defaults))
    assert silent == said
    assert len(silent) <= 7


def test_the_tokenizers_end_ends_an_answer_though_the_config_names_another(llm: LLM) -> None:
    """B6, C15: <|im_end|> of tokenizer_config.json, 0 of generation_config.json."""
    for end in (0, 2):
        params = SamplingParams(max_tokens=9, allowed_token_ids=[end])
        answer = llm.generate("The sea", params)[0].outputs[0]
        assert (answer.finish_reason, answer.stop_reason, answer.token_ids) == ("stop", None, [end])


def test_bad_files_are_reported_when_the_engine_starts(folder: Path, tmp_path: Path, smollm2: Tokenizer) -> None:
    """C21, C20: by the file's name, before any request."""
    write_tiny_model(tmp_path / "bad", smollm2, {"temperature": "hot"})
    with pytest.raises(ModelUnusable, match=r"generation_config\.json: temperature is 'hot': .*correct the file"):
        LLM(str(tmp_path / "bad"))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelUnusable, match=r"it holds a PEFT adapter \(adapter_config\.json\)"):
        resolve_model(str(tmp_path / "adapter"))
