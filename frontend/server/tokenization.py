"""The tokenizer's endpoints, with vLLM's names and shapes: text to token ids and back."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..async_llm import AsyncLLM
from ..errors import InvalidRequest
from ..parameter_checks import below, token_ids
from .protocol import ChatMessage, check_continued, plain_messages


class TokenizeRequest(BaseModel):
    """POST /tokenize: ``prompt``, or ``messages`` through the chat template. ``return_token_strs``: texts as well."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(BaseModel):
    """The ids, and what the context holds."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(BaseModel):
    """The text, special tokens included."""

    prompt: str


async def tokenize(llm: AsyncLLM, body: TokenizeRequest) -> TokenizeResponse:
    """By the rules of the generating endpoints: a prompt gets special tokens unless told otherwise, a chat none."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", "prompt")
    if body.messages is not None:
        check_continued(body.messages, body.add_generation_prompt, body.continue_final_message)
        prompt = await llm.encode_chat(
            plain_messages(body.messages),
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=bool(body.continue_final_message),
            add_special_tokens=bool(body.add_special_tokens),
            variables=body.chat_template_kwargs,
        )
        ids = prompt.token_ids
    elif body.prompt:
        encoded = await llm.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
        ids = encoded.token_ids
    else:
        ids = []
    texts = [llm.decoder.token_text(token_id) for token_id in ids] if body.return_token_strs else None
    return TokenizeResponse(count=len(ids), max_model_len=llm.info().max_model_len, tokens=ids, token_strs=texts)


async def detokenize(llm: AsyncLLM, body: DetokenizeRequest) -> DetokenizeResponse:
    """`InvalidRequest` for ids outside the vocabulary."""
    token_ids("tokens", body.tokens)
    below("tokens", body.tokens, llm.info().vocab_size)
    text = await asyncio.to_thread(llm.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return DetokenizeResponse(prompt=text)


def tokenizer_info(llm: AsyncLLM) -> dict[str, Any]:
    """What transformers keeps in ``tokenizer_config.json``: special tokens, chat template, context."""
    tokenizer = llm.tokenizer
    info: dict[str, Any] = {"eos_token": None, **tokenizer.special_tokens}
    if info["eos_token"] is None and tokenizer.eos_token_ids:
        info["eos_token"] = tokenizer.backend.id_to_token(tokenizer.eos_token_ids[0])
    info["chat_template"] = None if tokenizer.chat_template is None else tokenizer.chat_template.source
    info["model_max_length"] = llm.info().max_model_len
    return info
