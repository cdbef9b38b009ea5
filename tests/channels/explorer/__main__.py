"""`make explore`: exhausts every configuration and runs every mutation; prints a table; exit status 1 if one fails."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from .configurations import CASES
from .mutations import CAUGHT, HARMLESS, Mutation
from .search import Outcome, explore, trace_lines
from .spill import SpillRules


@dataclass(frozen=True, slots=True)
class Job:
    """One search: of a case as it is, or of a mutation."""

    kind: str  # "case", "caught", "harmless"
    number: int
    model: str

    def run(self) -> tuple[Outcome, float]:
        start = time.monotonic()
        if self.kind == "case":
            outcome = explore(CASES[self.number].build(SpillRules()), self.model)
        else:
            outcome = self.mutation.search(self.model)
        return outcome, time.monotonic() - start

    @property
    def mutation(self) -> Mutation:
        return (CAUGHT if self.kind == "caught" else HARMLESS)[self.number]

    @property
    def name(self) -> str:
        return CASES[self.number].name if self.kind == "case" else self.mutation.name

    def is_good(self, outcome: Outcome) -> bool:
        if self.kind == "caught":
            return outcome.violation is not None
        return outcome.violation is None and outcome.complete


def jobs(brief: bool) -> list[Job]:
    found = [Job("case", i, model) for i, case in enumerate(CASES) for model in (case.brief if brief else case.models)]
    for kind, mutations in (("caught", CAUGHT), ("harmless", [] if brief else HARMLESS)):
        for i, mutation in enumerate(mutations):
            found += [Job(kind, i, model) for model in (mutation.brief if brief else mutation.models)]
    return found


def report(job: Job, outcome: Outcome, seconds: float, show_traces: bool) -> bool:
    good = job.is_good(outcome)
    if job.kind == "caught" and good:
        result = f"caught in {len(outcome.trace) - 1} steps: {(outcome.violation or '').split(' | ')[0]}"
    elif outcome.violation is not None:
        result = f"BROKEN: {outcome.violation}"
    elif not outcome.complete:
        result = "NOT EXHAUSTED"
    else:
        result = "exhausted" if job.kind != "caught" else "NOT CAUGHT"
    print(f"{job.kind:8} {job.name:57} {job.model} {outcome.states:9,} states {seconds:6.1f} s  {result}", flush=True)
    if outcome.violation is not None and (show_traces or not good):
        print("\n".join(trace_lines(outcome)), flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="explorer", description=__doc__)
    parser.add_argument("--brief", action="store_true", help="only what takes seconds")
    parser.add_argument("--only", default="", help="only names that contain this")
    parser.add_argument("--traces", action="store_true", help="print the counter-examples of mutations")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    work = [job for job in jobs(options.brief) if options.only in job.name]
    start = time.monotonic()
    bad = states = 0
    run: Callable[[Job], tuple[Outcome, float]] = Job.run
    with ProcessPoolExecutor(options.processes) as pool:
        for job, (outcome, seconds) in zip(work, pool.map(run, work), strict=True):
            states += outcome.states
            bad += not report(job, outcome, seconds, options.traces)
    print(f"{len(work)} searches, {states:,} states, {bad} failed, {time.monotonic() - start:.0f} s")
    return 1 if bad or not work else 0


if __name__ == "__main__":
    sys.exit(main())
