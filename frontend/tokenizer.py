"""`Tokenizer`: text to token ids and back, the chat prompt, and what the model counts as an end.

Wraps the `tokenizers` library; made by `load_tokenizer` from a GGUF file or a folder in Hugging Face
format. The processor encodes with it, the detokenizer asks it for bytes. transformers is imported only for
a folder without `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chat_template import ChatTemplate
from .errors import InvalidRequest, ModelUnusable, TokenizerFailed
from .generation_config import (
    GenerationConfig,
    folder_generation_config,
    gguf_generation_config,
    read_json,
)
from .gguf_tokenizer import gguf_tokenizer

if TYPE_CHECKING:
    import tokenizers

    from .model_source import ModelSource

_MANY_IDS = 4096
_TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """One model's tokenizer. ``generation`` holds its end-of-sequence ids and sampling defaults.

    ``special_tokens`` are the texts of tokens with a role, by transformers' names, ``eos_token`` and so on.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        generation: GenerationConfig,
        chat_template: ChatTemplate | None,
        name: str = "the model",
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.generation = generation
        self.chat_template = chat_template
        self.name = name
        self.special_tokens = dict(special_tokens or {})
        backend.no_padding()
        backend.no_truncation()

    @property
    def vocab_size(self) -> int:
        """Ids from 0 to this, exclusive; a model may have more rows than its tokenizer has tokens."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n tokens has at most n times as many. Slow the first time."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer, unless the caller ignores them."""
        return self.generation.eos_token_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; with special tokens: those that the model puts around plain text.

        `InvalidRequest` if ``text`` has no UTF-8 form, `TokenizerFailed` if the tokenizer's code breaks on it.
        """
        (token_ids,) = self.encode_batch([text], add_special_tokens=add_special_tokens)
        return token_ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Like `encode`, for several texts in one call, during which other threads of Python run."""
        try:
            with _contained("text"):
                encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except TypeError as error:  # what tokenizers says of a str that it cannot read
            raise InvalidRequest("the text holds half of a surrogate pair: it is no Unicode text") from error
        return [list(encoding.ids) for encoding in encodings]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``; ids without a token are nothing."""
        ids = list(token_ids)
        with _contained("token ids"):
            if len(ids) > _MANY_IDS:  # a batch is decoded without the interpreter's lock
                return str(self.backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0])
            return str(self.backend.decode(ids, skip_special_tokens=skip_special_tokens))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a chat. Encode it without special tokens: the template writes them itself."""
        if self.chat_template is None:
            raise InvalidRequest(
                f"{self.name} has no chat template: use completions (`generate`) instead of chat", "messages"
            )
        return self.chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )


@contextmanager
def _contained(what: str) -> Iterator[None]:
    """A panic of the native code, which is a BaseException, leaves as an error of the request that met it."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise TokenizerFailed(
            f"the tokenizer failed on the {what} ({type(error).__name__}: {error}): "
            "a defect of the tokenizer, or of the model's tokenizer file; change the text, or report it"
        ) from error


def load_tokenizer(source: ModelSource, metadata: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a model's files. ``metadata`` are the GGUF's, where they have been read already."""
    if source.format == "hf":
        return folder_tokenizer(source.path, source.name)
    if metadata is None:
        metadata = gguf_metadata(source.path)
    backend = gguf_tokenizer(metadata)
    template = metadata.get("tokenizer.chat_template")
    tokens = metadata["tokenizer.ggml.tokens"]
    named: dict[str, str] = {}
    for key, name in zip(("bos", "eos", "unknown", "padding"), _TEMPLATE_TOKENS, strict=True):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            named[name] = tokens[token_id]
    return Tokenizer(
        backend,
        gguf_generation_config(metadata),
        ChatTemplate(template, named) if isinstance(template, str) else None,
        source.name,
        named,
    )


def gguf_metadata(path: Path) -> Mapping[str, Any]:
    """The key-value part of a GGUF file. `ModelUnusable` if the file is broken."""
    from ringcast.gpu.errors import ModelFileError
    from ringcast.gpu.gguf_shards import GGUFModel

    try:
        return GGUFModel(path).metadata
    except ModelFileError as error:
        raise ModelUnusable(str(error)) from error


def folder_tokenizer(folder: Path, name: str) -> Tokenizer:
    """From a folder in Hugging Face format: tokenizer.json, or whatever transformers can convert."""
    import tokenizers

    config = read_json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises the bare class
            raise ModelUnusable(f"{folder / 'tokenizer.json'} cannot be used: {error}") from error
    else:
        backend = _converted(folder)
    named = {key: _content(config[key]) for key in _TEMPLATE_TOKENS if config.get(key)}
    generation = folder_generation_config(folder)
    if not generation.eos_token_ids and "eos_token" in named:
        eos_id = backend.token_to_id(named["eos_token"])
        generation = GenerationConfig(
            () if eos_id is None else (eos_id,), generation.temperature, generation.top_p, generation.top_k
        )
    source = _folder_template(folder, config)
    return Tokenizer(backend, generation, ChatTemplate(source, named) if source else None, name, named)


def _folder_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json; of several named ones the default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _content(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _converted(folder: Path) -> tokenizers.Tokenizer:
    """A folder with sentencepiece or vocabulary files only: transformers converts them, slowly."""
    try:
        from transformers import AutoTokenizer

        backend = getattr(AutoTokenizer.from_pretrained(str(folder)), "backend_tokenizer", None)
    except Exception as error:  # dozens of types, one meaning
        raise ModelUnusable(f"{folder} has no tokenizer.json and its tokenizer cannot be converted: {error}") from error
    if backend is None:
        raise ModelUnusable(f"{folder} has no tokenizer.json, and its tokenizer exists in Python only")
    return backend  # type: ignore[no-any-return]
