"""The tokenizer's endpoints, with vLLM's names and shapes: text to token ids and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from ..async_llm import AsyncLLM
from ..errors import InvalidRequest
from ..parameter_checks import below, token_ids
from ..threads import in_thread
from .protocol import Messages, check_continued, plain_messages

_PIECE = 8192  # items of a list that are encoded in one go


class TokenizeRequest(BaseModel):
    """POST /tokenize: ``prompt``, or ``messages`` through the chat template. ``return_token_strs``: texts as well."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
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
    tokens: Annotated[list[int], Field(fail_fast=True)]


class DetokenizeResponse(BaseModel):
    """The text, special tokens included."""

    prompt: str


async def tokenize(llm: AsyncLLM, body: TokenizeRequest) -> Response:
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
    text_of = llm.decoder.token_text if body.return_token_strs else None
    return await in_thread(_tokens, ids, llm.info().max_model_len, text_of)


def _tokens(ids: list[int], max_model_len: int, text_of: Callable[[int], str] | None) -> Response:
    """A `TokenizeResponse`, in pieces: the encoder holds the interpreter's lock, and there may be very many."""
    tokens = _json_list(ids)
    texts = "null" if text_of is None else _json_list([text_of(token_id) for token_id in ids])
    body = f'{{"count":{len(ids)},"max_model_len":{max_model_len},"tokens":{tokens},"token_strs":{texts}}}'
    return Response(body.encode(), media_type="application/json")


def _json_list(items: Sequence[int | str]) -> str:
    pieces = (json.dumps(items[at : at + _PIECE])[1:-1] for at in range(0, len(items), _PIECE))
    return f"[{','.join(pieces)}]"


async def detokenize(llm: AsyncLLM, body: DetokenizeRequest) -> Response:
    """`InvalidRequest` for ids outside the vocabulary, and for more than a million."""

    def text() -> str:
        token_ids("tokens", body.tokens)
        below("tokens", body.tokens, llm.info().vocab_size)
        return llm.tokenizer.decode(body.tokens, skip_special_tokens=False)

    return JSONResponse({"prompt": await in_thread(text)})


def tokenizer_info(llm: AsyncLLM) -> dict[str, Any]:
    """What transformers keeps in ``tokenizer_config.json``: special tokens, chat template, context."""
    tokenizer = llm.tokenizer
    info: dict[str, Any] = {"eos_token": None, **tokenizer.special_tokens}
    if info["eos_token"] is None and tokenizer.eos_token_ids:
        info["eos_token"] = tokenizer.backend.id_to_token(tokenizer.eos_token_ids[0])
    info["chat_template"] = None if tokenizer.chat_template is None else tokenizer.chat_template.source
    info["model_max_length"] = llm.info().max_model_len
    return info
