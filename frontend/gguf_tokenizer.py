"""A `tokenizers.Tokenizer` from the metadata of a GGUF file: byte-level BPE with a known pre-tokenizer.

Called by the tokenizer loader. A GGUF names its pre-tokenizer and does not carry it, so each name is
spelled out here; an unknown one is refused by name, since a near miss gives wrong tokens in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import ModelUnusable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

# Word splitting of Llama 3 and Qwen 2, from their tokenizer.json on the hub; they differ in the runs of
# digits.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2_NAMES = ("gpt-2", "gpt2")
KNOWN_PRE_TOKENIZERS = (*_GPT2_NAMES, "smollm", "llama-bpe", "qwen2")


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that ``tokenizer.ggml.*`` describes. `ModelUnusable` names what is missing or unknown."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelUnusable(
            f"the GGUF's tokenizer model is {model!r}, which is not supported yet (only 'gpt2' is): "
            "use the model's Hugging Face folder instead"
        )
    tokens = _array(metadata, "tokenizer.ggml.tokens", str)
    types = _array(metadata, "tokenizer.ggml.token_type", int)
    merges = [tuple(merge.split(" ", 1)) for merge in _array(metadata, "tokenizer.ggml.merges", str)]
    if len(types) != len(tokens):
        raise ModelUnusable(f"the GGUF has {len(tokens)} tokens but {len(types)} token types: it is damaged")
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    try:
        bpe = models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=pre == "llama-bpe",
        )
    except Exception as error:  # tokenizers raises the bare class
        raise ModelUnusable(f"the GGUF's merges do not fit its tokens: {error}") from error
    tokenizer = Tokenizer(bpe)
    _set_pre_tokenizer(tokenizer, pre)
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    _set_bos(tokenizer, metadata, pre, tokens)
    return tokenizer


def _set_pre_tokenizer(tokenizer: Tokenizer, pre: str) -> None:
    from tokenizers import Regex, normalizers, pre_tokenizers

    whole_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre in _GPT2_NAMES:
        tokenizer.pre_tokenizer = whole_words
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, whole_words])
    elif pre in ("llama-bpe", "qwen2"):
        digit_run = "{1,3}" if pre == "llama-bpe" else ""
        split = pre_tokenizers.Split(Regex(_SPLIT.replace("%s", digit_run)), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
        if pre == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
    else:
        raise ModelUnusable(
            f"the GGUF's pre-tokenizer {pre!r} is not supported yet (known: "
            f"{', '.join(KNOWN_PRE_TOKENIZERS)}): use the model's Hugging Face folder instead"
        )


def _set_bos(tokenizer: Tokenizer, metadata: Mapping[str, Any], pre: str, tokens: list[str]) -> None:
    """Put the begin-of-sequence token before each text where the model wants it (Llama 3: by default)."""
    from tokenizers import processors

    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    if not metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") or bos_id is None:
        return
    if not 0 <= bos_id < len(tokens):
        raise ModelUnusable(f"the GGUF's bos_token_id {bos_id} is outside its {len(tokens)} tokens")
    bos = tokens[bos_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, bos_id)]
    )


def _array(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise ModelUnusable(f"the GGUF has no usable {key}: it holds no tokenizer that can be used")
    return value
