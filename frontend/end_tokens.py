"""Which tokens end a turn, where a model's files do not list them: its chat template shows it, and llama.cpp's names.

The tokenizer's loaders add what is found here to the ids that the files name.
"""

from __future__ import annotations

from collections.abc import Iterable

from .chat_template import ChatTemplate
from .errors import FrontendError

_ANSWER = "ANSWER"
# As in llama.cpp (llama-vocab.cpp): whatever a GGUF names as its end, these end a turn, too.
_TURN_ENDS = frozenset(
    (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]",
        "<end_of_utterance>",
    )
)  # fmt: skip
# These count where there is no other end: some models use them for other things as well.
_TEXT_ENDS = frozenset(
    ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|return|>", "<｜end▁of▁sentence｜>")
)


def template_end(template: ChatTemplate | None, added_tokens: Iterable[str]) -> str | None:
    """The added token that the template writes behind an answer; None if it writes none, or cannot be asked."""
    if template is None:
        return None
    chat = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = template.render(chat, add_generation_prompt=False)
    except FrontendError:
        return None  # a template for other messages than these: a request will say what is wrong with it
    _, answer, behind = text.rpartition(_ANSWER)
    behind = behind.lstrip()
    ends = [token for token in added_tokens if token.strip() and behind.startswith(token.strip())] if answer else []
    return max(ends, key=len, default=None)


def named_ends(control_tokens: Iterable[str], *, has_end: bool) -> list[str]:
    """Those of a GGUF's control tokens that end an answer by their names."""
    tokens = list(control_tokens)
    found = [token for token in tokens if token in _TURN_ENDS]
    return found if found or has_end else [token for token in tokens if token in _TEXT_ENDS]
