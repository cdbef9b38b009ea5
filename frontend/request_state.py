"""A live request: collects its answers' tokens, turns them into text, stops them, and hands out results.

`AsyncLLM` owns one per request and feeds it engine outputs; the caller's iterator waits on it. A slow
caller costs nothing: what it has not taken yet merges.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

from ringcast.scheduler import messages

from .detokenizer import TextDecoder
from .errors import EngineError
from .input_processor import EncodedPrompt
from .outputs import CompletionOutput, FinishReason, LogprobsOfToken, RequestMetrics, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams
from .stop_strings import StopStrings
from .token_logprobs import unpack, unpack_in_pieces


class Answer:
    """One of the answers of a request. ``text`` and ``token_ids`` are everything that may be shown."""

    def __init__(
        self,
        index: int,
        seed: int,
        params: SamplingParams,
        decoder: TextDecoder,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self.index = index
        self.seed = seed
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.logprobs: list[LogprobsOfToken] | None = None if params.logprobs is None else []
        self.cumulative_logprob = 0.0
        self._params = params
        self._text_of = decoder.token_text if params.detokenize else None
        self._stops = StopStrings(params.stop_strings, include=params.include_stop_str_in_output)
        self._detokenizer = (
            decoder.start(
                prompt_token_ids=prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
            if params.detokenize
            else None
        )
        self._taken_text = 0
        self._taken_tokens = 0

    def update(self, output: messages.RequestOutput) -> bool:
        """Take a step's tokens. True when a stop string ended the answer, so the engine must be told."""
        last = len(output.token_ids) - 1
        logprobs = self._unpacked(output)
        for position, token_id in enumerate(output.token_ids):
            self.token_ids.append(token_id)
            if self.logprobs is not None:
                self.logprobs.append(logprobs[position])
                self.cumulative_logprob += logprobs[position][token_id].logprob
            ends_here = output.finish_reason == "stop" and position == last
            if ends_here and not self._params.include_stop_str_in_output:
                break  # the token that says "end" is no text, special or not
            if self._push(token_id):
                self._finish("stop", self._stops.matched)
                return output.finish_reason is None
        if output.finish_reason is not None:
            self._flush()
            reason: Literal["stop", "length", "abort"] = _finish_reason(output.finish_reason)
            if self._stops.matched is not None:
                self._finish("stop", self._stops.matched)
            else:
                self._finish(reason, output.stop_reason)
        return False

    def has_news(self) -> bool:
        """Whether `take_delta` would return anything new."""
        return self._taken_tokens < len(self.token_ids) or self._taken_text < len(self.text)

    def whole(self) -> CompletionOutput:
        """Everything so far."""
        return self._output(self.text, 0)

    def take_delta(self) -> CompletionOutput:
        """What came since the last time."""
        output = self._output(self.text[self._taken_text :], self._taken_tokens)
        self._taken_text, self._taken_tokens = len(self.text), len(self.token_ids)
        return output

    def _output(self, text: str, first: int) -> CompletionOutput:
        """With this text, and the tokens from index ``first`` on."""
        return CompletionOutput(
            self.index,
            text,
            self.token_ids[first:],
            self.finish_reason,
            self.stop_reason,
            self.seed,
            None if self.logprobs is None else self.cumulative_logprob,
            None if self.logprobs is None else self.logprobs[first:],
        )

    def _unpacked(self, output: messages.RequestOutput) -> list[LogprobsOfToken]:
        """One entry for each of the step's tokens, if they were asked for."""
        if self.logprobs is None or not output.token_ids:
            return []
        if output.logprobs is None:
            raise EngineError("the engine sent tokens without the log-probabilities that were asked for")
        return unpack(output.logprobs, self._text_of)

    def _push(self, token_id: int) -> bool:
        """Append the text of a token; True if a stop string is complete."""
        if self._detokenizer is not None:
            may_match = len(self.token_ids) > self._params.min_tokens
            self.text += self._stops.push(self._detokenizer.push(token_id), may_match=may_match)
        return self._stops.matched is not None

    def _flush(self) -> None:
        if self._detokenizer is not None and self._stops.matched is None:
            self.text += self._stops.push(self._detokenizer.flush())
            self.text += self._stops.flush()

    def _finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self.finish_reason = reason
        self.stop_reason = stop_reason


class RequestState:
    """All answers of one request, and the place where its caller waits."""

    def __init__(
        self,
        request_id: str,
        prompt: EncodedPrompt,
        params: SamplingParams,
        seeds: Sequence[int],
        decoder: TextDecoder,
    ) -> None:
        self.request_id = request_id
        self.answers = [Answer(index, seed, params, decoder, prompt.token_ids) for index, seed in enumerate(seeds)]
        self._prompt = prompt
        self._packed_prompt_logprobs: messages.Logprobs | None = None  # until somebody takes them
        self._prompt_logprobs: list[LogprobsOfToken | None] | None = None
        self._text_of = decoder.token_text if params.detokenize else None
        self._kind = params.output_kind
        self._arrival = time.monotonic()
        self._first_token: float | None = None
        self._finished_time: float | None = None
        self._num_cached_tokens = 0
        self._reported: set[int] = set()  # answers whose end a delta has told
        self._error: EngineError | None = None
        self._news = asyncio.Event()

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the model sees before the answers."""
        return len(self._prompt.token_ids)

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return self._finished_time is not None

    def update(self, index: int, output: messages.RequestOutput) -> bool:
        """Feed one answer. True when the engine must abort it, since a stop string ended it here."""
        if output.error is not None or output.finish_reason == "error":
            self.fail(EngineError(f"request {self.request_id}: {output.error or 'failed in the engine'}"))
            return False
        if output.prompt_logprobs is not None:
            self._packed_prompt_logprobs = output.prompt_logprobs
        abort = self.answers[index].update(output)
        if output.token_ids and self._first_token is None:
            self._first_token = time.monotonic()
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        answers = self.answers
        if answers[index].finish_reason is not None and all(answer.finish_reason is not None for answer in answers):
            self._finished_time = time.monotonic()
        if self.finished or self._kind is not RequestOutputKind.FINAL_ONLY:
            self._news.set()
        return abort

    def fail(self, error: EngineError) -> None:
        """End the request with an error; the caller gets it when it asks next."""
        if self._error is None and not self.finished:
            self._error = error
            self._news.set()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self._error is not None

    async def next(self) -> RequestOutput:
        """The next result, as soon as there is one. Raises the `EngineError` that ended the request."""
        await self._news.wait()
        if (packed := self._packed_prompt_logprobs) is not None:
            self._prompt_logprobs = [None, *await unpack_in_pieces(packed, self._text_of)]
            self._packed_prompt_logprobs = None
        self._news.clear()
        if self._error is not None:
            self._news.set()
            raise self._error
        if self._kind is RequestOutputKind.DELTA:
            # An answer's end is told once, with its last text or by itself.
            outputs = [
                answer.take_delta()
                for answer in self.answers
                if answer.has_news() or (answer.finish_reason is not None and answer.index not in self._reported)
            ]
            self._reported.update(output.index for output in outputs if output.finish_reason is not None)
            prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        else:
            prompt_logprobs = self._prompt_logprobs
            outputs = [answer.whole() for answer in self.answers]
        return RequestOutput(
            self.request_id,
            self._prompt.text,
            self._prompt.token_ids,
            outputs,
            self.finished,
            RequestMetrics(self._arrival, self._first_token, self._finished_time),
            self._num_cached_tokens,
            prompt_logprobs,
        )


def _finish_reason(reason: str) -> FinishReason:
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length"
    if reason == "abort":
        return "abort"
    raise EngineError(f"the engine ended a request with the unknown reason {reason!r}")
