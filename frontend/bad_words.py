"""`BadWords`: which token sequences spell a word that may not be generated. The input processor asks it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property

from .detokenizer import TextDecoder
from .errors import InvalidRequest
from .space_tokens import SpaceTokens
from .tokenizer import Tokenizer

MAX_SEQUENCES = 4096  # of one word: every step of the request looks at all of them
MAX_SPACE_BYTES = 16  # of a word of white space: the ways to spell it grow exponentially
_BEFORE = "\n"  # a text that merges with no word: what follows it is encoded as in the middle of a text


class BadWords:
    """For one tokenizer. Safe to call from any thread; the first white-space word reads the whole vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def sequences(self, words: Iterable[str], vocab_size: int) -> list[list[int]]:
        """Every sequence of token ids below ``vocab_size`` whose last id must not follow the others.

        As in vLLM a word is forbidden with and without a space before it, whether or not it is given with one; beyond
        that also in the middle of a text, where some tokenizers write it otherwise than at the beginning. White space
        is forbidden wherever it stands in the text, whatever the tokens are of which it is a part. `InvalidRequest` for
        a word that the tokenizer cannot spell, or white space that too many tokens contain.
        """
        found: dict[tuple[int, ...], None] = {}
        words = list(words)
        for word, spellings in zip(words, self._spellings(words), strict=True):
            if not spellings:
                raise InvalidRequest(
                    f"bad_words holds {word!r}, which the model's tokenizer cannot spell: leave it out", "bad_words"
                )
            found.update(dict.fromkeys(spelling for spelling in spellings if max(spelling) < vocab_size))
        return [list(sequence) for sequence in found if not _is_implied(sequence, found)]

    def _spellings(self, words: Sequence[str]) -> list[list[tuple[int, ...]]]:
        """Of each word, at the beginning of a text and in the middle of one, with and without a space before it."""
        texts = [text for word in words if (bare := word.lstrip()) for text in (bare, " " + bare)]
        if not texts:
            return [self._covers(word) for word in words]
        (before,) = self._encode([_BEFORE])
        at_beginning, behind = self._encode(texts), self._encode([_BEFORE + text for text in texts])
        encoded = iter(zip(at_beginning, behind, strict=True))
        spellings: list[list[tuple[int, ...]]] = []
        for word in words:
            if not word.lstrip():
                spellings.append(self._covers(word))
                continue
            found: list[tuple[int, ...]] = []
            for alone, whole in itertools.islice(encoded, 2):
                # Where it merges with what stands before it there is no other spelling in the middle of a text.
                found += [alone, whole[len(before) :] if whole[: len(before)] == before else ()]
            spellings.append([ids for ids in found if ids and not self._unknown_ids.intersection(ids)])
        return spellings

    def _encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        try:
            return [tuple(ids) for ids in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        except InvalidRequest as error:
            raise InvalidRequest(f"bad_words: {error}", "bad_words") from error

    def _covers(self, space: str) -> list[tuple[int, ...]]:
        """Every sequence of tokens in which ``space`` stands. `InvalidRequest` if they are too many."""
        wanted = space.encode()
        found: list[tuple[int, ...]] = []
        if len(wanted) <= MAX_SPACE_BYTES:
            found = [*itertools.islice(self._space_tokens.sequences(wanted), MAX_SEQUENCES + 1)]
        if len(wanted) > MAX_SPACE_BYTES or len(found) > MAX_SEQUENCES:
            raise InvalidRequest(
                f"bad_words holds {space[:MAX_SPACE_BYTES]!r}, which the model's tokens spell in more than "
                f"{MAX_SEQUENCES} ways: leave it out, and use stop to end an answer there",
                "bad_words",
            )
        return found

    @cached_property
    def _space_tokens(self) -> SpaceTokens:
        """Of all tokens but the special ones."""
        decoder = TextDecoder(self._tokenizer)
        ids = set(self._tokenizer.backend.get_vocab(with_added_tokens=True).values()) - decoder.special_ids
        return SpaceTokens((token_id, decoder.token_bytes(token_id)) for token_id in sorted(ids))

    @cached_property
    def _unknown_ids(self) -> frozenset[int]:
        """The id that stands for what is not in the vocabulary: it spells no word."""
        token = getattr(self._tokenizer.backend.model, "unk_token", None)
        token_id = None if token is None else self._tokenizer.backend.token_to_id(token)
        return frozenset() if token_id is None else frozenset([token_id])


def _is_implied(sequence: tuple[int, ...], others: dict[tuple[int, ...], None]) -> bool:
    """Whether a shorter one forbids the same last id already."""
    return any(sequence[start:] in others for start in range(1, len(sequence)))
