"""The live requests of an engine and the tokens that came so far: all that a successor of its core has to be given.

`Engine` owns it. A request is entered before the core is asked to take it and leaves with its last output, so that
whatever dies in between, it is known here whole. It knows no actors and waits for nobody but a suspect's progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ringcast.scheduler.messages import AddRequest, Logprobs, RequestOutput, StepOutputs
from ringcast.scheduler.quarantine import Quarantine, verdict


@dataclass(slots=True, eq=False)
class _Entry:
    """One live request."""

    request: AddRequest
    rank: int  # in order of arrival
    token_ids: list[int] = field(default_factory=list)  # its outputs so far
    is_handed_over: bool = False  # to the core that lives now
    num_losses: int = 0  # crashes of cores that had it, since its last token


class Journal:
    """Requests by id, in order of their arrival, from `enter` to their last output or `forget`.

    A request that two cores in a row had when they crashed, without a token in between, is a suspect (`Quarantine`).
    The next core gets it alone (`next_suspect`); if that one crashes too, the request ends with an error and is not
    tried again. Its next token clears it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._num_entered = 0
        self._quarantine: Quarantine[_Entry] = Quarantine()
        self._cleared = asyncio.Event()  # a suspect got a token, or left

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def enter(self, requests: Iterable[AddRequest]) -> None:
        """Know these requests from now on."""
        for request in requests:
            self._entries[request.request_id] = _Entry(request, self._num_entered)
            self._num_entered += 1

    def forget(self, request_ids: Iterable[str]) -> None:
        """They have been given up; unknown ids are fine."""
        for request_id in request_ids:
            self._remove(request_id)

    def clear(self) -> None:
        """Forget them all."""
        self.forget(list(self._entries))

    def receive(self, outputs: StepOutputs) -> StepOutputs:
        """Note what a core sent; the same without tokens that came before and without requests that are gone.

        Tokens that are missing before an output end its request with an error: going on would be a wrong answer.
        """
        request_ids: list[str] = []
        token_ids: list[int] = []
        starts: list[int] = []
        others = [kept for output in outputs.outputs if (kept := self._note(output)) is not None]
        for request_id, token_id, start in zip(outputs.request_ids, outputs.token_ids, outputs.starts, strict=True):
            entry = self._entries.get(request_id)
            if entry is None:
                continue
            known = entry.token_ids
            if start == len(known) and not entry.num_losses:  # nearly always
                known.append(token_id)
            elif (kept := self._note(RequestOutput(request_id, [token_id], start=start))) is None:
                continue
            elif kept.finish_reason is not None:
                others.append(kept)
                continue
            request_ids.append(request_id)
            token_ids.append(token_id)
            starts.append(start)
        return StepOutputs(outputs.step_id, others, request_ids, token_ids, starts)

    def lose(self, cause: str, *, is_evidence: bool = True) -> StepOutputs:
        """The core died, and with it all that it was given. The last outputs of requests that are not tried again.

        ``is_evidence``: the death counts against the requests that the core had.
        """
        lost = [entry for entry in self._entries.values() if entry.is_handed_over]
        for entry in lost:
            entry.is_handed_over = False
        convicted = self._quarantine.lose(lost, is_evidence=is_evidence)
        if convicted is None:
            return StepOutputs(0, [])
        return self.fail([convicted.request.request_id], verdict("the engine core died", convicted, cause))

    def fail(self, request_ids: Iterable[str], error: str) -> StepOutputs:
        """End requests with an error; the outputs that say so."""
        outputs = []
        for request_id in request_ids:
            entry = self._remove(request_id)
            if entry is not None:
                outputs.append(RequestOutput(request_id, [], "error", None, error, start=len(entry.token_ids)))
        return StepOutputs(0, outputs)

    def next_suspect(self) -> str | None:
        """The first request that the next core must have alone."""
        suspect = self._quarantine.next()
        return None if suspect is None else suspect.request.request_id

    async def cleared(self, request_id: str) -> None:
        """Return when the suspect has got a token, or has ended."""
        while (entry := self._entries.get(request_id)) is not None and entry.num_losses:
            self._cleared.clear()
            await self._cleared.wait()

    def next_batch(self, max_num_tokens: int) -> list[str]:
        """The next requests that the core was not given: one, or more of up to so many tokens together."""
        batch: list[str] = []
        for request_id, entry in self._entries.items():
            if entry.is_handed_over:
                continue
            max_num_tokens -= len(entry.request.prompt_token_ids) + len(entry.token_ids)
            if batch and max_num_tokens < 0:
                break
            batch.append(request_id)
        return batch

    def hand_over(self, request_ids: Iterable[str], client: int) -> list[AddRequest]:
        """What to give to the core that knows us as ``client``: all that is known, tokens included."""
        requests = []
        for request_id in request_ids:
            entry = self._entries.get(request_id)
            if entry is not None:
                entry.is_handed_over = True
                requests.append(replace(entry.request, client=client, output_token_ids=list(entry.token_ids)))
        return requests

    def _note(self, output: RequestOutput) -> RequestOutput | None:
        """Enter an output; what is new in it, if anything is."""
        entry = self._entries.get(output.request_id)
        if entry is None:
            return None
        known = len(entry.token_ids)
        if output.token_ids and output.start > known:
            error = f"the tokens {known} to {output.start - 1} of its answer were lost on the way from the engine core"
            return self.fail([output.request_id], error).outputs[0]
        doubled = min(known - output.start, len(output.token_ids))
        if doubled > 0:
            if doubled == len(output.token_ids) and output.finish_reason is None:
                return None
            output = _without_first(output, doubled)
        entry.token_ids += output.token_ids
        if output.token_ids and entry.num_losses:
            self._quarantine.release(entry)
            self._cleared.set()
        if output.prompt_logprobs is not None:  # delivered: nobody needs them again
            sampling = replace(entry.request.sampling, prompt_logprobs=None)
            entry.request = replace(entry.request, sampling=sampling)
        if output.finish_reason is not None:
            self._remove(output.request_id)
        return output

    def _remove(self, request_id: str) -> _Entry | None:
        entry = self._entries.pop(request_id, None)
        if entry is not None and entry.num_losses:
            self._quarantine.release(entry)
            self._cleared.set()
        return entry


def _without_first(output: RequestOutput, count: int) -> RequestOutput:
    logprobs = output.logprobs
    if logprobs is not None:
        item = 4 * logprobs.width * count
        logprobs = Logprobs(
            logprobs.width, logprobs.token_ids[item:], logprobs.logprobs[item:], logprobs.ranks[4 * count :]
        )
    return replace(output, token_ids=output.token_ids[count:], start=output.start + count, logprobs=logprobs)
