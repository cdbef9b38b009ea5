"""Deltas put together are the full decode: any text and tokens, any number of them a step, any pace of the reader."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers_made_here import sentencepiece_style

from ringcast.frontend.detokenizer import TextDecoder
from ringcast.frontend.request_state import Answer
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.tokenizer import Tokenizer
from ringcast.scheduler.messages import RequestOutput

CORPUS = [
    "👨‍👩‍👧‍👦 and 👩🏽‍🚀, 🏳️‍🌈 🇨🇿🇩🇪 👍🏽👍🏿 ❤️‍🔥 end",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน",
    "Příliš žluťoučký kůň úpěl ďábelské ódy; ať žijí háčky.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق",
    "def f(x: int) -> str:\n    if x  >  0:\n\t\treturn f'{x!r:>10}'  # ok\n\n\nclass A: ...\n",
    "runs  of   spaces    and\ttabs\t\t and \u00a0no-break\u2003em        end   ",
    "日本語と中文和한국어 ½ ≠ ∞ 𝕏 \u200b zero width",
    "a\u0301 e\u0308 combining, \ufeff mark, \ufffd itself",
]
SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(scope="module")
def sentencepiece_like() -> Tokenizer:
    return sentencepiece_style(["▁", "▁▁", "▁and", "▁end", "def", "a", "e", "é", "ž", "(", ")", "▁x", "return", "\n"])


def _deltas(decoder: TextDecoder, ids: Sequence[int], pace: random.Random, **fields: object) -> list[str]:
    """Texts of the deltas; steps have one to five tokens, and the reader looks after some of them."""
    answer = Answer(0, 0, SamplingParams(max_tokens=None, **fields), decoder)  # type: ignore[arg-type]
    left, texts = list(ids), []
    while left:
        count = pace.randint(1, 5)
        step, left = left[:count], left[count:]
        answer.update(RequestOutput("x", step, None if left else "length"))
        if not left or answer.finish_reason or pace.random() < 0.6:
            texts.append(answer.take_delta().text)
        if answer.finish_reason:
            break
    return texts


@pytest.mark.parametrize("text", CORPUS)
def test_texts_of_all_kinds_come_back(
    smollm2: Tokenizer, smollm2_decoder: TextDecoder, sentencepiece_like: Tokenizer, text: str
) -> None:
    for tokenizer, decoder in ((smollm2, smollm2_decoder), (sentencepiece_like, TextDecoder(sentencepiece_like))):
        ids = tokenizer.encode(text)
        for seed in range(10):
            texts = _deltas(decoder, ids, random.Random(seed))
            assert "".join(texts) == tokenizer.decode(ids) == text
            if "\ufffd" not in text:
                assert not any("\ufffd" in delta for delta in texts)


@settings(max_examples=200, suppress_health_check=SUPPRESSED, deadline=None)
@given(data=st.data(), pace=st.randoms(use_true_random=False), skip=st.booleans())
def test_any_tokens_of_a_byte_level_model(
    smollm2: Tokenizer, smollm2_decoder: TextDecoder, data: st.DataObject, pace: random.Random, skip: bool
) -> None:
    """Random ids, and cuts of the corpus at any token: beginnings and ends inside characters."""
    chosen = [*data.draw(st.lists(st.integers(0, 49151), max_size=30))]
    for text in data.draw(st.lists(st.sampled_from(CORPUS), max_size=3)):
        ids = smollm2.encode(text)
        first = data.draw(st.integers(0, len(ids)))
        chosen += ids[first : data.draw(st.integers(first, len(ids)))]
    texts = _deltas(smollm2_decoder, chosen, pace, skip_special_tokens=skip)
    assert "".join(texts) == smollm2.decode(chosen, skip_special_tokens=skip)


@settings(max_examples=80, suppress_health_check=SUPPRESSED, deadline=None)
@given(texts=st.lists(st.sampled_from(CORPUS), min_size=1, max_size=3), pace=st.randoms(use_true_random=False))
def test_mixed_texts_of_a_byte_fallback_model(
    sentencepiece_like: Tokenizer, texts: list[str], pace: random.Random
) -> None:
    ids = [token_id for text in texts for token_id in [*sentencepiece_like.encode(text), 1]]
    assert "".join(_deltas(TextDecoder(sentencepiece_like), ids, pace)) == sentencepiece_like.decode(ids)


@settings(max_examples=200, suppress_health_check=SUPPRESSED, deadline=None)
@given(ids=st.lists(st.integers(0, 271), max_size=30), pace=st.randoms(use_true_random=False))
def test_broken_bytes_of_a_byte_fallback_model_lose_nothing_else(
    sentencepiece_like: Tokenizer, ids: list[int], pace: random.Random
) -> None:
    """A run of byte tokens that is broken somewhere is U+FFFD throughout in the full decode; what a stream had told of
    it by then stays. Everything else is equal."""
    whole = sentencepiece_like.decode(ids)
    told = "".join(_deltas(TextDecoder(sentencepiece_like), ids, pace))
    if "\ufffd" not in whole:
        assert told == whole
    else:
        left = iter(told)
        assert all(character in left for character in whole if character != "\ufffd"), (told, whole)


@settings(max_examples=100, suppress_health_check=SUPPRESSED, deadline=None)
@given(
    text=st.sampled_from(CORPUS), start=st.integers(0, 60), length=st.integers(1, 8),
    include=st.booleans(), pace=st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_stop_string_anywhere_cuts_the_text_there(
    smollm2: Tokenizer,
    smollm2_decoder: TextDecoder,
    text: str,
    start: int,
    length: int,
    include: bool,
    pace: random.Random,
) -> None:
    stop = text[start : start + length]
    if not stop:
        return
    texts = _deltas(smollm2_decoder, smollm2.encode(text), pace, stop=stop, include_stop_str_in_output=include)
    end = text.index(stop) + (len(stop) if include else 0)
    assert "".join(texts) == text[:end]
