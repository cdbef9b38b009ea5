"""Token ids to text, piece by piece, exact for any bytes. One `Detokenizer` a running answer.

`TextDecoder` picks the way once per model: byte-level tokenizers have a table from id to bytes and a UTF-8
decoder does the rest; others are decoded in a small window whose text is compared with itself. Either way the pieces
put together equal the decode of all ids. One exception: a byte-fallback decoder makes a whole run of byte tokens U+FFFD
when it is broken anywhere; characters of it that were out by then stay.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 6  # of the prompt that stand before an answer while it is decoded
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


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
        added = tokenizer.backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        kinds = _decoder_kinds(tokenizer)
        self._table = _byte_table(tokenizer) if kinds == ["ByteLevel"] else None
        self._has_byte_tokens = "ByteFallback" in kinds
        self._bytes_of: dict[int, bytes] = {}  # of tokens that were asked for

    def start(
        self,
        *,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """A detokenizer at the beginning of an answer to this prompt.

        Its text is the decode of prompt and answer without the decode of the prompt: behind one, a decoder that strips
        the space at the beginning of a text has nothing to strip.
        Some decoders put spaces before special tokens; without ``spaces_between_special_tokens`` one that follows
        another has none.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        if self._table is not None:
            return _ByteDetokenizer(self._table, skipped)
        joined = {} if skip_special_tokens or spaces_between_special_tokens else self._added
        return _WindowDetokenizer(self._tokenizer, skipped, joined, self._end_of(prompt_token_ids, skipped))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for in the middle of a text; none if the tokenizer does not know it."""
        if self._table is not None:
            return self._table[token_id] if token_id < len(self._table) else b""
        found = self._bytes_of.get(token_id)
        if found is None:
            found = self._bytes_of[token_id] = self._bytes_in_context(token_id)
        return found

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text; what is no text is U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _end_of(self, prompt_token_ids: Sequence[int], skipped: frozenset[int]) -> list[int]:
        """The last tokens of a prompt, as many as its end may depend on; from the beginning of a character on."""
        tail: list[int] = []
        for token_id in reversed(prompt_token_ids):
            if token_id in skipped:
                continue
            tail.insert(0, token_id)
            is_inside = self._has_byte_tokens and self._continues_a_character(token_id)
            if len(tail) >= _CONTEXT_TOKENS and not (is_inside and len(tail) < _CONTEXT_TOKENS + 3):
                break
        return tail

    def _continues_a_character(self, token_id: int) -> bool:
        match = _BYTE_TOKEN.fullmatch(self._tokenizer.backend.id_to_token(token_id) or "")
        return match is not None and 0x80 <= int(match[1], 16) < 0xC0

    def _bytes_in_context(self, token_id: int) -> bytes:
        token = self._tokenizer.backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        # At the beginning of a text a decoder may strip a space, so the token is decoded behind another one.
        before = self._tokenizer.decode([token_id], skip_special_tokens=False)
        twice = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return twice[len(before) :].encode()


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

    __slots__ = ("_ids", "_joined", "_read", "_skipped", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, skipped: frozenset[int], joined: dict[int, str], before: list[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._joined = joined  # tokens that follow each other as they are written, without what a decoder adds
        self._ids = before
        self._read = len(before)  # ids before it are out

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        if token_id in self._joined and self._ids and self._ids[-1] in self._joined:
            self._ids, self._read = [token_id], 1
            return self._joined[token_id]
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


def _decoder_kinds(tokenizer: Tokenizer) -> list[str]:
    """The steps of its decoder. With ByteLevel alone a token's bytes do not depend on its neighbours."""
    if tokenizer.backend.decoder is None:
        return []
    decoder = json.loads(tokenizer.backend.decoder.__getstate__())
    return [item.get("type") for item in decoder.get("decoders", [])] or [decoder.get("type")]


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
