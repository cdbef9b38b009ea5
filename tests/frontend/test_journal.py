"""The journal of live requests: no token is lost or doubled whatever dies when; who kills cores is found out."""

from __future__ import annotations

import asyncio
import random

import pytest

from ringcast.frontend.journal import Journal
from ringcast.scheduler.messages import AddRequest, Logprobs, RequestOutput, SamplingRule, StepOutputs, StopRule


def _request(request_id: str, num_prompt_tokens: int = 3, **sampling: int) -> AddRequest:
    stop = StopRule(max_tokens=20, eos_token_ids=[], stop_token_ids=[])
    return AddRequest(request_id, 1, list(range(num_prompt_tokens)), SamplingRule(seed=7, **sampling), stop, [])


def _tokens(request_id: str, start: int, *token_ids: int) -> StepOutputs:
    return StepOutputs(1, [RequestOutput(request_id, list(token_ids), start=start)])


def _column(request_id: str, start: int, token_id: int) -> StepOutputs:
    return StepOutputs(1, [], [request_id], [token_id], [start])


class _Core:
    """Draws token ``1000 * request + position``; its messages wait in ``sent`` until they are delivered."""

    def __init__(self) -> None:
        self.requests: dict[str, list[int]] = {}
        self.sent: list[StepOutputs] = []

    def add(self, requests: list[AddRequest]) -> None:
        for request in requests:
            assert request.request_id not in self.requests
            assert request.sampling.seed == 7
            self.requests[request.request_id] = list(request.output_token_ids)

    def step(self, draw: random.Random) -> None:
        outputs = StepOutputs(1, [])
        for request_id, tokens in list(self.requests.items()):
            start, token = len(tokens), 1000 * int(request_id) + len(tokens)
            tokens.append(token)
            last = len(tokens) == 20
            if last:
                del self.requests[request_id]
            if last or draw.random() < 0.3:
                outputs.outputs.append(RequestOutput(request_id, [token], "length" if last else None, start=start))
            else:
                outputs.request_ids.append(request_id)
                outputs.token_ids.append(token)
                outputs.starts.append(start)
        if outputs.outputs or outputs.request_ids:
            self.sent.append(outputs)


@pytest.mark.parametrize("seed", range(50))
def test_kills_at_any_moment_neither_lose_nor_double_a_token(seed: int) -> None:
    """Of what a core had sent when it died a part arrives, some of it only when its successor is at work already."""
    draw = random.Random(seed)
    journal, core = Journal(), _Core()
    late: list[StepOutputs] = []
    received: dict[str, list[int]] = {}
    ended: set[str] = set()

    def deliver(outputs: StepOutputs) -> None:
        for output in journal.receive(outputs).each():
            assert output.error is None
            assert output.request_id not in ended
            assert output.start == len(received[output.request_id])
            received[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                ended.add(output.request_id)

    last_killed = 0
    for moment in range(1, 3000):
        event = draw.random()
        if event < 0.05 and len(received) < 12:
            request_id = str(len(received))
            received[request_id] = []
            journal.enter([_request(request_id)])
            core.add(journal.hand_over([request_id], 1))
        elif event < 0.5 and len(core.sent) < 4:
            core.step(draw)
        elif event < 0.53 and moment - last_killed > 60:
            last_killed = moment
            late = core.sent[: draw.randrange(len(core.sent) + 1)]
            journal.lose("killed")
            core = _Core()
            while batch := journal.next_batch(draw.choice([1, 7, 1000])):
                core.add(journal.hand_over(batch, 2))
        elif late and event < 0.8:
            deliver(late.pop(0))
        elif core.sent and not late:
            deliver(core.sent.pop(0))
    while late or core.requests or core.sent:
        core.step(draw)
        deliver((late or core.sent).pop(0))
    for request_id, tokens in received.items():
        assert tokens == [1000 * int(request_id) + position for position in range(20)]
    assert len(journal) == 0
    assert len(ended) == 12


def test_the_successor_is_given_all_that_is_known_in_order_of_arrival() -> None:
    journal = Journal()
    journal.enter([_request("a"), _request("b"), _request("c")])
    journal.hand_over(["a", "b", "c"], 1)
    journal.receive(_column("b", 0, 5))
    journal.receive(_tokens("b", 1, 6))
    journal.forget(["c", "never known"])
    journal.lose("killed")
    assert journal.next_batch(1000) == ["a", "b"]
    given = journal.hand_over(journal.next_batch(1000), 2)
    assert [(r.request_id, r.client, r.output_token_ids) for r in given] == [("a", 2, []), ("b", 2, [5, 6])]
    assert given[1].prompt_token_ids == [0, 1, 2]
    assert journal.next_batch(1000) == []


def test_batches_are_bounded_and_one_request_is_never_too_large() -> None:
    journal = Journal()
    journal.enter([_request("a", 10), _request("b", 10), _request("c", 500), _request("d", 10)])
    batches = []
    while batch := journal.next_batch(20):
        journal.hand_over(batch, 1)
        batches.append(batch)
    assert batches == [["a", "b"], ["c"], ["d"]]


def test_a_gap_ends_the_request_with_an_error_that_counts_the_tokens() -> None:
    journal = Journal()
    journal.enter([_request("a"), _request("b")])
    journal.receive(_column("a", 0, 5))
    (output,) = journal.receive(_column("a", 3, 8)).each()
    assert output.finish_reason == "error"
    assert output.error == "the tokens 1 to 2 of its answer were lost on the way from the engine core"
    assert ("a" in journal, "b" in journal) == (False, True)


def test_of_an_output_that_came_in_part_before_only_the_rest_passes() -> None:
    journal = Journal()
    journal.enter([_request("a")])
    journal.receive(_tokens("a", 0, 5, 6))
    four = Logprobs(2, bytes(range(32)), bytes(range(32)), bytes(range(16)))
    outputs = StepOutputs(1, [RequestOutput("a", [5, 6, 7, 8], "length", logprobs=four)])
    (output,) = journal.receive(outputs).each()
    assert (output.token_ids, output.start, output.finish_reason) == ([7, 8], 2, "length")
    assert output.logprobs == Logprobs(2, bytes(range(16, 32)), bytes(range(16, 32)), bytes(range(8, 16)))


def test_prompt_logprobs_that_were_delivered_are_not_asked_for_again() -> None:
    journal = Journal()
    journal.enter([_request("a", prompt_logprobs=1), _request("b", prompt_logprobs=1)])
    logprobs = Logprobs(2, b"", b"", b"")
    journal.receive(StepOutputs(1, [RequestOutput("a", [5], prompt_logprobs=logprobs)]))
    a, b = journal.hand_over(["a", "b"], 2)
    assert (a.sampling.prompt_logprobs, b.sampling.prompt_logprobs) == (None, 1)


async def test_who_was_in_flight_at_two_deaths_runs_alone_and_ends_at_the_third() -> None:
    journal = Journal()
    journal.enter([_request("bad"), _request("good")])
    for _ in range(2):
        assert journal.next_suspect() is None
        journal.hand_over(journal.next_batch(1000), 1)
        assert list(journal.lose("killed").each()) == []
    assert journal.next_suspect() == "bad"
    journal.hand_over(["bad"], 1)
    clearing = asyncio.create_task(journal.cleared("bad"))
    await asyncio.sleep(0)
    assert not clearing.done()
    (verdict,) = journal.lose("killed by signal 9 (SIGKILL)").each()
    assert (verdict.request_id, verdict.finish_reason) == ("bad", "error")
    assert verdict.error == (
        "the engine core died 3 times while this request was in flight, the last time while it ran alone "
        "(killed by signal 9 (SIGKILL)): it is not tried again"
    )
    await asyncio.wait_for(clearing, 1)
    assert journal.next_suspect() == "good", "it was held back at the third, so it has yet to run alone"
    journal.hand_over(["good"], 1)
    clearing = asyncio.create_task(journal.cleared("good"))
    await asyncio.sleep(0)
    journal.receive(_column("good", 0, 5))
    await asyncio.wait_for(clearing, 1)
    assert journal.next_suspect() is None


def test_kills_of_the_core_from_outside_are_evidence_against_nobody() -> None:
    """B16: neither a request that the core had, nor the suspect that it had alone."""
    journal = Journal()
    journal.enter([_request("a"), _request("b")])
    for _ in range(10):
        journal.hand_over(journal.next_batch(1000), 1)
        assert list(journal.lose("killed", is_evidence=False).each()) == []
        assert journal.next_suspect() is None
    for _ in range(2):
        journal.hand_over(journal.next_batch(1000), 1)
        journal.lose("crashed")
    for _ in range(10):
        assert journal.next_suspect() == "a"
        journal.hand_over(["a"], 1)
        assert list(journal.lose("killed", is_evidence=False).each()) == []
    journal.hand_over(["a"], 1)
    journal.receive(_column("a", 0, 5))
    assert journal.next_suspect() == "b"


async def test_a_suspect_that_is_given_up_holds_nobody_back() -> None:
    journal = Journal()
    journal.enter([_request("a")])
    for _ in range(2):
        journal.hand_over(["a"], 1)
        journal.lose("killed")
    clearing = asyncio.create_task(journal.cleared("a"))
    await asyncio.sleep(0)
    journal.forget(["a"])
    await asyncio.wait_for(clearing, 1)
