"""Which token sequences a bad word stands for, against what the tokenizers make of texts that contain it."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from tokenizers_made_here import sentencepiece_style

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.bad_words import BadWords
from ringcast.frontend.errors import InvalidRequest
from ringcast.frontend.generation_config import GenerationConfig
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.space_tokens import SpaceTokens
from ringcast.frontend.tokenizer import Tokenizer


def forbids(sequences: list[list[int]], token_ids: list[int]) -> bool:
    """Whether these ids could not have been drawn one after the other."""
    return any(
        token_ids[end - len(sequence) : end] == sequence
        for sequence in sequences
        for end in range(len(sequence), len(token_ids) + 1)
    )


@pytest.mark.parametrize("word", ["hello", "hello world", " hello", "1 2 3", "naïve", "日本", "a\n", "!"])
@pytest.mark.parametrize("before", ["", "So ", "x\n", "(", "\n\n", "say:\n "])
def test_a_word_is_forbidden_wherever_it_stands(smollm2: Tokenizer, word: str, before: str) -> None:
    """B4: at the beginning, behind a space, behind a new line, behind punctuation."""
    sequences = BadWords(smollm2).sequences([word], 49152)
    assert forbids(sequences, smollm2.encode(before + word.lstrip()))
    assert not forbids(sequences, smollm2.encode("The quick brown fox jumps over 4 5 6 dogs."))


@pytest.mark.parametrize("space", ["\n", "\t", "\n\n", "\r\n", "\n\t\n"])
def test_white_space_is_forbidden_and_nothing_else(smollm2: Tokenizer, space: str) -> None:
    """B4: ``bad_words=["\\n"]`` used to let "\\n\\n" through and to forbid a single space."""
    sequences = BadWords(smollm2).sequences([space], 49152)
    for text in (f"one{space}two", space, f"{space}{space}", f"end.{space}", f"{{{space}}}"):
        assert forbids(sequences, smollm2.encode(text)), text
    singles = [sequence[0] for sequence in sequences if len(sequence) == 1]
    assert all(space in smollm2.decode([token_id]) for token_id in singles)
    assert not forbids(sequences, smollm2.encode("1 2 3, and a word"))
    one_by_one = [smollm2.encode(character)[0] for character in space]
    assert forbids(sequences, one_by_one)


def test_no_token_with_a_new_line_is_left_or_the_word_is_refused(smollm2: Tokenizer) -> None:
    """B4: whatever is drawn, the text has no new line."""
    with pytest.raises(InvalidRequest, match=r"' ', .* more than 4096 ways: leave it out, and use stop"):
        BadWords(smollm2).sequences([" "], 49152)
    forbidden = {sequence[0] for sequence in BadWords(smollm2).sequences(["\n"], 49152) if len(sequence) == 1}
    others = [token_id for token_id in range(3, 49152) if token_id not in forbidden]
    assert 10 < len(forbidden) < 2000
    assert "\n" not in smollm2.decode(others)


@pytest.mark.parametrize("space", ["\n", "\t\n", "\n\n\n", "\u3000\n", "\r\n\r"])
def test_sequences_are_all_those_that_spell_the_space_and_no_others(space: str) -> None:
    """B4: against every sequence of up to four tokens of a small vocabulary."""
    texts = ["\n", "\t", "\r", "\n\n", "a\n", "\nb", "\r\n", ".\t", "c", "\u3000", "x \n\n y", "\r\n\r\n"]
    tokens = [(index, text.encode()) for index, text in enumerate(texts)]
    tokens += [(len(tokens), b"\xe3"), (len(tokens) + 1, b"\x80\x80")]  # half characters
    found = [list(sequence) for sequence in SpaceTokens(tokens).sequences(space.encode())]
    assert all(space.encode() in b"".join(tokens[i][1] for i in ids) for ids in found)
    for length in range(1, 5 if len(space) > 1 else 4):
        for ids in map(list, itertools.product(range(len(tokens)), repeat=length)):
            spells = space.encode() in b"".join(tokens[i][1] for i in ids)
            assert forbids(found, ids) is spells, ids


def test_long_white_space_takes_no_time(smollm2: Tokenizer) -> None:
    """B4, C9: the ways to spell it would be without number."""
    for space in (" " * 30_000, "\n" * 17, "\n\t" * 8, " \n" * 8):
        with pytest.raises(InvalidRequest, match="more than 4096 ways"):
            BadWords(smollm2).sequences([space], 49152)


def test_a_sentencepiece_tokenizer_writes_a_word_in_two_ways() -> None:
    """B4: with its mark at the beginning of a word, and without it behind other characters."""
    tokenizer = sentencepiece_style(["▁", "▁hi", "hi", "(", "\n"])
    sequences = BadWords(tokenizer).sequences(["hi"], tokenizer.vocab_size)
    with_mark, bare = (tokenizer.backend.token_to_id(token) for token in ("▁hi", "hi"))
    assert with_mark is not None and bare is not None
    for ids in ([with_mark], [bare], [tokenizer.encode("(")[0], bare]):
        # Its tokenizer has no merges and so spells letter by letter; the model draws what it likes.
        assert tokenizer.decode(ids).endswith("hi")
    letters = [tokenizer.encode(text, add_special_tokens=False) for text in ("hi", "(hi", "say hi", "\nhi")]
    assert all(forbids(sequences, ids) for ids in letters)


def test_words_that_cannot_be_spelled_are_refused() -> None:
    """B4: forbidding the unknown token would be another rule."""
    words = {"[UNK]": 0, "hello": 1, "world": 2}
    backend = Backend(models.WordLevel(vocab=words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(backend, GenerationConfig(), None)
    assert BadWords(tokenizer).sequences(["hello", "hello world"], 3) == [[1], [1, 2]]
    for word in ("goodbye", "\n"):
        with pytest.raises(InvalidRequest, match="cannot spell") as caught:
            BadWords(tokenizer).sequences([word], 3)
        assert caught.value.param == "bad_words"


async def test_only_a_whole_word_is_forbidden_when_few_tokens_are_allowed(llm: AsyncLLM, smollm2: Tokenizer) -> None:
    """B4: 905 (" world") ends a bad word of two tokens, and is allowed alone."""
    assert smollm2.decode([905]) == " world"
    params = SamplingParams(allowed_token_ids=[905], bad_words=["hello world"], max_tokens=1, ignore_eos=True)
    async with asyncio.timeout(10), await llm.add_request("x", params):
        pass
    with pytest.raises(InvalidRequest, match="forbid every token"):
        await llm.add_request("x", SamplingParams(allowed_token_ids=[905], bad_words=["world"]))
