"""The tokenizer of a folder in Hugging Face format, with the same ids as transformers, which it does not import.

Beside ``tokenizer.json`` three files may add tokens and roles: ``tokenizer_config.json``, and in older folders
``special_tokens_map.json`` and ``added_tokens.json``. The rules are those of transformers 5 (`PreTrainedTokenizerBase.
_from_pretrained`, `TokenizersBackend.__init__`). transformers is imported only for a folder without ``tokenizer.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelUnusable
from .generation_config import read_json

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_NOT_BY_LLAMA_CLASS = ("mistral", "phi3", "qwen2")  # model types that transformers trusts the file more for
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class FolderTokenizer:
    """``backend``, the texts of tokens with a ``roles`` name, and the ``settings`` of tokenizer_config.json."""

    def __init__(self, folder: Path) -> None:
        """`ModelUnusable` names the file that is broken."""
        self.settings = read_json(folder / "tokenizer_config.json")
        decoder = self.settings.get("added_tokens_decoder")
        self._folder = folder
        self._added: dict[int, AddedToken] = {}
        if decoder is None:
            # Only older folders have this file; it counts more than tokenizer_config.json.
            self.settings = {**self.settings, **read_json(folder / "special_tokens_map.json")}
        self.roles = self._roles()
        if decoder is None:
            for text, index in read_json(folder / "added_tokens.json").items():
                is_special = text in self.roles.values()
                self._added[self._index(index)] = _added_token(text, special=is_special, normalized=not is_special)
        elif isinstance(decoder, dict):
            self._added = {self._index(index): self._read_token(token) for index, token in decoder.items()}
        else:
            raise self._wrong("added_tokens_decoder", decoder)
        self.backend = _backend(folder)
        if (folder / "tokenizer.json").is_file():  # a converted one has all of it
            if self._is_llama_class(folder):
                _follow_llama_class(self.backend, self.settings)
            self._add_tokens()

    def _is_llama_class(self, folder: Path) -> bool:
        """Whether transformers makes the tokenizer by its class `LlamaTokenizer`, which changes its rules."""
        config = read_json(folder / "config.json")
        name = str(self.settings.get("tokenizer_class") or config.get("tokenizer_class") or "")
        return name.removesuffix("Fast") == "LlamaTokenizer" and config.get("model_type") not in _NOT_BY_LLAMA_CLASS

    def _roles(self) -> dict[str, str]:
        """Also those with names of the model's own, such as ``eot_token``: its template may use them."""
        extra = self.settings.get("extra_special_tokens")
        values = {name: self.settings.get(name) for name in _ROLES}  # new tokens get their ids in this order
        values |= {
            name: value for name, value in self.settings.items() if name.endswith("_token") and name not in _ROLES
        }
        own = {name: value for name, value in values.items() if name in _ROLES or isinstance(value, str)}
        if isinstance(extra, dict):
            own |= extra
        return {name: self._read_token(value).content for name, value in own.items() if value is not None}

    def _add_tokens(self) -> None:
        known = {repr(token) for token in self.backend.get_added_tokens_decoder().values()}
        added = [token for _, token in sorted(self._added.items()) if repr(token) not in known]
        by_text = {token.content: token for token in self._added.values()}
        present = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        present.update(token.content for token in added)
        for text, token in self._special_tokens().items():
            if text not in present:
                present.add(text)
                added.append(by_text.get(text, token))
        named = {*self.roles.values()}
        for token in added:
            token.special = token.special or token.content in named
        self.backend.add_tokens(added)
        self.backend.encode_special_tokens = bool(self.settings.get("split_special_tokens"))

    def _special_tokens(self) -> dict[str, AddedToken]:
        values = [self.settings.get(name, text) for name, text in self.roles.items()]
        extra: Any = next((items for name in _EXTRA if (items := self.settings.get(name))), [])
        if isinstance(extra, list):
            values += extra
        tokens = [self._read_token(value) for value in values]
        return {token.content: token for token in tokens}

    def _read_token(self, value: object) -> AddedToken:
        """A text, or an object with ``content`` and flags."""
        if isinstance(value, str):
            return _added_token(value, special=True)
        if not isinstance(value, dict) or not isinstance(value.get("content"), str):
            raise self._wrong("a token", value)
        flags = {name: value[name] for name in _FLAGS if isinstance(value.get(name), bool)}
        return _added_token(value["content"], **flags)

    def _index(self, value: object) -> int:
        try:
            return int(str(value))
        except ValueError:
            raise self._wrong("the id of an added token", value) from None

    def _wrong(self, what: str, value: object) -> ModelUnusable:
        return ModelUnusable(
            f"{self._folder}: {what} in its tokenizer files is {value!r}, which is not one; get the file again"
        )


def _follow_llama_class(backend: Tokenizer, settings: Mapping[str, Any]) -> None:
    """A mark before the first word alone, or with ``legacy`` behind each special token, or nowhere.

    A byte-level tokenizer is left alone: it carries the class's name by mistake.
    """
    from tokenizers import decoders, pre_tokenizers

    if any("ByteLevel" in str(part) for part in (backend.pre_tokenizer, backend.decoder)):
        return
    has_prefix = settings.get("add_prefix_space") is not False
    scheme = "never" if not has_prefix else "always" if settings.get("legacy") else "first"
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence(steps)


def _added_token(content: str, **flags: bool) -> AddedToken:
    from tokenizers import AddedToken

    return AddedToken(content, **flags)


def _backend(folder: Path) -> Tokenizer:
    import tokenizers

    path = folder / "tokenizer.json"
    if not path.is_file():
        return _converted(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises the bare class
        raise ModelUnusable(f"{path} cannot be used: {error}; get the file again") from error


def _converted(folder: Path) -> Tokenizer:
    """A folder with sentencepiece or vocabulary files only: transformers converts them, slowly."""
    try:
        from transformers import AutoTokenizer

        backend = getattr(AutoTokenizer.from_pretrained(str(folder)), "backend_tokenizer", None)
    except Exception as error:  # dozens of types, one meaning
        raise ModelUnusable(f"{folder} has no tokenizer.json and its tokenizer cannot be converted: {error}") from error
    if backend is None:
        raise ModelUnusable(f"{folder} has no tokenizer.json, and its tokenizer exists in Python only")
    return backend  # type: ignore[no-any-return]


def chat_template_of(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json; of several named ones the default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
