"""kill -9 of the real worker from outside, again and again under load: nobody is convicted, every answer is exact.

`make chaos-kills` does it 300 times under 24 streams with prompts of 500 tokens.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from ringcast import LLM, SamplingParams
from ringcast.frontend.engine import CORE, WORKER, Engine

NUM_KILLS = int(os.environ.get("RINGCAST_OUTSIDE_KILLS", "8"))
NUM_STREAMS, PROMPT_TOKENS = (8, 100) if NUM_KILLS < 100 else (24, 500)
INTERVAL_S = 0.5  # between the moment at which a worker is ready and its kill

pytestmark = pytest.mark.timeout(60 + 30 * NUM_KILLS)


def pids_of(llm: LLM) -> dict[str, int]:
    """Of worker and core, while they serve; asked on the engine's own loop."""

    async def ask() -> dict[str, int]:
        engine = llm._llm._running().engine
        assert isinstance(engine, Engine)
        return engine.pids()

    return llm._thread.run(ask())


class Killer(threading.Thread):
    """Kills each worker that becomes ready, half a second later."""

    def __init__(self, llm: LLM, begun: threading.Event) -> None:
        super().__init__()
        self.num_kills = 0
        self._llm = llm
        self._begun = begun

    def run(self) -> None:
        self._begun.wait()
        killed = 0
        while self.num_kills < NUM_KILLS:
            pid = pids_of(self._llm).get(WORKER, 0)
            if pid in (0, killed):
                time.sleep(0.01)
                continue
            time.sleep(INTERVAL_S)
            os.kill(pid, signal.SIGKILL)
            killed = pid
            self.num_kills += 1


def test_kills_of_the_worker_from_outside_convict_nobody_and_change_no_token() -> None:
    """B16."""
    draw = random.Random(16)
    prompts = [[draw.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_STREAMS)]
    params = [
        SamplingParams(temperature=0.8 * (number % 2), seed=number, max_tokens=24, ignore_eos=True, detokenize=False)
        for number in range(NUM_STREAMS)
    ]
    with LLM("smollm2", dtype="float32", max_model_len=1024) as llm:
        undisturbed = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        core = pids_of(llm)[CORE]
        begun = threading.Event()
        killer = Killer(llm, begun)
        killer.start()
        num_rounds = 0
        while killer.is_alive():
            begun.set()
            assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == undisturbed
            num_rounds += 1
        killer.join()
        statistics = llm.statistics()
        print(f"{killer.num_kills} kills, {statistics.num_worker_losses} losses, {num_rounds} rounds of {NUM_STREAMS}")
        assert (statistics.num_failed, statistics.num_quarantined) == (0, 0)
        assert killer.num_kills == NUM_KILLS
        assert pids_of(llm)[CORE] == core
        assert llm.health().state == "ready"
