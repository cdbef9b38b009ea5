"""Token ids to text, piece by piece, exact for any bytes. One `Detokenizer` a running answer.

`TextDecoder` picks the way once per model: byte-level tokenizers have a table from id to bytes and a UTF-8
decoder does the rest; others are decoded in a small window whose text is compared with itself. Either way
the pieces put together equal the decode of all ids.
"""

from __future__ import annotations

import codecs
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Feeds on ids in order; the returned pieces never end inside a character."""

    def push(self, token_id: int) -> str:
        """The text that this id completes; may be empty."""

    def flush(self) -> str:
        """What was held back, at the end: unfinished characters become U+FFFD."""


class TextDecoder:
    """Makes detokenizers for one tokenizer. Built once: reads the vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(
            token_id for token_id, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special
        )
        self._table = _byte_table(tokenizer) if _is_byte_level(tokenizer) else None

    def start(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A detokenizer at the beginning of an answer."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        if self._table is not None:
            return _ByteDetokenizer(self._table, skipped)
        return _WindowDetokenizer(self._tokenizer, skipped)


class _ByteDetokenizer:
    """The byte-level way: constant work per token, exact for invalid bytes too."""

    __slots__ = ("_decoder", "_skipped", "_table")

    def __init__(self, table: list[bytes], skipped: frozenset[int]) -> None:
        self._table = table
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped or token_id >= len(self._table):
            return ""  # rows that a model has beyond its tokenizer have no text
        return self._decoder.decode(self._table[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowDetokenizer:
    """The general way: decode a short window with and without the new ids; the difference is the new text.

    A window starts at an id whose text is out already, so that what a decoder does at the beginning of a
    text (strip a space) falls on both sides. While the window ends in U+FFFD the character may still be
    completed: hold.
    """

    __slots__ = ("_ids", "_read", "_skipped", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._ids: list[int] = []
        self._read = 0  # ids before it are out

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._ids.append(token_id)
        text = self._new_text()
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._accept()
        return text

    def flush(self) -> str:
        text = self._new_text() if self._read < len(self._ids) else ""
        self._accept()
        return text

    def _new_text(self) -> str:
        before = self._decode(self._ids[: self._read])
        whole = self._decode(self._ids)
        # A run of byte tokens that turns out invalid decodes differently as a whole: its earlier part is
        # out already.
        return whole[len(before) :] if whole.startswith(before) else self._decode(self._ids[self._read :])

    def _accept(self) -> None:
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """True if the decoder is ByteLevel alone, so that a token's bytes do not depend on its neighbours."""
    if tokenizer.backend.decoder is None:
        return False
    decoder = json.loads(tokenizer.backend.decoder.__getstate__())
    kinds = [item.get("type") for item in decoder.get("decoders", [])] or [decoder.get("type")]
    return kinds == ["ByteLevel"]


def _byte_table(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of every id, by the ByteLevel decoder's rule: all characters mapped, or the token itself."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    byte_of = _byte_of_character()
    for token, token_id in vocabulary.items():
        try:
            table[token_id] = bytes([byte_of[character] for character in token])
        except KeyError:
            table[token_id] = token.encode()
    return table


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (openai/gpt-2, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table
