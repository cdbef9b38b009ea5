"""Small tokenizers of other kinds than the built-in model's."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ringcast.frontend.generation_config import GenerationConfig
from ringcast.frontend.tokenizer import Tokenizer


def sentencepiece_style(words: Iterable[str]) -> Tokenizer:
    """In the style of Llama 2: metaspace, byte fallback, a stripped leading space; ``words`` behind the bytes."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(backend, GenerationConfig(), None)


def byte_level(special_tokens: Iterable[str] = ()) -> Backend:
    """In the style of GPT-2, a token for each printable ASCII character."""
    vocabulary = {character: index for index, character in enumerate([*map(chr, range(33, 127)), "Ġ", "Ċ"])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    return backend


def llama_2(mark: str) -> Backend:
    """Llama 2's, with a small vocabulary. ``mark``: "normalizer", or a scheme of the metaspace pre-tokenizer."""
    special = ["<unk>", "<s>", "</s>"]
    words = ["▁", *"Helowrdx", "He", "ll", "Hell", "Hello", "▁Hello", "wo", "rl", "worl", "world", "▁world"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [
        ("H", "e"), ("l", "l"), ("He", "ll"), ("Hell", "o"), ("▁", "Hello"), ("w", "o"), ("r", "l"), ("wo", "rl"),
        ("worl", "d"), ("▁", "world"),
    ]  # fmt: skip
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Backend(model)
    if mark == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=mark, split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return backend
