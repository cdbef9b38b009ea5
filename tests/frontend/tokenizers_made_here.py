"""Small tokenizers of other kinds than the built-in model's."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, decoders, models, normalizers
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
