"""Tokens from GGUF metadata and from Hugging Face folders; chat templates; end-of-sequence ids."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringcast.frontend.chat_template import ChatTemplate
from ringcast.frontend.detokenizer import TextDecoder
from ringcast.frontend.errors import InvalidRequest, ModelUnusable
from ringcast.frontend.gguf_tokenizer import gguf_tokenizer
from ringcast.frontend.model_source import ModelSource, resolve_model
from ringcast.frontend.tokenizer import Tokenizer, gguf_metadata, load_tokenizer


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return dict(gguf_metadata(resolve_model("smollm2").path))


@pytest.fixture(scope="module")
def hf_folder(smollm2: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer as a Hugging Face folder would hold it."""
    folder = tmp_path_factory.mktemp("hf")
    smollm2.backend.save(str(folder / "tokenizer.json"))
    assert smollm2.chat_template is not None
    config = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "chat_template": smollm2.chat_template.source,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    return folder


def _ids(tokenizer: Tokenizer, record: dict[str, Any]) -> list[int]:
    if "prompt" in record:
        return tokenizer.encode(record["prompt"])
    return tokenizer.encode(tokenizer.render_chat(record["messages"]), add_special_tokens=False)


def test_gguf_tokens_are_those_of_the_reference(smollm2: Tokenizer, greedy_records: list[dict[str, Any]]) -> None:
    assert len(greedy_records) == 12
    for record in greedy_records:
        assert _ids(smollm2, record) == record["prompt_token_ids"], record["id"]
        assert smollm2.decode(record["token_ids"], skip_special_tokens=False) == record["text"], record["id"]


def test_a_folder_gives_the_same_tokens(hf_folder: Path, greedy_records: list[dict[str, Any]]) -> None:
    tokenizer = load_tokenizer(ModelSource("folder", hf_folder, "hf"))
    for record in greedy_records:
        assert _ids(tokenizer, record) == record["prompt_token_ids"], record["id"]


def test_gguf_end_ids(smollm2: Tokenizer) -> None:
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.vocab_size == 49152


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer model is 'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer 'tekken'"),
        ({"tokenizer.ggml.merges": None}, r"no usable tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.token_type": [1]}, "1 token types"),
        ({"tokenizer.ggml.merges": ["xx yy"]}, "merges do not fit"),
    ],
)
def test_unknown_or_damaged_gguf_tokenizers_are_refused_by_name(
    metadata: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelUnusable, match=message):
        gguf_tokenizer({**metadata, **change})


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'll pay 1234 €", ["I", "'ll", " pay", " 1234", " €"]),
        ("smollm", "I'll pay 1234 €", ["I", "'ll", " pay", " ", "1", "2", "3", "4", " €"]),
        ("llama-bpe", "I'LL pay 12345\n\n x", ["I", "'LL", " pay", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "I'LL pay 123\n\n x", ["I", "'LL", " pay", " ", "1", "2", "3", "\n\n", " x"]),
    ],
)
def test_pre_tokenizers_split_as_their_models_do(
    metadata: dict[str, Any], pre: str, text: str, words: list[str]
) -> None:
    backend = gguf_tokenizer({**metadata, "tokenizer.ggml.pre": pre})
    assert backend.pre_tokenizer is not None
    pieces = backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == words


def test_bos_is_added_where_the_model_wants_it(metadata: dict[str, Any]) -> None:
    backend = gguf_tokenizer({**metadata, "tokenizer.ggml.add_bos_token": True})
    assert backend.encode("a").ids == [1, *gguf_tokenizer(metadata).encode("a").ids]
    assert backend.encode("a", add_special_tokens=False).ids == gguf_tokenizer(metadata).encode("a").ids


def test_user_defined_tokens_of_a_gguf_are_whole_but_not_special(metadata: dict[str, Any]) -> None:
    """C, "held well": they are found in any text, and answers show them."""
    types = list(metadata["tokenizer.ggml.token_type"])
    name = metadata["tokenizer.ggml.tokens"][3]
    assert types[3] == 3  # a control token
    for kind, shown in ((4, f"a{name}b"), (3, "ab")):
        types[3] = kind
        tokenizer = load_tokenizer(resolve_model("smollm2"), {**metadata, "tokenizer.ggml.token_type": types})
        ids = tokenizer.encode(f"a{name}b")
        assert ids == [*tokenizer.encode("a"), 3, *tokenizer.encode("b")]
        assert tokenizer.decode(ids) == shown
        detokenizer = TextDecoder(tokenizer).start(skip_special_tokens=True)
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == shown


def test_the_template_writes_the_default_system_prompt(smollm2: Tokenizer) -> None:
    text = smollm2.render_chat([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_have_hugging_faces_helpers_and_whitespace_rules() -> None:
    source = (
        "{%- for message in messages %}\n"
        "    {%- if loop.index > 2 %}{% break %}{% endif %}\n"
        "    {% generation %}{{ message | tojson }}{% endgeneration %}\n"
        "{% endfor %}\n{{ bos_token }}{{ strftime_now('%Y') | length }}{{ flag }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    text = template.render([{"role": "ü", "content": "<b>", "x": None}] * 3, variables={"flag": 1})
    assert text == '{"role": "ü", "content": "<b>"}{"role": "ü", "content": "<b>"}<s>41'


@pytest.mark.parametrize("text", ["Well, ", "Well,\n\n", "Well", "", " Well Well", "CONTINUE_FINAL_MESSAGE_TAG Well"])
@pytest.mark.parametrize("content", ["message.content", "message.content | trim", "message.content.strip() + ' '"])
def test_the_last_message_is_left_open_as_by_transformers(content: str, text: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = "{% for message in messages %}<{{ message.role }}>{{ " + content + " }}</end>\n{% endfor %}"
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    ours = ChatTemplate(source, {}).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert ours.startswith("<user>Hi") and "<assistant>" in ours
    theirs, _ = render_jinja_template(
        [chat], chat_template=source, add_generation_prompt=False, continue_final_message=True
    )
    assert [ours] == theirs
    assert chat[-1]["content"] == text, "the caller's messages are as they were"


@pytest.mark.parametrize(
    ("source", "last", "adds", "said"),
    [
        ("{{ messages[0].content }}", {"content": "x"}, False, "changes the last message's text"),
        ("{{ messages[1].content | upper }}", {"content": "x"}, False, "changes the last message's text"),
        ("{{ messages[1].content[-27:] }}", {"content": "long"}, False, "changes the last message's text"),
        ("{{ messages }}", {"content": 5}, False, "content is a int: only a text"),
        ("{{ messages }}", {}, False, "content is a NoneType: only a text"),
        ("{{ messages }}", "x", False, "content is a NoneType: only a text"),
        ("{{ messages }}", {"content": "x"}, True, "exclude each other"),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(source: str, last: Any, adds: bool, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        ChatTemplate(source, {}).render(
            [{"content": "first"}, last], add_generation_prompt=adds, continue_final_message=True
        )
    assert caught.value.param == "continue_final_message"


def test_a_template_may_refuse_a_chat() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


def test_templates_run_in_a_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(InvalidRequest, match="unsafe"):
        template.render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("messages", [[], [5], [{"role": "user", "content": object()}]])
def test_messages_that_are_no_chat_are_refused(smollm2: Tokenizer, messages: list[Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        smollm2.render_chat(messages)
    assert caught.value.param == "messages"


def test_a_model_without_template_refuses_chat(metadata: dict[str, Any]) -> None:
    plain = {key: value for key, value in metadata.items() if key != "tokenizer.chat_template"}
    tokenizer = load_tokenizer(resolve_model("smollm2"), plain)
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_loading_imports_neither_transformers_nor_torch() -> None:
    code = (
        "import sys; from ringcast.frontend.tokenizer import load_tokenizer;"
        "from ringcast.frontend.model_source import resolve_model;"
        "t = load_tokenizer(resolve_model('smollm2')); t.encode('x');"
        "t.render_chat([{'role': 'user', 'content': 'x'}]);"
        "print([m for m in ('torch', 'transformers', 'numpy', 'fastapi', 'typer') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
