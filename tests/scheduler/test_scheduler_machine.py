"""Random lives of many requests on tiny pools: accounts hold at every moment, outputs are those of the solo run.

``RINGCAST_CHAOS_EXAMPLES=5000`` makes it long.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from in_flight_blocks import InFlightBlocks
from scheduler_fakes import VOCAB_SIZE, Collected, ModelWorker, PoisonError, limits, request, solo

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.messages import AddRequest
from ringcast.scheduler.scheduler import Scheduler

NUM_EXAMPLES = int(os.environ.get("RINGCAST_CHAOS_EXAMPLES", "40"))
POISON = 96
PREFIXES = [[(i * 5 + which) % POISON for i in range(60)] for which in range(2)]  # prompts begin alike


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps with up to three plans in flight, aborts, losses of the worker, smaller pools, re-adds."""

    @initialize(
        num_blocks=st.sampled_from([1, 2, 3, 6, 8, 10, 12, 40]),
        block_size=st.sampled_from([16, 4, 4, 1]),
        max_num_seqs=st.sampled_from([1, 2, 3, 5, 5]),
        budget=st.sampled_from([64, 17, 16, 3, 1]),
        share=st.sampled_from([0.7, 1.0, 1.0, 1.0, 1.2]),
        policy=st.sampled_from(["fcfs", "priority"]),
        cap=st.sampled_from([None, None, 2, 10]),
        cache=st.sampled_from(["on", "on", "colliding hashes", "off"]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        share: float,
        policy: str,
        cap: int | None,
        cache: str,
    ) -> None:
        """``share``: the longest request as a part of what the pool holds."""
        longest = int((num_blocks * block_size + 1) * share)
        self.sizes = limits(
            num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=max(2, longest),
        )
        config = SchedulerConfig(
            scheduling_policy=policy, long_prefill_token_threshold=cap, enable_prefix_caching=cache != "off"
        )
        self.scheduler = Scheduler(self.sizes, VOCAB_SIZE, config)
        if cache == "colliding hashes":
            self.scheduler._kv._cache._hash = lambda data: bytes([sum(data) % 7])
        self.in_flight = InFlightBlocks(block_size)
        self.new_worker(num_blocks)
        self.collected = Collected()
        self.messages: dict[str, AddRequest] = {}
        self.step_bound = 0  # the first of the running computes a token in every step, or waits for two results
        self.num_steps = 0

    def new_worker(self, num_blocks: int) -> None:
        sizes = self.sizes
        self.pool = limits(
            num_blocks,
            block_size=sizes.block_size,
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
        )
        self.worker = ModelWorker(self.pool, POISON)
        self.in_flight.clear()

    @rule(count=st.integers(1, 6), data=st.data())
    def add(self, count: int, data: st.DataObject) -> None:
        for _ in range(count):
            longest = min(self.sizes.max_model_len, 100)
            num_prompt_tokens = min(data.draw(st.integers(1, 3) | st.integers(1, 60)), longest - 1)
            max_tokens = longest - num_prompt_tokens - data.draw(st.integers(0, longest - num_prompt_tokens - 1))
            seed = data.draw(st.integers(0, 9))
            prompt = PREFIXES[seed % 2][:num_prompt_tokens]
            prompt[-1] = data.draw(st.sampled_from([prompt[-1], prompt[-1], prompt[-1], seed, POISON]))
            eos, stop = data.draw(st.sampled_from([([], []), ([], []), ([5, 6], []), ([5], [5, 7])]))
            asks = data.draw(st.sampled_from([(None, None), (None, None), (None, None), (2, None), (None, 1)]))
            self._add(
                request(
                    f"r{len(self.messages)}",
                    prompt,
                    max_tokens,
                    client=seed % 2,
                    eos=eos,
                    stop=stop,
                    min_tokens=data.draw(st.sampled_from([0, 0, max_tokens // 2, max_tokens])),
                    seed=seed,
                    priority=seed % 3,
                    salt="salt" if seed > 7 else None,
                    logprobs=asks[0],
                    prompt_logprobs=asks[1],
                )
            )

    @rule(num_prompt_tokens=st.integers(0, 300), max_tokens=st.integers(0, 40))
    def add_of_any_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        self._add(request(f"r{len(self.messages)}", [1] * num_prompt_tokens, max_tokens))

    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        """What the frontend does when the engine core died: the journal of an unfinished request goes to another."""
        running = [i for i in self.messages if i not in self.collected.last and self.collected.token_ids.get(i)]
        if not running:
            return
        old = self.messages[data.draw(st.sampled_from(running))]
        outputs = old.output_token_ids + self.collected.token_ids[old.request_id]
        self._add(
            AddRequest(f"r{len(self.messages)}", 0, old.prompt_token_ids, old.sampling, old.stop, outputs, old.priority)
        )

    def _add(self, message: AddRequest) -> None:
        self.messages[message.request_id] = message
        self.collected.known[message.request_id] = len(message.output_token_ids)
        self.step_bound += self._work_of(message)
        output = self.scheduler.add(message)
        if output is not None:
            self.collected.take_one(output)

    @staticmethod
    def _work_of(message: AddRequest) -> int:
        return len(message.prompt_token_ids) + message.stop.max_tokens

    def begin_step(self) -> bool:
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self.num_steps += 1
        self.in_flight.begin(plan)
        return True

    def finish_step(self) -> None:
        try:
            result = self.worker.execute(self.in_flight.finish())
        except PoisonError:
            self._lose("poisoned", self.scheduler.limits.num_blocks)
        else:
            self.collected.take(self.scheduler.update(result))

    @precondition(lambda self: len(self.in_flight) < 3)
    @rule()
    def begin(self) -> None:
        self.begin_step()

    @precondition(lambda self: len(self.in_flight))
    @rule()
    def finish(self) -> None:
        self.finish_step()

    @rule(count=st.sampled_from([1, 3, 10, 100]), plans=st.sampled_from([1, 1, 2, 3]))
    def steps(self, count: int, plans: int) -> None:
        for _ in range(count):
            while len(self.in_flight) < plans and self.begin_step():
                pass
            if len(self.in_flight):
                self.finish_step()

    @rule(data=st.data(), in_flight=st.booleans())
    def abort(self, data: st.DataObject, in_flight: bool) -> None:
        """Of live requests mostly, of any sometimes; while a step runs or between steps."""
        if in_flight and not len(self.in_flight):
            self.begin_step()
        live = [i for i in self.messages if i not in self.collected.last]
        candidates = data.draw(st.sampled_from([live, live, list(self.messages)]))
        if candidates:
            ids = data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=2))
            self.collected.take(self.scheduler.abort(ids))

    @rule()
    def reset_prefix_cache(self) -> None:
        self.scheduler.reset_prefix_cache()

    @rule(is_evidence=st.booleans())
    def lose_worker(self, is_evidence: bool) -> None:
        self._lose("killed", self.scheduler.limits.num_blocks, is_evidence)

    @rule(data=st.data())
    def shrink_pool(self, data: st.DataObject) -> None:
        """The worker dies, and the next one has other memory: less in most cases."""
        self._lose("out of memory", data.draw(st.integers(1, self.sizes.num_blocks)))

    def _lose(self, cause: str, num_blocks: int, is_evidence: bool = True) -> None:
        self.collected.take(self.scheduler.worker_lost(cause, is_evidence=is_evidence))
        self.new_worker(num_blocks)
        self.collected.take(self.scheduler.worker_ready(num_blocks))
        # What was in the worker starts again: at most everything that is not finished.
        self.step_bound += sum(self._work_of(m) for i, m in self.messages.items() if i not in self.collected.last)

    @invariant()
    def accounts_hold(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    @invariant()
    def outputs_are_those_of_the_solo_run(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for request_id, tokens in self.collected.token_ids.items():
            message = self.messages[request_id]
            last = self.collected.last.get(request_id)
            if last is not None and last.error is not None and not tokens:
                continue  # refused, does not fit any more, or never came to its first token: there is no solo run
            expected, reason, stop_reason = solo(message, self.sizes)
            have = message.output_token_ids + tokens
            assert have == expected[: len(have)]
            if message.sampling.logprobs is not None:
                assert len(self.collected.logprobs.get(request_id, [])) == len(tokens)
            if last is not None and last.finish_reason in ("stop", "length"):
                assert (have, last.finish_reason, last.stop_reason) == (expected, reason, stop_reason)
            if last is not None and last.error is not None and "it ran alone (poisoned)" in last.error:
                assert POISON in message.prompt_token_ids + have

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while True:
            while len(self.in_flight) < 2 and self.begin_step():
                pass
            if not len(self.in_flight):
                break
            self.finish_step()
            assert self.num_steps <= 3 * self.step_bound, "steps without progress"
        self.accounts_hold()
        self.outputs_are_those_of_the_solo_run()
        assert self.collected.last.keys() == self.messages.keys()
        now = self.scheduler.statistics()
        assert (now.num_running, now.num_waiting, now.num_quarantined) == (0, 0, 0)
        assert now.num_free_blocks == self.scheduler.limits.num_blocks
        assert now.num_finished == len(self.messages)


SchedulerMachine.TestCase.settings = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestSchedulerMachine = SchedulerMachine.TestCase
