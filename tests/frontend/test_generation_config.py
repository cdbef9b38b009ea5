"""Sampling defaults and end-of-text ids: every file of a model counts, a request overrides, bad files are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringcast.frontend.chat_template import ChatTemplate
from ringcast.frontend.end_tokens import template_end
from ringcast.frontend.errors import ModelUnusable
from ringcast.frontend.model_source import ModelSource, resolve_model
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.server.protocol import ChatCompletionRequest, CompletionRequest
from ringcast.frontend.tokenizer import Tokenizer, gguf_metadata, load_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<file_sep>{% endif %}{% endfor %}"
IDS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<repo_name>": 3, "<file_sep>": 5}
ALL_KEYS = {
    "temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.3, "max_new_tokens": 77,
}  # fmt: skip


class Folder:
    """A model's folder with the built-in model's tokenizer.json, and what a test writes into the other files."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self.path = path
        tokenizer.backend.save(str(path / "tokenizer.json"))

    def load(self, **files: Any) -> Tokenizer:
        for name in ("generation_config", "config", "tokenizer_config"):
            (self.path / f"{name}.json").unlink(missing_ok=True)
        for name, content in files.items():
            (self.path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return load_tokenizer(ModelSource("a folder", self.path, "hf"))


@pytest.fixture
def folder(tmp_path: Path, smollm2: Tokenizer) -> Folder:
    return Folder(tmp_path, smollm2)


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """Of the built-in model, as a dict to be changed."""
    return dict(gguf_metadata(resolve_model("smollm2").path))


def test_the_ids_of_every_file_end_an_answer(folder: Folder) -> None:
    """B6, C15: generation_config.json, config.json, the tokenizer's end token, the end that the template writes."""
    config = {"vocab_size": 49152}
    assert folder.load(config={"eos_token_id": 0, **config}).eos_token_ids == (0,)
    loaded = folder.load(generation_config={"eos_token_id": [3, 7]}, config={"eos_token_id": 0})
    assert loaded.eos_token_ids == (3, 7, 0)
    assert folder.load(tokenizer_config={"eos_token": "<|im_end|>"}).eos_token_ids == (2,)
    loaded = folder.load(
        generation_config={"eos_token_id": 0},
        config={"eos_token_id": [0, 4], **config},
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}, "chat_template": TURNS},
    )
    assert loaded.eos_token_ids == (0, 4, 2, IDS["<file_sep>"])
    assert folder.load(config=config).eos_token_ids == ()


def test_an_end_that_the_model_cannot_draw_does_not_count(folder: Folder) -> None:
    """B6: a tokenizer may have more tokens than the model has rows."""
    loaded = folder.load(config={"vocab_size": 2, "eos_token_id": 1}, tokenizer_config={"eos_token": "<|im_end|>"})
    assert loaded.eos_token_ids == (1,)


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (CHATML, "<|im_end|>"),
        (TURNS, "<file_sep>"),
        ("{% for m in messages %}[{{ m.content }}]  </s>{% endfor %}", None),  # a bracket comes first
        ("{% for m in messages %}{{ m.content | trim }} </s>{% endfor %}", "</s>"),
        ("{% for m in messages %}<s>{{ m.content }}\n{% endfor %}", None),
        ("{{ messages[0].content }}<s>", None),  # no answer in it
        ("{% for m in messages %}{{ m.content }}<s><s2>{% endfor %}", "<s>"),
        ("{% for m in messages %}{{ m.content }}<s2><s>{% endfor %}", "<s2>"),
        ("{{ raise_exception('no') }}", None),
        ("{{ messages | broken", None),
    ],
)
def test_the_token_that_a_template_writes_behind_an_answer(source: str, end: str | None) -> None:
    """C15"""
    assert template_end(ChatTemplate(source, {}), ["<s>", "<s2>", "</s>", " ", *IDS]) == end


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, (2,)),
        ({"tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.eom_token_id": 6}, (2, 4, 6)),
        # The file names another end than its template writes.
        ({"tokenizer.ggml.eos_token_id": 0}, (0, 2)),
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": TURNS}, (0, 5, 2)),
        # llama.cpp's names, without a template.
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": None}, (0, 2)),
        ({"tokenizer.ggml.eos_token_id": None, "tokenizer.chat_template": None}, (2,)),
    ],
)
def test_the_ends_of_a_gguf(metadata: dict[str, Any], changes: dict[str, Any], ends: tuple[int, ...]) -> None:
    """C15"""
    assert load_tokenizer(resolve_model("smollm2"), {**metadata, **changes}).eos_token_ids == ends


def test_a_gguf_without_any_named_end_takes_the_end_of_text(metadata: dict[str, Any]) -> None:
    """C15: with no eos id and no end of a turn in its vocabulary an answer would never end."""
    tokens = ["<|stop|>" if token == "<|im_end|>" else token for token in metadata["tokenizer.ggml.tokens"]]
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": None, "tokenizer.chat_template": None}
    loaded = load_tokenizer(resolve_model("smollm2"), {**metadata, **changes})
    assert loaded.eos_token_ids == (IDS["<|endoftext|>"],)


def test_all_of_vllms_keys_are_defaults(folder: Folder) -> None:
    """B6"""
    defaults = folder.load(generation_config=ALL_KEYS).generation.sampling_defaults()
    expected = {("max_tokens" if key == "max_new_tokens" else key): value for key, value in ALL_KEYS.items()}
    assert defaults == expected
    nulls = folder.load(generation_config=dict.fromkeys(ALL_KEYS))
    assert nulls.generation.sampling_defaults() == {}
    greedy = folder.load(generation_config={**ALL_KEYS, "do_sample": False}).generation.sampling_defaults()
    assert greedy == {"temperature": 0.0, "repetition_penalty": 1.3, "max_tokens": 77}


def test_a_gguf_may_carry_defaults_too(metadata: dict[str, Any]) -> None:
    """B6: under llama.cpp's keys."""
    own = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7, "general.sampling.penalty_repeat": 1.25}
    loaded = load_tokenizer(resolve_model("smollm2"), {**metadata, **own})
    assert loaded.generation.sampling_defaults() == {"temperature": 0.5, "top_k": 7, "repetition_penalty": 1.25}
    with pytest.raises(ModelUnusable, match=r"\.gguf: general\.sampling\.temp is -1: .*remove the field"):
        load_tokenizer(resolve_model("smollm2"), {**metadata, "general.sampling.temp": -1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"), ("temperature", -1), ("top_k", 1.5), ("top_p", 0), ("min_p", 2),
        ("repetition_penalty", [1.1]), ("repetition_penalty", 0), ("max_new_tokens", 0), ("max_new_tokens", "20"),
        ("eos_token_id", 49152), ("eos_token_id", [2, -1]), ("eos_token_id", "</s>"), ("eos_token_id", True),
        ("do_sample", "no"), ("do_sample", 0), ("eos_token_id", [[2]]), ("eos_token_id", 2.0),
    ],
)  # fmt: skip
def test_a_bad_value_names_file_field_value_and_remedy(folder: Folder, field: str, value: object) -> None:
    """B6, C21: when the model is loaded, and not when somebody asks."""
    with pytest.raises(ModelUnusable) as caught:
        folder.load(generation_config={field: value}, config={"vocab_size": 49152})
    text = str(caught.value)
    assert text.startswith(f"{folder.path / 'generation_config.json'}: {field} is {value!r}: it must be"), text
    assert "correct the file" in text
    assert "max_tokens" not in text


def test_bad_end_ids_of_the_other_files(folder: Folder, metadata: dict[str, Any]) -> None:
    """C21"""
    with pytest.raises(ModelUnusable, match=r"config\.json: eos_token_id is 100: .*below 100, the size of the vocab"):
        folder.load(config={"eos_token_id": 100, "vocab_size": 100})
    with pytest.raises(ModelUnusable, match=r"generation_config\.json cannot be read as JSON: .*get the file again"):
        folder.load(generation_config="{")
    for key in ("eos", "eot", "eom"):
        name = f"tokenizer.ggml.{key}_token_id"
        with pytest.raises(ModelUnusable, match=rf"\.gguf: {name} is 49152: .*below 49152"):
            load_tokenizer(resolve_model("smollm2"), {**metadata, name: 49152})


def test_a_request_overrides_the_models_defaults() -> None:
    """B6: every key, in both APIs; ``max_tokens`` beside OpenAI's own default of 16."""
    own = SamplingParams(temperature=0.6, top_k=40, min_p=0.1, repetition_penalty=1.3, max_tokens=77)
    said = {"temperature": 1.5, "top_k": 3, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 5}
    for kind, body in (
        (CompletionRequest, {"prompt": "x"}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": "x"}]}),
    ):
        params = kind.model_validate(body).sampling_params(own)
        assert {name: getattr(params, name) for name in said} == {name: getattr(own, name) for name in said}
        params = kind.model_validate({**body, **said}).sampling_params(own)
        assert {name: getattr(params, name) for name in said} == said
        silent = kind.model_validate(body).sampling_params(SamplingParams(max_tokens=None))
        assert silent.max_tokens == (16 if kind is CompletionRequest else None)
    long = CompletionRequest.model_validate({"prompt": "x", "min_tokens": 30}).sampling_params(own)
    assert (long.min_tokens, long.max_tokens) == (30, 77)
