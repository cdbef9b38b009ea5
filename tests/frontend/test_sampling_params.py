"""SamplingParams: vLLM's defaults, and errors that name field, value and allowed range."""

from __future__ import annotations

import pytest

from ringcast.frontend.errors import InvalidRequest, UnsupportedParameter
from ringcast.frontend.sampling_params import SamplingParams


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.max_tokens, params.seed, params.stop_strings) == (16, None, ())
    assert params.skip_special_tokens
    assert not params.ignore_eos


@pytest.mark.parametrize(
    ("field", "value", "range_text"),
    [
        ("n", 0, "[1, 128]"),
        ("n", True, "[1, 128]"),
        ("temperature", -0.1, "[0, 100]"),
        ("temperature", float("nan"), "[0, 100]"),
        ("temperature", "hot", "[0, 100]"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.01, "(0, 1]"),
        ("top_k", -2, "[-1, 2147483647]"),
        ("top_k", 1.5, "[-1, 2147483647]"),
        ("max_tokens", 0, "[1, 2147483647]"),
        ("seed", 2**63, "[-9223372036854775808, 9223372036854775807]"),
        ("stop", 5, "a string or a list of strings"),
        ("stop", ["a", ""], "at least one character"),
        ("stop_token_ids", [3, -1], "[0, 2147483647]"),
        ("stop_token_ids", 3, "a list of token ids"),
        ("ignore_eos", 1, "true or false"),
        ("spaces_between_special_tokens", "no", "true or false"),
        ("min_p", 1.5, "[0, 1]"),
        ("presence_penalty", 2.5, "[-2, 2]"),
        ("frequency_penalty", float("inf"), "[-2, 2]"),
        ("repetition_penalty", 0, "[0.01, 100]"),
        ("repetition_penalty", 5e-324, "[0.01, 100]"),  # made every logit infinite
        ("min_tokens", 17, "[0, 16]"),
        ("logprobs", -2, "[-1, 2147483647]"),
        ("logprobs", True, "[-1, 2147483647]"),
        ("prompt_logprobs", 1.0, "[-1, 2147483647]"),
        ("logit_bias", [1], "must map token ids to numbers"),
        ("logit_bias", {"x": 1}, "keys are token ids in [0, 2147483647]"),
        ("logit_bias", {-1: 1.0}, "keys are token ids in [0, 2147483647]"),
        ("logit_bias", {5: 101}, "[-100, 100]"),
        ("allowed_token_ids", [], "nothing could be drawn"),
        ("allowed_token_ids", [2**31], "[0, 2147483647]"),
        ("bad_words", [""], "at least one character"),
        ("bad_words", ["x"] * 129, "at most 128"),
        ("truncate_prompt_tokens", 0, "[1, ...]"),
        ("truncate_prompt_tokens", -2, "[-1, 2147483647]"),
    ],
)
def test_invalid_values_are_refused_with_field_and_range(field: str, value: object, range_text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert field in str(caught.value)
    assert range_text in str(caught.value)
    assert caught.value.param is not None
    assert caught.value.param.startswith(field)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("structured_outputs", {"regex": "a"}),
        ("guided_decoding", {"json": {}}),
        ("logits_processors", [print]),
        ("extra_args", {"a": 1}),
    ],
)
def test_parameters_that_are_missing_yet_are_refused_never_ignored(field: str, value: object) -> None:
    with pytest.raises(UnsupportedParameter, match=f"{field}=.*not supported yet") as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_neutral_values_of_missing_parameters_are_accepted() -> None:
    SamplingParams(structured_outputs=None, logits_processors=[], extra_args={})


def test_biases_take_the_keys_that_json_has() -> None:
    assert SamplingParams(logit_bias={"5": 1, 7: -2.5}).logit_bias == {5: 1.0, 7: -2.5}
    assert SamplingParams(logit_bias={}).logit_bias is None


def test_words_may_be_one_or_several() -> None:
    assert SamplingParams(bad_words="no").bad_words == ("no",)
    assert SamplingParams(bad_words=["no", "never", "no"]).bad_words == ("no", "never")
    assert SamplingParams(bad_words=[]).bad_words == ()


def test_tiny_temperature_is_greedy() -> None:
    assert SamplingParams(temperature=9e-6).temperature == 0.0
    assert SamplingParams(temperature=1e-5).temperature == 1e-5


def test_top_k_minus_one_means_the_whole_vocabulary() -> None:
    assert SamplingParams(top_k=-1).top_k == 0


def test_stop_is_normalised_and_deduplicated() -> None:
    assert SamplingParams(stop="END").stop_strings == ("END",)
    assert SamplingParams(stop=["a", "b", "a"]).stop_strings == ("a", "b")
    assert SamplingParams(stop_token_ids=[5, 5, 6]).stop_token_ids == (5, 6)


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequest, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)
