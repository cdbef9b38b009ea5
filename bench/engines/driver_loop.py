"""The loop of every driver: says that it is ready, then runs tasks. Needs nothing but the standard library."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping

Run = Callable[[list[list[int]], int], int]


def serve(run: Run, facts: Mapping[str, object]) -> None:
    """``run(prompts, new_tokens)`` generates greedily and returns the number of tokens generated."""
    # Libraries print to standard output; answers go to a copy of it that only we have.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: Mapping[str, object]) -> None:
        answers.write("@bench " + json.dumps(content) + "\n")
        answers.flush()

    answer(facts)
    for line in sys.stdin:
        task = json.loads(line)
        start = time.perf_counter()
        tokens = run(task["prompts"], task["new_tokens"])
        answer({"seconds": time.perf_counter() - start, "tokens": tokens})
