"""Incremental detokenisation: the pieces put together are the full decode, for any tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from tokenizers_made_here import sentencepiece_style

from ringcast.frontend.detokenizer import TextDecoder
from ringcast.frontend.generation_config import GenerationConfig
from ringcast.frontend.tokenizer import Tokenizer

TEXTS = [
    "Hello, world!",
    "runs  of   spaces    and\n\n\n  newlines\t\ttabs   ",
    "   leading and trailing   ",
    "👨‍👩‍👧‍👦 family, 🇨🇿🇩🇪 flags, 👍🏽 skin, 🏳️‍🌈",
    "ภาษาไทยไม่มีวรรค",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "مرحبا بالعالم",
    "def f(x):\n    return {'a': [1, 2, 3]}  # ok",
    "日本語と中文和한국어",
    "Grüße, naïve café, ½ ≠ ∞ 𝕏",
]


def _pieces(decoder: TextDecoder, ids: Sequence[int], *, skip: bool = False) -> list[str]:
    detokenizer = decoder.start(skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back_whole(smollm2: Tokenizer, smollm2_decoder: TextDecoder, text: str) -> None:
    ids = smollm2.encode(text)
    assert "".join(_pieces(smollm2_decoder, ids)) == text == smollm2.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_shows_half_a_character(smollm2: Tokenizer, smollm2_decoder: TextDecoder, text: str) -> None:
    assert not any("\ufffd" in piece for piece in _pieces(smollm2_decoder, smollm2.encode(text)))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_any_token_sequence_equals_its_full_decode(
    smollm2: Tokenizer, smollm2_decoder: TextDecoder, ids: list[int], skip: bool
) -> None:
    whole = smollm2.decode(ids, skip_special_tokens=skip)
    assert "".join(_pieces(smollm2_decoder, ids, skip=skip)) == whole


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=24))
def test_any_bytes_equal_their_full_decode(smollm2: Tokenizer, smollm2_decoder: TextDecoder, data: bytes) -> None:
    """Broken UTF-8, token by token: one token per byte."""
    table = smollm2_decoder._table
    assert table is not None
    ids = [table.index(bytes([byte])) for byte in data if bytes([byte]) in table]
    assert "".join(_pieces(smollm2_decoder, ids)) == smollm2.decode(ids, skip_special_tokens=False)


def test_special_tokens_are_shown_only_on_request(smollm2: Tokenizer, smollm2_decoder: TextDecoder) -> None:
    ids = smollm2.encode("a<|im_end|>b")
    assert "".join(_pieces(smollm2_decoder, ids, skip=True)) == "ab"
    assert "".join(_pieces(smollm2_decoder, ids, skip=False)) == "a<|im_end|>b"


def test_ids_beyond_the_tokenizer_have_no_text(smollm2_decoder: TextDecoder) -> None:
    assert _pieces(smollm2_decoder, [10**6]) == ["", ""]


def test_an_unfinished_character_becomes_a_replacement_at_the_end(
    smollm2: Tokenizer, smollm2_decoder: TextDecoder
) -> None:
    ids = smollm2.encode("🌊")
    assert len(ids) > 1
    assert _pieces(smollm2_decoder, ids[:-1]) == [*[""] * (len(ids) - 1), "\ufffd"]


@pytest.fixture(scope="module")
def sentencepiece_like() -> Tokenizer:
    return sentencepiece_style(["▁", "▁Hello", "▁world", "!", "é", "▁▁"])


def test_other_decoders_come_back_whole_too(sentencepiece_like: Tokenizer) -> None:
    decoder = TextDecoder(sentencepiece_like)
    hello, world = 2 + 256 + 1, 2 + 256 + 2
    wave = [2 + byte for byte in "🌊".encode()]
    ids = [hello, world, *wave, 2 + 256 + 5, world, *wave, *wave, 1, hello]
    pieces = _pieces(decoder, ids, skip=True)
    assert "".join(pieces) == sentencepiece_like.decode(ids) == "Hello world🌊   world🌊🌊 Hello"
    assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.sampled_from("Hé !🌊world\n日"), max_size=20))
def test_other_decoders_equal_the_full_decode_of_any_text(sentencepiece_like: Tokenizer, text: str) -> None:
    ids = sentencepiece_like.encode(text)
    assert "".join(_pieces(TextDecoder(sentencepiece_like), ids)) == sentencepiece_like.decode(ids)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.sampled_from("Hé !🌊world\n日"), max_size=20))
def test_bytes_of_tokens_put_together_are_the_text(
    smollm2: Tokenizer, smollm2_decoder: TextDecoder, sentencepiece_like: Tokenizer, text: str
) -> None:
    ids = smollm2.encode(text)
    assert b"".join(map(smollm2_decoder.token_bytes, ids)).decode() == text
    decoder, ids = TextDecoder(sentencepiece_like), sentencepiece_like.encode(text)
    assert b"".join(map(decoder.token_bytes, ids)).decode() == (" " + text if text else "")


def test_bytes_of_single_tokens(sentencepiece_like: Tokenizer, smollm2_decoder: TextDecoder) -> None:
    decoder = TextDecoder(sentencepiece_like)
    assert [decoder.token_bytes(i) for i in (1, 2 + 0xF0, 2 + 256 + 1, 10**6)] == [b"</s>", b"\xf0", b" Hello", b""]
    assert [smollm2_decoder.token_bytes(i) for i in (2, 10**6)] == [b"<|im_end|>", b""]


def test_special_tokens_in_a_row_without_spaces() -> None:
    """A decoder in the style of BERT puts a space before every word, special or not."""
    words = ["[UNK]", "[SEP]", "[CLS]", "hello", "world"]
    backend = Backend(models.WordPiece(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    decoder = TextDecoder(Tokenizer(backend, GenerationConfig(), None))

    def text(spaces: bool) -> str:
        detokenizer = decoder.start(skip_special_tokens=False, spaces_between_special_tokens=spaces)
        return "".join(detokenizer.push(i) for i in (2, 3, 1, 2, 2, 4)) + detokenizer.flush()

    assert text(True) == "[CLS] hello [SEP] [CLS] [CLS] world" == backend.decode([2, 3, 1, 2, 2, 4], False)
    assert text(False) == "[CLS] hello [SEP][CLS][CLS] world"


@pytest.mark.parametrize("prompt", ["Hello world", "", "Hello", "日本", "Hello  ", "é!", "Hello 🌊🌊🌊"])
@pytest.mark.parametrize("answer", ["world", "▁world", "▁▁", "!", "é", "▁Hello"])
def test_an_answer_is_what_the_decode_of_prompt_and_answer_adds(
    sentencepiece_like: Tokenizer, prompt: str, answer: str
) -> None:
    """C18: the first space of " Paris" behind "Hello world" used to be lost, as at the beginning of a text."""
    tokenizer = sentencepiece_like
    prompt_ids = [1, *tokenizer.encode(prompt)]
    answer_ids = tokenizer.encode(answer.replace("▁", ""))
    piece = tokenizer.backend.token_to_id(answer)
    answer_ids = answer_ids if piece is None else [piece, *answer_ids]
    for skip in (True, False):
        detokenizer = TextDecoder(tokenizer).start(prompt_token_ids=prompt_ids, skip_special_tokens=skip)
        text = "".join(map(detokenizer.push, answer_ids)) + detokenizer.flush()
        before, whole = (
            tokenizer.decode(ids, skip_special_tokens=skip) for ids in (prompt_ids, prompt_ids + answer_ids)
        )
        assert before + text == whole
    if piece is not None and prompt and answer == "▁world":
        assert text.startswith(" world")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_an_answer_may_follow_half_a_character(sentencepiece_like: Tokenizer, cut: int) -> None:
    """C18: whatever the end of the prompt decodes to alone, the answer's whole characters are there."""
    wave = [2 + byte for byte in "🌊".encode()]
    hello = sentencepiece_like.backend.token_to_id("▁Hello")
    assert hello is not None
    detokenizer = TextDecoder(sentencepiece_like).start(prompt_token_ids=[hello, *wave[:cut]])
    text = "".join(map(detokenizer.push, [*wave[cut:], hello, *wave])) + detokenizer.flush()
    assert text.endswith(" Hello🌊")
