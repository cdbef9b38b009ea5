"""`BadWords`: which token sequences spell a word that may not be generated. The input processor asks it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from .detokenizer import TextDecoder
from .errors import InvalidRequest
from .tokenizer import Tokenizer

MAX_SEQUENCES = 4096  # of one word: every step of the request looks at all of them
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
        """Every sequence of tokens over which ``space`` can lie. `InvalidRequest` if they are too many."""
        wanted = space.encode()
        found = [*itertools.islice(self._sequences_over(wanted), MAX_SEQUENCES + 1)]
        if len(found) > MAX_SEQUENCES:
            raise InvalidRequest(
                f"bad_words holds {space!r}, which the model's tokens spell in more than {MAX_SEQUENCES} ways: leave "
                "it out, and use stop to end an answer there",
                "bad_words",
            )
        return found

    def _sequences_over(self, wanted: bytes) -> Iterator[tuple[int, ...]]:
        yield from ((token_id,) for token_id, text in self._texts if wanted in text)
        for cut in range(1, len(wanted)):
            head, rest = wanted[:cut], wanted[cut:]
            begins = [token_id for token_id, text in self._texts if text.endswith(head) and wanted not in text]
            if begins:
                yield from ((first, *tail) for tail in self._tails(rest) for first in begins)

    def _tails(self, rest: bytes) -> Iterator[tuple[int, ...]]:
        """Sequences of tokens whose text begins with ``rest``, none of them longer than need be."""
        for token_id, text in self._texts:
            if text.startswith(rest):
                yield (token_id,)
            elif text and rest.startswith(text):
                yield from ((token_id, *tail) for tail in self._tails(rest[len(text) :]))

    @cached_property
    def _texts(self) -> Sequence[tuple[int, bytes]]:
        """Ids and bytes of all tokens but the special ones."""
        decoder = TextDecoder(self._tokenizer)
        ids = set(self._tokenizer.backend.get_vocab(with_added_tokens=True).values()) - decoder.special_ids
        return [(token_id, decoder.token_bytes(token_id)) for token_id in sorted(ids)]

    @cached_property
    def _unknown_ids(self) -> frozenset[int]:
        """The id that stands for what is not in the vocabulary: it spells no word."""
        token = getattr(self._tokenizer.backend.model, "unk_token", None)
        token_id = None if token is None else self._tokenizer.backend.token_to_id(token)
        return frozenset() if token_id is None else frozenset([token_id])


def _is_implied(sequence: tuple[int, ...], others: dict[tuple[int, ...], None]) -> bool:
    """Whether a shorter one forbids the same last id already."""
    return any(sequence[start:] in others for start in range(1, len(sequence)))
