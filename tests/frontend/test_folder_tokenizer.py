"""Folders in Hugging Face format give transformers' ids, roles and texts, whatever files say which tokens there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from tokenizers_made_here import byte_level, llama_2

from ringcast.frontend.errors import InvalidRequest, ModelUnusable
from ringcast.frontend.input_processor import EncodedPrompt, InputProcessor
from ringcast.frontend.model_source import ModelSource
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.tokenizer import Tokenizer, load_tokenizer
from ringcast.scheduler.messages import EngineInfo

TEXT = "a <s> b </s>c <sep>d <x> e <mask> f<eot> <extra>g"
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
_PLAIN = {"normalized": False, "single_word": False}
ADDED = {
    "96": {"content": "<s>", "lstrip": False, "rstrip": False, "special": True, **_PLAIN},
    "97": {"content": "<x>", "lstrip": True, "rstrip": True, "special": False, **_PLAIN},
}
ENDING = {"content": "</s>", "lstrip": True, "rstrip": False, **_PLAIN}
TYPED = {"__type": "AddedToken", "content": "<s>", "lstrip": True, "rstrip": True, "normalized": False}


def write(folder: Path, backend: Backend, **files: Any) -> None:
    backend.save(str(folder / "tokenizer.json"))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 400}
    for name, content in {"config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def ours(folder: Path) -> Tokenizer:
    return load_tokenizer(ModelSource("a folder", folder, "hf"))


def assert_equal_to_transformers(folder: Path, text: str) -> None:
    from transformers import AutoTokenizer

    theirs, tokenizer = AutoTokenizer.from_pretrained(folder), ours(folder)
    for add_special_tokens in (True, False):
        ids = theirs.encode(text, add_special_tokens=add_special_tokens)
        assert tokenizer.encode(text, add_special_tokens=add_special_tokens) == ids
    assert tokenizer.special_tokens == {
        name: token for name, token in theirs.special_tokens_map.items() if isinstance(token, str)
    }
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config": GENERIC},
        {"special_tokens_map": {"bos_token": "<s>", "eos_token": ENDING, "sep_token": "<sep>"}},
        {"tokenizer_config": {**GENERIC, "bos_token": "</s>"}, "special_tokens_map": {"bos_token": "<s>"}},
        {"tokenizer_config": {**GENERIC, "sep_token": "<sep>", "mask_token": "<mask>", "bos_token": "<s>"}},
        {"tokenizer_config": {**GENERIC, "added_tokens_decoder": ADDED, "bos_token": "<s>"}},
        {"tokenizer_config": {"added_tokens_decoder": ADDED}, "special_tokens_map": {"eos_token": "</s>"}},
        {"tokenizer_config": {**GENERIC, "bos_token": "<s>"}, "added_tokens": {"<x>": 96, "<s>": 97}},
        {"tokenizer_config": {**GENERIC, "additional_special_tokens": ["<extra>", "<x>"], "bos_token": "<s>"}},
        {"tokenizer_config": {**GENERIC, "extra_special_tokens": {"eot_token": "<eot>"}, "x_token": "<x>"}},
        {"tokenizer_config": {**GENERIC, "bos_token": TYPED}},
        {"tokenizer_config": {**GENERIC, "bos_token": "<s>", "split_special_tokens": True}},
        {"tokenizer_config": {**GENERIC, "bos_token": "a", "eos_token": None}},
        {"tokenizer_config": {**GENERIC, "bos_token": "<s>", "add_bos_token": True}},
        {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}},
    ],
)
@pytest.mark.parametrize("added", [(), ("<s>", "<x>")], ids=["bare", "with tokens"])
def test_every_file_that_names_tokens_counts(tmp_path: Path, files: dict[str, Any], added: tuple[str, ...]) -> None:
    """C23: special_tokens_map.json, added_tokens.json, and tokenizer_config.json with all kinds of roles."""
    write(tmp_path, byte_level(added), **files)
    assert_equal_to_transformers(tmp_path, TEXT)


@pytest.mark.parametrize("mark", ["normalizer", "first", "always"])
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"tokenizer_class": "LlamaTokenizer"}, {"tokenizer_class": "LlamaTokenizer", "legacy": True},
        {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": False},
    ],
)  # fmt: skip
def test_the_llama_class_changes_the_files_rules(tmp_path: Path, mark: str, settings: dict[str, Any]) -> None:
    """C23: whether a word behind a special token begins with a space."""
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write(tmp_path, llama_2(mark), tokenizer_config={**settings, **roles})
    assert_equal_to_transformers(tmp_path, "Hello world</s>Hello<s> world  x\nHello é")


def test_broken_token_files_are_named(tmp_path: Path) -> None:
    """C23, C21"""
    for settings in ({"added_tokens_decoder": [1]}, {"added_tokens_decoder": {"x": "<x>"}}, {"bos_token": 5}):
        write(tmp_path, byte_level(), tokenizer_config=settings)
        with pytest.raises(ModelUnusable, match=f"{tmp_path}: .*get the file again"):
            ours(tmp_path)
    write(tmp_path, byte_level(), tokenizer_config={}, special_tokens_map=[])
    with pytest.raises(ModelUnusable, match=r"special_tokens_map\.json holds no JSON object"):
        ours(tmp_path)


def checked(tokenizer: Tokenizer, prompt: EncodedPrompt, keep: int) -> list[int]:
    info = EngineInfo(
        client=0, max_model_len=64, vocab_size=400, num_blocks=9, block_size=16, max_num_seqs=4,
        max_num_batched_tokens=64,
    )  # fmt: skip
    params = SamplingParams(truncate_prompt_tokens=keep, max_tokens=1)
    return InputProcessor(tokenizer).check(prompt, params, info).token_ids


@pytest.mark.parametrize("with_end", [False, True])
def test_truncation_keeps_the_special_tokens_around_a_text(tmp_path: Path, with_end: bool) -> None:
    """B5: as transformers with truncation on the left."""
    from transformers import AutoTokenizer

    backend = byte_level(["<s>", "</s>"])
    begin, end = (backend.token_to_id(token) for token in ("<s>", "</s>"))
    single = "<s> $A </s>" if with_end else "<s> $A"
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=f"{single} $B", special_tokens=[("<s>", begin), ("</s>", end)]
    )
    write(tmp_path, backend, tokenizer_config=GENERIC)
    tokenizer, theirs = ours(tmp_path), AutoTokenizer.from_pretrained(tmp_path, truncation_side="left")
    processor = InputProcessor(tokenizer)
    prompt = processor.encode("hello<s>world")
    least = 2 if with_end else 1
    for keep in range(least, 16):
        expected = theirs.encode("hello<s>world", truncation=True, max_length=keep)
        assert checked(tokenizer, prompt, keep) == expected, keep
        assert expected[0] == begin
    if with_end:
        with pytest.raises(InvalidRequest, match="is 1, but the model puts 2 special tokens"):
            checked(tokenizer, prompt, 1)
    bare = processor.encode("hello world", add_special_tokens=False)
    assert checked(tokenizer, bare, 3) == bare.token_ids[-3:]
    assert checked(tokenizer, processor.encode([begin, 3, 4, 5]), 2) == [4, 5]
