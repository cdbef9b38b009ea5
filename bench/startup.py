"""How long until the engine is ready and the first token is there: ``python -m bench.startup [--quick]``.

Every repetition starts a new Python process that makes an `LLM` and asks for one token.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .report import Figure, Report, Table, Target, add_out, describe_machine

METHOD: Final = (
    "Each repetition starts an interpreter anew; times count from the call that starts it. Warm: the packed weights "
    "are in the cache folder, and the page cache holds all files. Cold: the folder is empty: weights are packed first.",
    "Imported: ringcast can be used. Worker READY: its process was started and has loaded the model (spawned alone). "
    "Ready: the constructor of `LLM` returned. First token: one token for a prompt of 12 was returned.",
)
WARM_LIMIT_S: Final = 4.0
FORMS: Final = {"bf16": "none", "packed": "gguf"}

_PROGRAM: Final = """
import json, sys, time
import ringcast
imported = time.time()
with ringcast.LLM("smollm2", quantization=sys.argv[1]) as llm:
    ready = time.time()
    llm.generate([[1] * 12], ringcast.SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
    print(json.dumps({"imported": imported, "ready": ready, "first token": time.time()}))
"""
_WORKER: Final = """
import asyncio, json, sys, time
import ringcast.actors as rt
from ringcast.frontend.model_source import resolve_model
from ringcast.gpu import Worker, WorkerConfig

async def main():
    config = WorkerConfig(str(resolve_model("smollm2").path), quantization=sys.argv[1])
    async with rt.System() as system:
        start = time.time()
        await system.spawn(rt.spec(Worker, config), name="worker", where=rt.process())
        print(json.dumps({"worker READY": time.time() - start}))

asyncio.run(main())
"""


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = _parse(arguments)
    machine = describe_machine(("ringcast", "torch"), {})
    report = Report("startup", METHOD, machine)
    stages = ("imported", "worker READY", "ready", "first token")
    rows = []
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as folder:
        for form, quantization in FORMS.items():
            cold = [_once(quantization, Path(folder) / f"{form}-{i}", worker=False) for i in range(options.repetitions)]
            warm_folder = Path(folder) / f"{form}-0"
            warm = [_once(quantization, warm_folder, worker=True) for _ in range(options.repetitions)]
            for name, runs in (("cold", cold), ("warm", warm)):
                cells = (_figure(runs, stage) if stage in runs[0] else "–" for stage in stages)
                rows.append((f"{form}, {name}", *cells))
            first = _figure(warm, "first token")
            report.targets.append(Target(f"{form}: warm start to first token", first, WARM_LIMIT_S))
    report.tables.append(Table("Seconds since the start", ("start", *stages), tuple(rows)))
    machine["load_average_at_end"] = os.getloadavg()[0]
    page, data = report.write(options.out)
    print(page.read_text())
    print(f"written: {page}, {data}", file=sys.stderr)


def _once(quantization: str, cache: Path, worker: bool) -> dict[str, float]:
    """Seconds of each stage."""
    start = time.time()
    found = {stage: moment - start for stage, moment in _run(_PROGRAM, quantization, cache).items()}
    return found | (_run(_WORKER, quantization, cache) if worker else {})


def _run(program: str, quantization: str, cache: Path) -> Mapping[str, float]:
    command = [sys.executable, "-c", program, quantization]
    environment = {**os.environ, "RINGCAST_CACHE": str(cache)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    times: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def _figure(runs: list[dict[str, float]], stage: str) -> Figure:
    return Figure(tuple(run[stage] for run in runs), "s")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two repetitions instead of five")
    parser.add_argument("--repetitions", type=int, help="how often everything is measured")
    add_out(parser)
    options = parser.parse_args(arguments)
    options.repetitions = options.repetitions or (2 if options.quick else 5)
    return options


if __name__ == "__main__":
    main()
