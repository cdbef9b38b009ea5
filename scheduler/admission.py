"""Which requests are let in: the last check before the scheduler, which relies on every rule here.

The scheduler calls it once per request. It changes nothing.
"""

from __future__ import annotations

from .config import blocks_for
from .errors import RequestRefused
from .messages import AddRequest, KVCacheConfig
from .request import Request


def admit(message: AddRequest, limits: KVCacheConfig, vocab_size: int, arrival: int) -> Request:
    """The request of a message, its ``max_tokens`` clipped to ``max_model_len``. O(tokens).

    `RequestRefused` when it could never be run to its end: it would wait for ever or stop others.
    """
    prompt, max_tokens = message.prompt_token_ids, message.stop.max_tokens
    if not prompt:
        raise RequestRefused("the prompt is empty: give at least one token")
    tokens = prompt + message.output_token_ids
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        raise RequestRefused(
            f"the token ids reach from {min(tokens)} to {max(tokens)}: the model knows 0 to {vocab_size - 1}"
        )
    if max_tokens < 1:
        raise RequestRefused(f"max_tokens={max_tokens}: ask for at least 1")
    if len(prompt) + 1 > limits.max_model_len:
        raise RequestRefused(
            f"the prompt has {len(prompt)} tokens, but prompt and answer together may have "
            f"{limits.max_model_len} (max_model_len): shorten it to {limits.max_model_len - 1} or less"
        )
    max_num_tokens = min(len(prompt) + max_tokens, limits.max_model_len)
    needed = blocks_for(max_num_tokens - 1, limits.block_size)  # the last token is never computed
    if needed > limits.num_blocks:
        raise RequestRefused(
            f"prompt and answer may reach {max_num_tokens} tokens and need {needed} KV blocks of "
            f"{limits.block_size}, but there are {limits.num_blocks}: shorten the prompt, lower max_tokens, "
            "or start with more blocks"
        )
    return Request(
        request_id=message.request_id,
        client=message.client,
        arrival=arrival,
        sampling=message.sampling,
        all_token_ids=tokens,
        num_prompt_tokens=len(prompt),
        max_num_tokens=max_num_tokens,
        eos_token_ids=frozenset(message.stop.eos_token_ids),
        stop_token_ids=frozenset(message.stop.stop_token_ids),
    )
