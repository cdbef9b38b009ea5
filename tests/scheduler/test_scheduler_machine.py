"""Random lives of many requests on tiny pools: accounts hold at every moment, outputs are those of the solo run."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_fakes import Collected, ModelWorker, limits, request, solo

from ringcast.scheduler.messages import AddRequest, StepPlan
from ringcast.scheduler.scheduler import Scheduler


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, aborts, losses of the worker and re-adds, in any order."""

    plan: StepPlan | None = None

    @initialize(
        num_blocks=st.sampled_from([1, 2, 3, 6, 8, 10, 12]),
        block_size=st.sampled_from([16, 4, 4, 1]),
        max_num_seqs=st.sampled_from([1, 2, 3, 5, 5]),
        budget=st.sampled_from([64, 17, 16, 3, 1]),
        share=st.sampled_from([0.7, 1.0, 1.0, 1.0, 1.2]),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int, share: float) -> None:
        """``share``: the longest request as a part of what the pool holds."""
        longest = int((num_blocks * block_size + 1) * share)
        self.sizes = limits(
            num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=max(2, longest),
        )
        self.scheduler = Scheduler(self.sizes, vocab_size=97)
        self.worker = ModelWorker(self.sizes)
        self.collected = Collected()
        self.messages: dict[str, AddRequest] = {}
        self.step_bound = 0  # the first of the running computes a token in every step
        self.num_steps = 0

    @rule(count=st.integers(1, 6), data=st.data())
    def add(self, count: int, data: st.DataObject) -> None:
        for _ in range(count):
            longest = min(self.sizes.max_model_len, 100)
            num_prompt_tokens = min(data.draw(st.integers(1, 3) | st.integers(1, 60)), longest - 1)
            max_tokens = longest - num_prompt_tokens - data.draw(st.integers(0, longest - num_prompt_tokens - 1))
            seed = data.draw(st.integers(0, 9))
            prompt = [(i * i + seed) % 97 for i in range(num_prompt_tokens)]
            eos, stop = data.draw(st.sampled_from([([], []), ([], []), ([5, 6], []), ([5], [5, 7])]))
            request_id = f"r{len(self.messages)}"
            client = seed % 2
            self._add(request(request_id, prompt, max_tokens, client=client, eos=eos, stop=stop, seed=seed))

    @rule(num_prompt_tokens=st.integers(0, 300), max_tokens=st.integers(0, 40))
    def add_of_any_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        self._add(request(f"r{len(self.messages)}", [1] * num_prompt_tokens, max_tokens))

    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        """What the frontend does for a request that a crash cut off."""
        cut = [i for i, last in self.collected.last.items() if last.error == "killed"]
        if not cut:
            return
        old_id = data.draw(st.sampled_from(cut))
        old = self.messages[old_id]
        outputs = old.output_token_ids + self.collected.token_ids[old_id]
        request_id = f"r{len(self.messages)}"
        self._add(AddRequest(request_id, 0, old.prompt_token_ids, old.sampling, old.stop, outputs))

    def _add(self, message: AddRequest) -> None:
        self.messages[message.request_id] = message
        self.step_bound += len(message.prompt_token_ids) + message.stop.max_tokens
        output = self.scheduler.add(message)
        if output is not None:
            self.collected.take_one(output)

    @precondition(lambda self: self.plan is None)
    @rule()
    def begin_step(self) -> None:
        self.plan = self.scheduler.schedule()
        self.num_steps += self.plan is not None

    @precondition(lambda self: self.plan is not None)
    @rule()
    def finish_step(self) -> None:
        assert self.plan is not None
        plan, self.plan = self.plan, None
        self.collected.take(self.scheduler.update(self.worker.execute(plan)))

    @rule(count=st.sampled_from([1, 3, 10, 100]))
    def steps(self, count: int) -> None:
        for _ in range(count):
            if self.plan is None:
                self.begin_step()
            if self.plan is not None:
                self.finish_step()

    @rule(data=st.data(), in_flight=st.booleans())
    def abort(self, data: st.DataObject, in_flight: bool) -> None:
        """Of live requests mostly, of any sometimes; while a step runs or between steps."""
        if in_flight and self.plan is None:
            self.begin_step()
        live = [i for i in self.messages if i not in self.collected.last]
        candidates = data.draw(st.sampled_from([live, live, list(self.messages)]))
        if candidates:
            ids = data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=2))
            self.collected.take(self.scheduler.abort(ids))

    @rule()
    def lose_worker(self) -> None:
        self.collected.take(self.scheduler.worker_lost("killed"))
        self.worker = ModelWorker(self.sizes)
        self.plan = None
        # What was preempted starts again: at most everything that is not finished.
        self.step_bound += sum(
            len(m.prompt_token_ids) + m.stop.max_tokens
            for i, m in self.messages.items()
            if i not in self.collected.last
        )

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
            # A refused request has no tokens and no solo run.
            if last is not None and last.error is not None and last.error != "killed":
                assert tokens == []
                continue
            expected, reason, stop_reason = solo(message, self.sizes)
            have = message.output_token_ids + tokens
            assert have == expected[: len(have)]
            if last is not None and last.finish_reason in ("stop", "length"):
                assert (have, last.finish_reason, last.stop_reason) == (expected, reason, stop_reason)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while True:
            if self.plan is None:
                self.begin_step()
            if self.plan is None:
                break
            self.finish_step()
            assert self.num_steps <= self.step_bound, "steps without progress"
        self.outputs_are_those_of_the_solo_run()
        assert self.collected.last.keys() == self.messages.keys()
        now = self.scheduler.statistics()
        assert (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, self.sizes.num_blocks)


SchedulerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
