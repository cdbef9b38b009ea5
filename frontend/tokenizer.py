"""`Tokenizer`: text to token ids and back, the chat prompt, and what the model counts as an end.

Wraps the `tokenizers` library; made by `load_tokenizer` from a GGUF file or a folder in Hugging Face
format. The processor encodes with it, the detokenizer asks it for bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chat_template import ChatTemplate
from .end_tokens import named_ends, template_end
from .errors import InvalidRequest, ModelUnusable, TokenizerFailed
from .folder_tokenizer import FolderTokenizer, chat_template_of
from .generation_config import GenerationConfig, folder_generation_config, gguf_generation_config
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

    @cached_property
    def special_edges(self) -> tuple[int, int]:
        """How many special tokens `encode` puts before a text, and behind it."""
        plain, whole = self.encode("a", add_special_tokens=False), self.encode("a")
        if len(whole) == len(plain):
            return 0, 0
        before = next(start for start in range(len(whole)) if whole[start : start + len(plain)] == plain)
        return before, len(whole) - before - len(plain)

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
            raise InvalidRequest("the text holds half of a surrogate pair: it is not valid Unicode") from error
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
    tokens = metadata["tokenizer.ggml.tokens"]
    named: dict[str, str] = {}
    for key, name in zip(("bos", "eos", "unknown", "padding"), _TEMPLATE_TOKENS, strict=True):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            named[name] = tokens[token_id]
    text = metadata.get("tokenizer.chat_template")
    template = ChatTemplate(text, named) if isinstance(text, str) else None
    return Tokenizer(backend, _gguf_generation(source.path, metadata, backend, template), template, source.name, named)


def _gguf_generation(
    path: Path, metadata: Mapping[str, Any], backend: tokenizers.Tokenizer, template: ChatTemplate | None
) -> GenerationConfig:
    """The ends that the file names, those that its template writes, and those that llama.cpp knows by name."""
    ids = {token.content: token_id for token_id, token in backend.get_added_tokens_decoder().items()}
    size = len(metadata["tokenizer.ggml.tokens"])
    written = template_end(template, ids)
    generation = gguf_generation_config(path, metadata, size, [] if written is None else [ids[written]])
    by_name = named_ends(ids, has_end=bool(generation.eos_token_ids))
    end_ids = [*generation.eos_token_ids, *(ids[token] for token in by_name)]
    return replace(generation, eos_token_ids=tuple(dict.fromkeys(end_ids)))


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
    found = FolderTokenizer(folder)
    text = chat_template_of(folder, found.settings)
    template = ChatTemplate(text, found.roles) if text else None
    ids = {token.content: token_id for token_id, token in found.backend.get_added_tokens_decoder().items()}
    ends = [found.roles.get("eos_token"), template_end(template, ids)]
    end_ids = [token_id for end in ends if end and (token_id := found.backend.token_to_id(end)) is not None]
    generation = folder_generation_config(folder, found.backend.get_vocab_size(with_added_tokens=True), end_ids)
    return Tokenizer(found.backend, generation, template, name, found.roles)
