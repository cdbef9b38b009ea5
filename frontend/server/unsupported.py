"""Parameters of OpenAI's and vLLM's APIs that are known here by name only: neutral values pass, others are refused.

Nothing is ignored in silence: a parameter that is neither supported nor listed is unknown, and refused as
well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequest, UnsupportedParameter

ANY = object()  # informational for OpenAI's own service: no value changes an answer

_TEXT_FORMAT = {"type": "text"}

_COMMON: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "metadata": (ANY,),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_cache_key": (ANY,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": (_TEXT_FORMAT,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "safety_identifier": (ANY,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "user": (ANY,),
}
COMPLETION = {
    **_COMMON,
    "add_special_tokens": (True,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
}
CHAT = {
    **_COMMON,
    "add_special_tokens": (False,),
    "audio": (),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (ANY,),
    "prediction": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def refuse_unsupported(given: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]]) -> None:
    """Check parameters that no field took. null is neutral everywhere."""
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(f"unknown parameter {name!r}: remove it", name)
        neutral = known[name]
        if value is None or ANY in neutral:
            continue
        if not any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral):
            raise UnsupportedParameter(name, value, " or ".join(map(repr, neutral)) or "null")
