"""Log-probabilities as OpenAI's two APIs tell them. Pure functions over results; `chunks` calls them.

Both formats name tokens by text. A token that is no text of its own (a part of a character) is told as OpenAI did it,
``bytes:\\xf0\\x9f``, so that no two of them look alike.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from ..detokenizer import TextDecoder
from ..outputs import LogprobsOfToken

_LEAST = -9999.0  # for minus infinity, which JSON has not; as vLLM does


class TokenNames:
    """What tokens are called. ``as_ids``: ``token_id:17`` instead of their text."""

    def __init__(self, decoder: TextDecoder, *, as_ids: bool = False) -> None:
        self._decoder = decoder
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        """The token's text, or what stands for it."""
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self.bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def bytes(self, token_id: int) -> bytes:
        """The token's bytes."""
        return self._decoder.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether it is one that answers do not show unless asked to."""
        return token_id in self._decoder.special_ids


def chat_logprobs(
    names: TokenNames, token_ids: Sequence[int], logprobs: Sequence[LogprobsOfToken], count: int
) -> dict[str, Any]:
    """A chat choice's ``logprobs``: each token with its bytes, and the ``count`` likeliest in its place."""

    def entry(token_id: int, at: LogprobsOfToken) -> dict[str, Any]:
        return {
            "token": names.name(token_id),
            "logprob": max(at[token_id].logprob, _LEAST),
            "bytes": list(names.bytes(token_id)),
        }

    content = [
        {**entry(token_id, at), "top_logprobs": [entry(item, at) for item in _likeliest(at, count)]}
        for token_id, at in zip(token_ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """A completion choice's ``logprobs``, piece by piece: ``text_offset`` goes on from one to the next."""

    def __init__(self, names: TokenNames, *, skips_special: bool) -> None:
        self._names = names
        self._skips_special = skips_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def piece(self, token_ids: Sequence[int], logprobs: Sequence[LogprobsOfToken | None]) -> dict[str, Any]:
        """Of the next tokens. The first token of a prompt has no log-probability: null."""
        offsets = [self._place(token_id) for token_id in token_ids]
        return {
            "tokens": [self._names.name(token_id) for token_id in token_ids],
            "token_logprobs": [
                None if at is None else max(at[token_id].logprob, _LEAST)
                for token_id, at in zip(token_ids, logprobs, strict=True)
            ],
            "top_logprobs": [None if at is None else self._by_name(at) for at in logprobs],
            "text_offset": offsets,
        }

    def _by_name(self, at: LogprobsOfToken) -> dict[str, float]:
        """Keyed by text; of tokens with the same text the later ones by id, so that no entry is lost."""
        found: dict[str, float] = {}
        for token_id, told in at.items():
            name = self._names.name(token_id)
            found[f"token_id:{token_id}" if name in found else name] = max(told.logprob, _LEAST)
        return found

    def _place(self, token_id: int) -> int:
        """In characters of the choice's text. A token inside a character has that character's place."""
        offset = self._offset
        if not (self._skips_special and self._names.is_special(token_id)):
            data = self._names.bytes(token_id)
            begun, _ = self._decoder.getstate()  # of a character that is not whole yet
            if begun and data and not _can_follow(begun, data[0]):
                offset += len(begun.decode("utf-8", "replace"))  # it never will be: its place is taken
            self._offset += len(self._decoder.decode(data))
        return offset


def _can_follow(begun: bytes, byte: int) -> bool:
    """Whether a character that begins with these bytes may go on with that one."""
    try:
        (begun + bytes([byte])).decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def prompt_logprobs(told: Sequence[LogprobsOfToken | None]) -> list[dict[str, Any] | None]:
    """vLLM's extension: for each prompt token null, or an object by token id."""
    return [
        None
        if at is None
        else {
            str(token_id): {
                "logprob": max(item.logprob, _LEAST),
                "rank": item.rank,
                "decoded_token": item.decoded_token,
            }
            for token_id, item in at.items()
        }
        for at in told
    ]


def _likeliest(at: LogprobsOfToken, count: int) -> list[int]:
    return sorted(at, key=lambda token_id: (-at[token_id].logprob, token_id))[:count]
