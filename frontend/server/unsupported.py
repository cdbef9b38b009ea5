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
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "metadata": (ANY,),
    "prompt_cache_key": (ANY,),
    "response_format": (_TEXT_FORMAT,),
    "safety_identifier": (ANY,),
    "service_tier": ("auto", "default"),
    "structured_outputs": (),
    "use_beam_search": (False,),
    "user": (ANY,),
}
COMPLETION = {
    **_COMMON,
    "best_of": (1,),
    "suffix": ("",),
}
CHAT = {
    **_COMMON,
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (ANY,),
    "prediction": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
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
